# SPDX-License-Identifier: Apache-2.0
"""Tests of the recorded machine: the lab's, made by a real kernel."""

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
            function.address: function
            for function in reported.functions(self.backend.scan())}

    def write(self, path, value):
        self.backend.kernel.write(path, value)


class LabTest(LabCase):

    def test_functions_and_mdevs_are_those_of_the_kernel(self):
        pf = self.functions['0000:23:00.0']
        self.assertEqual(
            [(f'{pf.id}/vf{number}', '1b36', None, 0) for number in range(4)],
            [
                (
                    function.id,
                    function.vendor,
                    function.driver,
                    function.numa_node,
                )
                for function in self.functions.values()
                if function.pf == pf.id
            ],
        )
        self.assertEqual(
            {'mbochs': 2, 'mtty': 1},
            {
                function.address: len(function.existing_vgpus)
                for function in self.functions.values()
                if function.existing_vgpus
            },
        )
        self.assertEqual((), self.backend.scan().problems)

    def test_rules_give_the_available_instances_of_the_kernel(self):
        # The fake driver writes available_instances by the rule.
        recorded = {
            folder: entries['available_instances']
            for folder, entries in machine.load(LAB).tree.items()
            if 'available_instances' in entries}
        self.assertEqual(5, len(recorded))
        for folder, available in recorded.items():
            self.assertEqual(available, pathlib.Path(
                self.root, folder, 'available_instances').read_text().strip(),
                folder)

    def test_removed_vfs_come_back_with_their_ids(self):
        before = [
            function for function in self.functions.values() if function.pf
        ]
        path = 'bus/pci/devices/0000:23:00.0/sriov_numvfs'
        self.write(path, '0')
        self.assertFalse(
            [
                function
                for function in self.backend.scan().functions
                if function.pf
            ]
        )
        self.write(path, '4')
        after = [
            function
            for function in self.backend.scan().functions
            if function.pf
        ]
        self.assertEqual(
            [(function.id, function.address, function.vendor, function.device)
             for function in before],
            [(function.id, function.address, function.vendor, function.device)
             for function in after])


class LabMdevContractTest(LabCase, mdev.MdevContract):
    """mbochs as it is in the lab, where these tests run, too."""

    name = 'mbochs'
    types = {'mbochs-small': 64, 'mbochs-medium': 16, 'mbochs-large': 4}

    def setUp(self):
        super().setUp()
        for name in (*self.functions['mbochs'].existing_vgpus,
                     *self.functions['mtty'].existing_vgpus):
            self.write(f'bus/mdev/devices/{name}/remove', '1')
        self.parent = reported.function(sysfs.Sysfs(self.root), self.name)


class LabMttyContractTest(LabMdevContractTest):

    name = 'mtty'
    types = {'mtty-1': 24, 'mtty-2': 12}


class LabPassthroughContractTest(test_contract.FakeKernelContractTest):
    """Displays, as the lab's own test has them: without their driver."""

    vendor = '1234'

    def setUp(self):
        super().setUp()
        for function in self.backend.scan().functions:
            if function.driver == 'bochs-drm':
                self.write(
                    'bus/pci/drivers/bochs-drm/unbind', function.address
                )
        shutil.rmtree(f'{self.root}/bus/pci/drivers/bochs-drm')
        self.backend.kernel.load_vfio()

    def machine(self):
        return LAB
