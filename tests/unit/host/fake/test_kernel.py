#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""The fake kernel beyond the contract (tests/contract); watch and scanner
notice what it does."""

import errno
import os
import shutil
import uuid

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.discovery import watch
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import machine
from tests.fixtures import reported


class KernelTestCase(base.BaseTestCase):

    machine = 'pcie-l40s-4'

    def setUp(self):
        super().setUp()
        self.root = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'sys')
        self.backend = fake_host.FakeHost.for_machine(self.machine, self.root)
        self.kernel = self.backend.kernel
        self.gpus = [
            each for each in self.scan()
            if pci.can_be_gpu(each.class_code) and each.vendor != '1a03']

    def scan(self):
        return scanner.scan(sysfs.Sysfs(self.root)).functions

    def refused(self, number, path, value):
        exc = self.assertRaises(OSError, self.kernel.write, path, value)
        self.assertEqual(errno.errorcode[number],
                         errno.errorcode[exc.errno])

    def write(self, name, value, gpu=0):
        self.kernel.write(
            f'bus/pci/devices/{self.gpus[gpu].address}/{name}', value)


class ResetTest(KernelTestCase):

    def test_no_way_to_reset(self):
        path = f'bus/pci/devices/{self.gpus[0].address}'
        with open(f'{self.root}/{path}/reset_method', 'w'):
            pass
        self.refused(errno.ENOTTY, f'{path}/reset', '1')

    def test_faults(self):
        self.kernel.faults['reset'] = errno.EIO
        self.refused(errno.EIO, f'bus/pci/devices/{self.gpus[0].address}'
                                '/reset', '1')


class SriovTest(KernelTestCase):

    machine = 'intel-flex170-2'

    def test_numvfs(self):
        path = f'bus/pci/devices/{self.gpus[0].address}/sriov_numvfs'
        self.refused(errno.ERANGE, path, '32')
        self.refused(errno.EINVAL, path, 'x')
        self.kernel.write(path, '31')
        self.refused(errno.EBUSY, path, '4')
        vfs = [each for each in self.scan() if each.pf == self.gpus[0].id]
        self.assertEqual(
            {f'{self.gpus[0].id}/vf{number}' for number in range(31)},
            {each.id for each in vfs})
        # Their config space has no ids, which is not a fault of theirs.
        self.assertEqual({None}, {each.fault for each in vfs})
        self.assertEqual('vf', next(
            each.used_by for each in self.scan()
            if each.id == self.gpus[0].id))
        self.kernel.write(path, '0')
        self.assertFalse([each for each in self.scan() if each.pf])

    def test_nvidias_driver_leaves_them_to_its_program(self):
        root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        host = fake_host.FakeHost.for_machine('nvidia-l40s-vgpu-2', root)
        pf = next(each for each in host.scan().functions
                  if each.sriov_totalvfs)
        self.kernel = host.kernel
        self.refused(errno.ENOENT,
                     f'bus/pci/devices/{pf.address}/sriov_numvfs', '8')
        self.kernel.sriov_manage(pf.address)
        vfs = [each for each in host.scan().functions if each.pf == pf.id]
        self.assertEqual((32, {'nvidia'}), (
            len(vfs), {each.driver for each in vfs}))

    def test_a_vf_is_carved_by_its_driver_alone(self):
        for name, file in (
                ('nvidia-l40s-vgpu-2', 'nvidia/current_vgpu_type'),
                ('nvidia-a100-2', 'mdev_supported_types')):
            root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
            host = fake_host.FakeHost.for_machine(name, root)
            pf = next(each for each in host.scan().functions
                      if each.sriov_totalvfs)
            host.kernel.sriov_manage(pf.address)
            vf = next(each for each in host.scan().functions if each.pf)
            before = host.scan()
            host.prepare(host_base.HostDevice(
                assignment_uuid=str(uuid.uuid4()), stable_id=vf.id,
                address=vf.address, vgpu_type=next(
                    kind.name for each in reported.functions(before)
                    for kind in each.vgpu_types)))
            path = f'{root}/bus/pci/devices/{vf.address}/{file}'
            for end, there in (('unbind', False), ('bind', True)):
                host.kernel.write(
                    f'bus/pci/drivers/nvidia/{end}', vf.address)
                self.assertEqual(there, os.path.exists(path))
            # What was carved is gone, and its room is free.
            self.assertEqual(before, host.scan())

    def test_256_vfs_over_several_buses_have_ids_of_their_own(self):
        root = self.useFixture(fixtures.TempDir()).path
        machine.build(machine.synthetic(pfs=1, vfs=256), root)
        kernel = fake_kernel.FakeKernel(root)
        pf = next(each for each in scanner.scan(sysfs.Sysfs(root)).functions
                  if each.sriov_totalvfs)
        kernel.write(f'bus/pci/devices/{pf.address}/sriov_numvfs', '256')
        vfs = [each for each in scanner.scan(sysfs.Sysfs(root)).functions
               if each.pf]
        self.assertEqual(256, len({each.id for each in vfs}))
        self.assertEqual(2, len({each.address[:7] for each in vfs}))
        self.assertEqual({f'{pf.id}/vf{n}' for n in range(256)},
                         {each.id for each in vfs})


class WatchTest(KernelTestCase):

    machine = 'intel-flex170-2'

    def watch(self):
        made = watch.Watch(sysfs.Sysfs(self.root), scanner.scan(
            sysfs.Sysfs(self.root)))
        self.addCleanup(made.close)
        return made

    def test_nothing_changed(self):
        self.assertFalse(self.watch().changed())

    def test_rebound(self):
        address = self.gpus[0].address
        before = self.watch()
        self.kernel.write('bus/pci/drivers/i915/unbind', address)
        self.assertTrue(before.changed())
        before = self.watch()
        self.write('driver_override', 'vfio-pci')
        self.kernel.write('bus/pci/drivers/vfio-pci/bind', address)
        self.assertTrue(before.changed())

    def test_removed(self):
        before = self.watch()
        self.write('remove', '1')
        self.assertTrue(before.changed())

    def test_numvfs(self):
        before = self.watch()
        self.write('sriov_numvfs', '2')
        self.assertTrue(before.changed())

    def test_few_calls(self):
        made = self.watch()
        calls = []
        for name in ('open', 'readlink', 'read'):
            self.useFixture(fixtures.MonkeyPatch(
                f'os.{name}', lambda *args: calls.append(args)))
        self.assertFalse(made.changed())
        self.assertEqual([], calls)


class FakeHostTest(KernelTestCase):

    def setUp(self):
        super().setUp()
        self.device = host_base.HostDevice(
            assignment_uuid='a', stable_id=self.gpus[0].id,
            address=self.gpus[0].address)

    def driver(self):
        return next(each.driver for each in self.scan()
                    if each.id == self.device.stable_id)

    def test_clean(self):
        self.backend.prepare(self.device)
        self.assertTrue(self.backend.clean(self.device).passed)
        self.assertIsNone(self.driver())
        self.kernel.faults['/reset'] = errno.EIO
        verdict = self.backend.clean(self.device)
        self.assertFalse(verdict.passed)
        self.assertIn('/reset', verdict.evidence)

    def test_busy(self):
        self.kernel.faults['vfio-pci/bind'] = errno.EBUSY
        exc = self.assertRaises(
            exception.HostError, self.backend.prepare, self.device)
        self.assertIn('busy', str(exc))

    def test_machine_is_kept_over_a_restart(self):
        self.backend.prepare(self.device)
        again = fake_host.FakeHost.for_machine(self.machine, self.root)
        again.scan()
        self.assertEqual('vfio-pci', self.driver())

    def test_changed(self):
        self.assertTrue(self.backend.changed())
        self.backend.scan()
        self.assertFalse(self.backend.changed())
        shutil.rmtree(f'{self.root}/bus/pci/devices')
        self.assertTrue(self.backend.changed())
        self.assertRaises(exception.HostError, self.backend.scan)

    def test_half_dead_machine(self):
        root = self.useFixture(fixtures.TempDir()).path
        backend = fake_host.FakeHost.for_machine('broken-l40s-4', root + '/s')
        dead = next(each for each in backend.scan().functions if each.fault)
        self.assertRaises(
            exception.HostError, backend.prepare, host_base.HostDevice(
                assignment_uuid='a', stable_id=dead.id,
                address=dead.address))
