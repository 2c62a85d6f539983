# SPDX-License-Identifier: Apache-2.0
"""Tests of the host of nova-compute, on fake machines."""

import errno
import os
import pathlib
import shutil
import uuid
from unittest import mock

import fixtures
from oslo_config import cfg
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host import local
from gpgpu_plugin.host.backends import mdev
from gpgpu_plugin.host.backends import nvidia_vf
from gpgpu_plugin.host.backends import whole_function
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.discovery import vgpu_sysfs
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import machine
from tests.fixtures import locked
from tests.fixtures import unprivileged


class LocalHostCase(base.BaseTestCase):

    machine = 'pcie-l40s-4'

    def setUp(self):
        super().setUp()
        self.host = self.make_host(self.machine)
        self.kernel = self.host.kernel

    def make_host(self, name, numvfs=None):
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        return fake_host.FakeHost.for_machine(name, self.root, numvfs)

    def functions(self):
        return [function for function in self.host.scan().functions
                if pci.can_be_gpu(function.class_code)
                and function.vendor != '1a03']

    @staticmethod
    def device(function, vgpu_type=naming.PASSTHROUGH):
        return host_base.HostDevice(
            assignment_uuid=str(uuid.uuid4()), stable_id=function.id,
            address=function.address, vgpu_type=vgpu_type)


class ConfigurationTest(base.BaseTestCase):

    def test_steps_get_what_is_configured_for_them(self):
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        conf([], default_config_files=[])
        default = local.LocalHost.for_host(conf, 'h1').access
        self.assertIsNone(default.cleaning_program)
        self.assertEqual(host_base.ScrubGuest(), default.scrub_guest)
        for name, value in (
                ('cleaning_program', '/p'), ('scrub_guest_path', '/g'),
                ('scrub_guest_memory', 64), ('scrub_guest_timeout', 10)):
            conf.set_override(name, value, 'gpgpu_compute')
        guests = object()
        access = local.LocalHost.for_host(conf, 'h1', guests).access
        self.assertEqual('/p', access.cleaning_program)
        self.assertEqual(host_base.ScrubGuest(
            path='/g', memory_mib=64, seconds=10, guests=guests),
            access.scrub_guest)


class BackendsTest(LocalHostCase):

    def handler(self, function, vgpu_type=naming.PASSTHROUGH):
        """Return the class of the backend for a device."""
        return type(self.host._backends.of(self.device(function, vgpu_type)))

    def test_whole_gpu_is_passed_through_whatever_its_driver(self):
        for name in ('nvidia-t4-2', 'nvidia-l40s-vgpu-2', 'hgx-h100-8'):
            self.host = self.make_host(name)
            self.assertIs(whole_function.PassthroughBackend,
                          self.handler(self.functions()[0]))

    def test_vgpu_is_handled_by_the_backend_of_its_mechanism(self):
        for name, numvfs, vgpu_type, backend in (
                ('nvidia-a100-2', '10de:20b5', 'A100D-20C',
                 mdev.MdevBackend),
                ('nvidia-l40s-vgpu-2', '10de:26b9', 'L40S-12Q',
                 nvidia_vf.NvidiaVFBackend),
                ('intel-flex170-2', '8086:56c0', 'vf4',
                 whole_function.SriovVFBackend)):
            self.host = self.make_host(name, {numvfs: 4})
            self.host.make_vfs(())
            vf = next(vf for vf in self.functions() if vf.pf)
            self.assertIs(backend, self.handler(vf, vgpu_type))

    def test_vgpu_on_gpu_without_vgpu_driver_is_refused(self):
        gpu = self.functions()[0]
        exc = self.assertRaises(
            exception.HostError, self.host.prepare,
            self.device(gpu, 'L40S-12Q'))
        self.assertIn(f'{gpu.address}: no backend supports vGPU type L40S-12Q',
                      str(exc))
        self.assertEqual([], self.kernel.written)


class SerialNumbersTest(LocalHostCase):

    def setUp(self):
        super().setUp()
        self.gpu = self.functions()[0]
        self.folder = pathlib.Path(
            self.root, 'bus/pci/devices', self.gpu.address).resolve()
        unprivileged.show(
            self.folder, dsn='00-00-00-00-00-00-00-07', serial=b'1320')
        self.useFixture(unprivileged.Unprivileged())
        # Another start of nova-compute.
        self.host = fake_host.FakeHost(self.root)

    def test_nova_finds_the_serial_numbers_of_gpus(self):
        found = self.functions()[0]
        self.assertEqual(('00-00-00-00-00-00-00-07', '1320'),
                         (found.dsn, found.serial))

    def test_gpu_that_is_cleaned_keeps_its_numbers_and_is_not_read(self):
        self.functions()
        self.host.prepare(self.device(self.gpu))
        (self.folder / 'vpd').unlink()
        with self.host._in_cleaning.cleaning([self.gpu]):
            self.assertEqual('1320', self.functions()[0].serial)


class ErrorsTest(LocalHostCase):

    def setUp(self):
        super().setUp()
        self.gpu = self.device(self.functions()[0])

    def test_refused_bind_is_an_error(self):
        self.kernel.faults['vfio-pci/bind'] = errno.EBUSY
        exc = self.assertRaises(
            exception.HostError, self.host.prepare, self.gpu)
        self.assertIn('busy', str(exc))

    def test_device_that_fails_to_clean_is_not_clean(self):
        self.host.prepare(self.gpu)
        self.kernel.faults['/reset'] = errno.EIO
        verdict = self.host.clean(self.gpu)
        self.assertFalse(verdict.passed)
        self.assertIn('it cannot be reset: Input/output error',
                      verdict.failure)

    def test_vgpu_that_no_backend_supports_is_not_clean(self):
        verdict = self.host.clean(self.device(
            self.functions()[0], 'L40S-12Q'))
        self.assertFalse(verdict.passed)

    def test_host_that_cannot_tell_gives_no_verdict(self):
        self.host.prepare(self.gpu)

        def fail(path):
            raise exception.HostNotReady(path=path, reason='no helper')
        self.useFixture(fixtures.MockPatchObject(
            self.host.binder, 'config', fail))
        self.assertRaises(
            exception.HostNotReady, self.host.clean, self.gpu)

    def test_dead_gpu_is_refused(self):
        self.host = self.make_host('broken-l40s-4')
        dead = next(function for function in self.host.scan().functions
                    if function.fault)
        self.assertRaises(
            exception.HostError, self.host.prepare, self.device(dead))


class ChangedTest(LocalHostCase):

    def test_host_is_changed_until_it_is_scanned(self):
        self.assertTrue(self.host.changed())
        self.host.scan()
        self.assertFalse(self.host.changed())

    def test_host_without_pci_bus_is_changed_and_cannot_be_scanned(self):
        self.host.scan()
        shutil.rmtree(f'{self.root}/bus/pci/devices')
        self.assertTrue(self.host.changed())
        self.assertRaises(exception.HostError, self.host.scan)


class MakeVFsTest(LocalHostCase):

    machine = 'intel-flex170-2'

    def test_gpu_of_a_guest_gets_no_vfs(self):
        self.host = self.make_host(self.machine, {'8086:56c0': 4})
        first, second = self.functions()
        self.host.binder.bind(first)
        self.host.make_vfs(())
        self.assertEqual({second.id}, {
            vf.pf for vf in self.functions() if vf.pf})

    def test_busy_gpu_gets_no_vfs(self):
        self.host = self.make_host(self.machine, {'8086:56c0': 4})
        first, second = self.functions()
        self.host.make_vfs({first.id})
        self.assertEqual({second.id}, {
            vf.pf for vf in self.functions() if vf.pf})

    def test_gpu_that_is_refused_gets_no_vfs(self):
        self.host = self.make_host(self.machine, {'8086:56c0': 4})
        first, second = self.functions()
        refused = mock.Mock(return_value=(first.id,))
        self.host.make_vfs((), refused)
        refused.assert_called_once_with([first.id, second.id])
        self.assertEqual({second.id}, {
            vf.pf for vf in self.functions() if vf.pf})

    def test_gpus_that_were_left_without_vfs_are_remembered(self):
        self.host = self.make_host(self.machine, {'8086:56c0': 4})
        first, _ = self.functions()
        self.host.make_vfs({first.id})
        self.assertTrue(self.host.lacks_vfs())
        self.host.make_vfs((), lambda gpus: gpus)
        self.assertTrue(self.host.lacks_vfs())
        self.host.make_vfs(())
        self.assertFalse(self.host.lacks_vfs())

    def test_only_gpus_that_would_get_vfs_are_asked_for(self):
        self.host = self.make_host(self.machine, {'8086:56c0': 4})
        first, second = self.functions()
        self.host.kernel.set_vfs(first.address, 2)
        self.host.make_vfs({second.id}, self.fail)
        refused = mock.Mock(return_value=())
        self.host.make_vfs((), refused)
        refused.assert_called_once_with([second.id])

    def test_no_gpu_gets_vfs_if_nobody_says_which_may(self):
        self.host = self.make_host(self.machine, {'8086:56c0': 4})
        self.assertRaises(
            exception.ConductorUnavailable, self.host.make_vfs, (),
            mock.Mock(side_effect=exception.ConductorUnavailable(
                method='vfs_refused', timeout=60)))
        self.assertEqual([], self.host.kernel.written)

    def test_number_of_vfs_that_exist_stays(self):
        self.host = self.make_host(self.machine, {'8086:56c0': 4})
        self.host.kernel.set_vfs(self.functions()[0].address, 2)
        self.host.make_vfs(())
        pfs = [gpu for gpu in self.functions() if gpu.pf is None]
        self.assertEqual([2, 4], [pf.sriov_numvfs for pf in pfs])

    def test_lock_of_a_device_is_not_waited_for(self):
        self.useFixture(locked.LockedAttributes())
        self.host = self.make_host(self.machine, {'8086:56c0': 4})
        for _ in range(2):
            self.host.make_vfs(())
            self.assertEqual([4, 4], [
                gpu.sriov_numvfs for gpu in self.functions()
                if gpu.pf is None])
        gpu = self.functions()[0]
        self.host.kernel.set_vfs(gpu.address, 0)
        self.assertEqual(0, self.functions()[0].sriov_numvfs)
        self.host.prepare(self.device(gpu))

    def test_no_vfs_are_made_unless_configured(self):
        self.host.make_vfs(())
        self.assertEqual([], self.kernel.written)


class VariantTest(LocalHostCase):
    """A GPU that needs a VFIO driver of its own."""

    machine = 'wide-domains'

    def setUp(self):
        super().setUp()
        self.grace, self.other = self.functions()
        self.assertEqual('2342', self.grace.device)

    def drivers(self):
        return [function.driver for function in self.functions()]

    def test_gpu_is_assigned_and_given_back_by_its_vfio_driver(self):
        for function in (self.grace, self.other):
            self.host.prepare(self.device(function))
        self.assertEqual(['nvgrace_gpu_vfio_pci', 'vfio-pci'], self.drivers())
        device = self.device(self.grace)
        self.host.prepare(device)
        self.assertTrue(self.host.clean(device).passed)

    def test_clean_gpu_is_unbound_from_its_vfio_driver(self):
        device = self.device(self.grace)
        self.host.prepare(device)
        self.assertTrue(self.host.clean(device).passed)
        self.host.give_back(device)
        self.assertEqual([None, None], self.drivers())

    def test_gpu_without_its_vfio_driver_is_not_offered(self):
        os.unlink(f'{self.root}/{vfio_drivers.ALIASES}')
        grace, other = self.host.discover(self.host.scan())
        reason = gpu_rules.unassignable_reason(grace, None)
        self.assertIn('needs VFIO driver nvgrace-gpu-vfio-pci', reason)
        self.assertIsNone(gpu_rules.unassignable_reason(other, None))
        exc = self.assertRaises(
            exception.HostError, self.host.prepare, self.device(grace))
        self.assertIn(reason, str(exc))
        self.assertEqual([None, None], self.drivers())
        # A module that is loaded by hand is enough.
        fake_kernel.add_driver(
            pathlib.Path(self.root), 'nvgrace-gpu-vfio-pci')
        self.assertTrue(self.host.changed())
        self.host.prepare(self.device(grace))
        self.assertEqual(['nvgrace-gpu-vfio-pci', None], self.drivers())

    def test_gpu_of_a_variant_gets_no_vfs(self):
        self.host = self.make_host('intel-flex170-2', {'8086:56c0': 4})
        machine.write_aliases(
            ['vfio_pci:v00008086d000056C0sv*sd*bc*sc*i* xe_vfio_pci'],
            pathlib.Path(self.root))
        first, second = self.functions()
        self.host.binder.bind(first)
        self.host.make_vfs(())
        self.assertEqual('xe-vfio-pci', self.functions()[0].driver)
        self.assertEqual({second.id}, {
            vf.pf for vf in self.functions() if vf.pf})


class SampledAtTest(LocalHostCase):
    """A report of a driver is as old as the moment before it was read."""

    machine = 'nvidia-t4-2'

    def setUp(self):
        super().setUp()
        self.numbers = []
        self.next = self.host._next_sample

    def note(self, function):
        """Let a function note a number of its own while it reads."""
        def noted(*args):
            self.numbers.append(self.next())
            return function(*args)
        return noted

    def sampled_before(self, capacity):
        self.assertEqual(self.numbers[0][0], capacity.sampled_at[0])
        self.assertEqual(self.numbers[0][1] - 1, capacity.sampled_at[1])

    def test_report_of_a_scan_has_the_number_from_before_it(self):
        with fixtures.MockPatch('gpgpu_plugin.host.discovery.scanner.scan',
                                self.note(scanner.scan)):
            found = self.host.scan().driver_capacities
        self.assertEqual(2, len(found))
        for capacity in found.values():
            self.sampled_before(capacity)

    def test_report_of_one_gpu_has_the_number_from_before_it(self):
        gpu = self.functions()[0]
        with fixtures.MockPatch(
                'gpgpu_plugin.host.discovery.vgpu_sysfs.read_driver_capacity',
                self.note(vgpu_sysfs.read_driver_capacity)):
            [capacity] = self.host.driver_capacity(
                [self.device(gpu, 'T4-4Q')]).values()
        self.sampled_before(capacity)

    def test_passthrough_device_has_no_report(self):
        self.assertEqual({}, self.host.driver_capacity(
            [self.device(self.functions()[0])]))

    def test_report_that_cannot_be_read_leaves_out_one_gpu_alone(self):
        gpus = self.functions()
        read = vgpu_sysfs.read_driver_capacity
        for error in (OSError(5, 'Input/output error'), ValueError('x')):
            def fail(sysfs, address, stable_id, error=error):
                if address == gpus[0].address:
                    raise error
                return read(sysfs, address, stable_id)
            with fixtures.MockPatch(
                    'gpgpu_plugin.host.discovery.vgpu_sysfs'
                    '.read_driver_capacity', fail):
                self.assertEqual({gpus[1].id}, set(self.host.driver_capacity(
                    [self.device(gpu, 'T4-4Q') for gpu in gpus])))
