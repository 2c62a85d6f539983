# SPDX-License-Identifier: Apache-2.0
"""Tests of binding, resets and VFs, on the fake kernel."""

import dataclasses
import errno
import logging
import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin import privsep
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import machine
from gpgpu_plugin.host.vfio import binding
from tests.fixtures import locked

CATCH_ALL = 'vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci'


class BindingCase(base.BaseTestCase):

    machine = 'intel-flex170-2'

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        machine.build(machine.load(self.machine), self.root)
        self.kernel = fake_kernel.FakeKernel(self.root)
        self.sysfs = sysfs.Sysfs(self.root)
        self.binder = self.make_binder()
        self.gpu = next(
            function for function in scanner.scan(self.sysfs).functions
            if pci.can_be_gpu(function.class_code) and function.driver)
        self.folder = f'bus/pci/devices/{self.gpu.address}'

    def make_binder(self, **parts):
        return binding.Binder(**{
            'sysfs': self.sysfs, 'write': self.kernel.write,
            'load': self.kernel.load_vfio, 'read': lambda path: b'',
            'make_nvidia_vfs': self.kernel.sriov_manage, **parts})

    def driver(self):
        return self.sysfs.link(f'{self.root}/{self.folder}/driver')

    def override(self):
        return self.sysfs.read(f'{self.root}/{self.folder}/driver_override')

    def refused(self, kind, method, *words):
        exc = self.assertRaises(kind, method, self.gpu)
        self.assertIs(kind, type(exc))
        for word in words:
            self.assertIn(word, str(exc))


class BindTest(BindingCase):

    def test_bound_function_has_the_driver_and_the_override(self):
        self.binder.bind(self.gpu)
        self.assertEqual(('vfio-pci', 'vfio-pci'),
                         (self.driver(), self.override()))

    def test_bound_function_is_not_bound_again(self):
        self.binder.bind(self.gpu)
        self.kernel.written.clear()
        self.binder.bind(self.gpu)
        self.assertEqual([f'{self.folder}/driver_override'],
                         self.kernel.written)

    def test_lock_of_a_device_is_not_waited_for(self):
        self.useFixture(locked.LockedAttributes())
        before = self.driver()
        self.binder.bind(self.gpu)
        self.binder.give_back(self.gpu)
        self.assertEqual(before, self.driver())
        self.assertEqual(4, self.binder.make_vfs(self.gpu, 4))

    def test_bound_function_without_override_gets_it(self):
        # Somebody cleared it; a probe would bind another driver.
        self.binder.bind(self.gpu)
        self.kernel.write(f'{self.folder}/driver_override', '')
        self.binder.bind(self.gpu)
        self.assertEqual('vfio-pci', self.override())

    def test_unbound_function_has_no_driver_and_no_override(self):
        self.binder.bind(self.gpu)
        for _ in range(2):
            self.binder.unbind(self.gpu)
            self.assertEqual((None, ''), (self.driver(), self.override()))

    def test_unbind_keeps_other_drivers(self):
        before = self.driver()
        self.kernel.written.clear()
        self.binder.unbind(self.gpu)
        self.assertEqual(before, self.driver())
        self.assertEqual([f'{self.folder}/driver_override'],
                         self.kernel.written)

    def test_function_given_back_has_its_former_driver(self):
        before = self.driver()
        self.binder.bind(self.gpu)
        self.binder.give_back(self.gpu)
        self.assertEqual((before, ''), (self.driver(), self.override()))

    def test_missing_vfio_pci_is_loaded(self):
        loaded = []
        for name in ('bind', 'unbind'):
            os.unlink(f'{self.root}/bus/pci/drivers/vfio-pci/{name}')
        os.rmdir(f'{self.root}/bus/pci/drivers/vfio-pci')

        def load(module):
            loaded.append(module)
            self.kernel.load_vfio(module)
        self.make_binder(load=load).bind(self.gpu)
        self.assertEqual((['vfio-pci'], 'vfio-pci'), (loaded, self.driver()))


class VariantTest(BindingCase):
    """Tests with a VFIO driver of its own for the GPU."""

    def setUp(self):
        super().setUp()
        self.alias('xe_vfio_pci')

    def alias(self, module):
        machine.write_aliases(
            [f'vfio_pci:v00008086d0000{self.gpu.device.upper()}'
             f'sv*sd*bc*sc*i* {module}', CATCH_ALL],
            pathlib.Path(self.root))

    def bind(self):
        self.binder.bind(self.gpu)
        return self.driver(), self.override()

    def test_loaded_and_bound_by_the_driver_s_name(self):
        for module, driver in (
                ('xe_vfio_pci', 'xe-vfio-pci'),
                ('nvgrace_gpu_vfio_pci', 'nvgrace_gpu_vfio_pci')):
            self.alias(module)
            self.assertEqual((driver, driver), self.bind())

    def test_loaded_once(self):
        self.bind()
        self.binder.give_back(self.gpu)
        self.binder = self.make_binder(load=None)
        self.assertEqual(('xe-vfio-pci', 'xe-vfio-pci'), self.bind())

    def test_unbound_from_the_variant(self):
        before = self.driver()
        self.bind()
        self.binder.unbind(self.gpu)
        self.assertEqual((None, ''), (self.driver(), self.override()))
        self.bind()
        self.binder.give_back(self.gpu)
        self.assertEqual((before, ''), (self.driver(), self.override()))

    def test_bound_anew_from_vfio_pci(self):
        self.alias('vfio_pci')
        self.assertEqual(('vfio-pci', 'vfio-pci'), self.bind())
        self.alias('xe_vfio_pci')
        self.assertEqual(('xe-vfio-pci', 'xe-vfio-pci'), self.bind())

    def test_open_function_keeps_its_vfio_driver(self):
        self.alias('vfio_pci')
        self.bind()
        pathlib.Path(self.root, self.folder, 'enable').write_text('1\n')
        self.alias('xe_vfio_pci')
        self.kernel.written.clear()
        self.assertEqual(('vfio-pci', 'vfio-pci'), self.bind())
        self.assertEqual([f'{self.folder}/driver_override'],
                         self.kernel.written)

    def test_variant_that_cannot_be_loaded_is_named(self):
        def fail(module):
            raise OSError(errno.EIO, f'modprobe {module} failed')
        self.binder = self.make_binder(load=fail)
        before = self.driver(), self.override()
        self.refused(exception.HostNotReady, self.binder.bind,
                     'xe_vfio_pci', 'cannot be loaded')
        self.assertEqual(before, (self.driver(), self.override()))

    def test_unreadable_aliases_are_logged_and_vfio_pci_is_bound(self):
        path = pathlib.Path(self.root, vfio_drivers.ALIASES)
        path.unlink()
        path.symlink_to(path.name)
        logged = self.useFixture(fixtures.FakeLogger(level=logging.WARNING))
        self.assertEqual(('vfio-pci', 'vfio-pci'), self.bind())
        for words in (self.gpu.address, str(path), 'Make the file readable'):
            self.assertIn(words, logged.output)
        grace = dataclasses.replace(
            self.gpu, vendor='10de', device='2342')
        exc = self.assertRaises(
            exception.HostNotReady, self.binder.load_driver, grace)
        self.assertIn('nvgrace_gpu_vfio_pci', str(exc))

    def test_module_without_a_driver_is_refused(self):
        self.binder = self.make_binder(load=lambda module: None)
        self.refused(exception.HostNotReady, self.binder.bind, 'xe_vfio_pci',
                     'has no driver of it')


class ReprobeTest(BindingCase):

    def test_function_is_unbound_and_bound_to_its_driver(self):
        driver = self.driver()
        self.binder.reprobe(self.gpu)
        self.assertEqual(driver, self.driver())
        self.assertEqual(
            [f'bus/pci/drivers/{driver}/{name}'
             for name in ('unbind', 'bind')], self.kernel.written)

    def test_function_without_driver_is_not_written(self):
        self.binder.bind(self.gpu)
        self.binder.unbind(self.gpu)
        self.kernel.written.clear()
        self.binder.reprobe(self.gpu)
        self.assertEqual([], self.kernel.written)

    def test_driver_that_does_not_bind_again_is_an_error(self):
        self.kernel.ignored.add(f'{self.driver()}/bind')
        self.refused(exception.HostError, self.binder.reprobe,
                     self.gpu.address, 'did not bind to it again')


class VFsTest(BindingCase):

    def test_created_vfs_are_counted(self):
        self.assertEqual(4, self.binder.make_vfs(self.gpu, 4))

    def test_write_without_effect_is_an_error(self):
        self.kernel.ignored.add('sriov_numvfs')
        exc = self.assertRaises(
            exception.HostError, self.binder.make_vfs, self.gpu, 4)
        self.assertIn(self.gpu.address, str(exc))
        self.assertIn('no VFs after 4 were created', str(exc))


class ErrorsTest(BindingCase):

    def test_refusal_of_the_kernel_names_file_and_reason(self):
        self.kernel.faults['reset'] = errno.ENOTTY
        self.refused(exception.HostError, self.binder.reset,
                     f'{self.folder}/reset', "cannot write '1'",
                     os.strerror(errno.ENOTTY))

    def test_missing_helper_does_not_blame_the_device(self):
        def fail(*args):
            raise privsep.HelperUnavailable(errno.EIO, 'no helper')
        binder = self.make_binder(write=fail, read=fail)
        for method in (binder.reset, binder.config):
            self.refused(exception.HostNotReady, method, 'no helper')

    def test_device_that_the_host_uses_is_not_blamed(self):
        def fail(*args):
            raise privsep.UsedByHost(1, 'process 812 (dcgm) has it open')
        binder = self.make_binder(write=fail, read=fail)
        self.refused(exception.HostNotReady, binder.reset,
                     'the host uses it: process 812 (dcgm)')
