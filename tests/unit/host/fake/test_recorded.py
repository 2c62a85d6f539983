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
"""Machines that were recorded: the lab's, of which the kernel made all."""

import pathlib
import shutil

import fixtures
from oslotest import base

from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.host.fake import machine
from tests.contract import mdev
from tests.fixtures import reported
from tests.unit.host import test_contract

LAB = 'recorded-qemu-lab'


class LabCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        self.backend = fake_host.FakeHost.for_machine(LAB, self.root)
        self.functions = {
            each.address: each
            for each in reported.functions(self.backend.scan())}

    def write(self, path, value):
        self.backend.kernel.write(path, value)


class LabTest(LabCase):

    def test_what_the_kernel_made(self):
        pf = self.functions['0000:23:00.0']
        self.assertEqual(
            [(f'{pf.id}/vf{number}', '1b36', None, 0) for number in range(4)],
            [(each.id, each.vendor, each.driver, each.numa_node)
             for each in self.functions.values() if each.pf == pf.id])
        self.assertEqual(
            {'mbochs': 2, 'mtty': 1},
            {each.address: len(each.existing_vgpus)
             for each in self.functions.values() if each.existing_vgpus})
        self.assertEqual((), self.backend.scan().problems)

    def test_rules_are_those_of_the_kernel(self):
        # With a rule, what is available is written anew.
        recorded = {
            folder: entries['available_instances']
            for folder, entries in machine.load(LAB).tree.items()
            if 'available_instances' in entries}
        self.assertEqual(5, len(recorded))
        for folder, available in recorded.items():
            self.assertEqual(available, pathlib.Path(
                self.root, folder, 'available_instances').read_text().strip(),
                folder)

    def test_vfs_go_and_come_back(self):
        before = [each for each in self.functions.values() if each.pf]
        path = 'bus/pci/devices/0000:23:00.0/sriov_numvfs'
        self.write(path, '0')
        self.assertFalse([
            each for each in self.backend.scan().functions if each.pf])
        self.write(path, '4')
        after = [each for each in self.backend.scan().functions if each.pf]
        self.assertEqual(
            [(each.id, each.address, each.vendor, each.device)
             for each in before],
            [(each.id, each.address, each.vendor, each.device)
             for each in after])


class LabMdevContractTest(LabCase, mdev.MdevContract):
    """mbochs as it is in the lab, where these tests run, too."""

    name = 'mbochs'
    types = {'mbochs-small': 64, 'mbochs-medium': 16, 'mbochs-large': 4}

    def setUp(self):
        super().setUp()
        for each in (*self.functions['mbochs'].existing_vgpus,
                     *self.functions['mtty'].existing_vgpus):
            self.write(f'bus/mdev/devices/{each}/remove', '1')
        self.parent = reported.function(sysfs.Sysfs(self.root), self.name)


class LabMttyContractTest(LabMdevContractTest):

    name = 'mtty'
    types = {'mtty-1': 24, 'mtty-2': 12}


class LabPassthroughContractTest(test_contract.FakeKernelContractTest):
    """Displays, as the lab's own test has them: without their driver."""

    vendor = '1234'

    def setUp(self):
        super().setUp()
        for each in self.backend.scan().functions:
            if each.driver == 'bochs-drm':
                self.write('bus/pci/drivers/bochs-drm/unbind', each.address)
        shutil.rmtree(f'{self.root}/bus/pci/drivers/bochs-drm')
        self.backend.kernel.load_vfio()

    def machine(self):
        return LAB
