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
"""VFs that are vGPUs as they are, on the fake kernel."""

import os

import fixtures

from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.fake import host as fake_host
from tests.unit.host import vgpu_base


class PlainVFTest(vgpu_base.VGPUCase):

    machine = 'intel-flex170-2'
    numvfs = {'8086:56c0': 4}.items()

    def test_one_of_so_many(self):
        [pf, *_] = self.functions()
        self.assertEqual(('vf', [('vf4', 4)]), (pf.vgpu_mechanism, [
            (each.name, each.max_instances) for each in pf.vgpu_types]))
        vf = next(each for each in self.functions() if each.pf == pf.id)
        device = host_base.HostDevice(
            assignment_uuid='a', stable_id=vf.id, address=vf.address,
            vgpu_type='vf4')
        self.twice(self.host.prepare, device)
        self.assertEqual((vf.address,),
                         self.host.attachment(device).functions)
        # Nobody tells but how many VFs there are.
        self.assertEqual({}, self.told(device))
        self.assertIsNone(pf.driver_capacity)
        self.twice(self.host.release, device)
        self.host.kernel.written.clear()
        self.assertTrue(self.host.clean(device).passed)
        self.assertIn(f'bus/pci/devices/{vf.address}/reset',
                      self.host.kernel.written)

    def test_a_vendors_type_is_nothing_that_a_plain_vf_has(self):
        vf = next(each for each in self.functions() if each.pf)
        self.refused(self.host.prepare, host_base.HostDevice(
            assignment_uuid='a', stable_id=vf.id, address=vf.address,
            vgpu_type='vf-4Q'), "vendor's driver", 'It has no driver')

    def test_more_vfs_than_a_card_can_have(self):
        root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        host = fake_host.FakeHost.for_machine(
            self.machine, root, {'8086:56c0': 32})
        log = self.useFixture(fixtures.FakeLogger())
        host.make_vfs(())
        self.assertIn('has none of its 32 VFs', log.output)


class NoGPUTest(vgpu_base.VGPUCase):
    """VFs of what is no GPU, so that a scan does not say how many it has."""

    machine = 'intel-flex170-2'

    def setUp(self):
        super().setUp()
        self.pfs = self.functions()
        for each in self.pfs:
            with open(f'{self.root}/{self.path(each)}/class', 'w') as file:
                file.write('0x010802\n')
        self.host = fake_host.FakeHost(self.root, {'8086:56c0': 4})

    @staticmethod
    def path(function):
        return f'bus/pci/devices/{function.address}'

    def vfs(self):
        return [each for each in self.host.scan().functions if each.pf]

    def test_vfs_are_made_and_only_once(self):
        self.assertIsNone(self.host.scan().functions[-1].sriov_numvfs)
        for _ in range(2):
            self.host.make_vfs(())
            self.assertEqual(4 * len(self.pfs), len(self.vfs()))
        self.assertEqual([f'{self.path(each)}/sriov_numvfs'
                          for each in self.pfs], self.host.kernel.written)

    def test_busy_or_not_asked_for(self):
        self.host.make_vfs([each.id for each in self.pfs[1:]])
        self.assertEqual({self.pfs[0].id}, {each.pf for each in self.vfs()})

    def test_number_that_cannot_be_read(self):
        path = f'{self.root}/{self.path(self.pfs[0])}/sriov_numvfs'
        os.unlink(path)
        os.symlink('sriov_numvfs', path)
        log = self.useFixture(fixtures.FakeLogger())
        self.host.make_vfs(())
        self.assertIn(f'{self.pfs[0].address} has none', log.output)
        self.assertEqual({each.id for each in self.pfs[1:]},
                         {each.pf for each in self.vfs()})


class MxGPUTest(vgpu_base.VGPUCase):

    machine = 'amd-v620-2'
    numvfs = {'1002:73a1': 6}.items()

    def test_vfs_have_their_own_ids(self):
        [pf, *_] = [each for each in self.functions() if each.pf is None]
        vfs = [each for each in self.functions() if each.pf == pf.id]
        self.assertEqual(({'73ae'}, 6), (
            {each.device for each in vfs}, len(vfs)))
        self.assertEqual(['vf6'], [each.name for each in pf.vgpu_types])
