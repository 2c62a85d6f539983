# SPDX-License-Identifier: Apache-2.0
"""Tests of reading labels of slots in SMBIOS, on a fake machine."""

import errno
import os
import pathlib
import shutil

import fixtures
from oslotest import base

from gpgpu_plugin import privsep
from gpgpu_plugin import smbios
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.host.fake import machine
from tests.fixtures import smbios as firmware
from tests.fixtures import unprivileged

BOTH = ['CPU1 SLOT2', 'CPU1 SLOT6']
UNREADABLE = 'labels of slots in SMBIOS are unknown'


class SlotLabelsTest(base.BaseTestCase):
    """Two cards with a switch each, in slots that sysfs does not have."""

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        machine.build(machine.load('amd-v620-2'), self.root)
        self.path = pathlib.Path(self.root, smbios.TABLE)
        self.path.parent.mkdir(parents=True)
        self.path.write_bytes(firmware.table(
            # More than the kernel returns at once.
            firmware.structure(11, b'\x01', 'x' * 9000),
            # The GPU in the one slot, the card's switch in the other.
            firmware.slot('CPU1 SLOT2', '0000:43:00.0'),
            firmware.slot('CPU1 SLOT6', '0000:44:00.0')))
        self.opened, self.helped, self.error = [], [], None
        self.host = fake_host.FakeHost(self.root)
        self.useFixture(fixtures.MockPatchObject(
            self.host.binder, '_read_file', self.helper))
        original = os.open

        def opened(path, *args, **kwargs):
            if str(path) == str(self.path):
                self.opened.append(path)
            return original(path, *args, **kwargs)
        self.useFixture(fixtures.MonkeyPatch('os.open', opened))

    def helper(self, path):
        """Read a file with root's rights."""
        if path == smbios.TABLE:
            self.helped.append(path)
            if self.error is not None:
                raise self.error
            return smbios.selected(self.path.read_bytes())
        return pathlib.Path(self.root, path).read_bytes()

    def forget_slots(self):
        shutil.rmtree(f'{self.root}/bus/pci/slots')

    def be_nova(self):
        self.useFixture(unprivileged.Unprivileged())

    def slots(self):
        return [function.slot for function in self.host.scan().functions
                if pci.can_be_gpu(function.class_code)]

    def problems(self):
        return [problem for problem in self.host.scan().problems
                if problem.startswith(UNREADABLE)]

    def test_smbios_is_not_read_where_sysfs_has_all_slots(self):
        self.be_nova()
        self.assertEqual(['2', '6'], self.slots())
        self.assertEqual(([], []), (self.opened, self.helped))

    def test_root_and_nova_find_the_same_and_read_once(self):
        self.forget_slots()
        self.assertEqual(BOTH, self.slots())
        self.assertEqual((1, []), (len(self.opened), self.helped))
        self.slots()
        self.host.inspect()
        self.assertEqual((1, []), (len(self.opened), self.helped))
        self.host = fake_host.FakeHost(self.root)
        self.useFixture(fixtures.MockPatchObject(
            self.host.binder, '_read_file', self.helper))
        self.be_nova()
        for _ in range(2):
            self.assertEqual(BOTH, self.slots())
        self.assertEqual(1, len(self.helped))

    def test_vf_is_in_the_slot_of_its_pf(self):
        self.forget_slots()
        gpu = next(function for function in self.host.scan().functions
                   if function.slot == 'CPU1 SLOT2')
        # Each VF is a device of its own.
        folder = pathlib.Path(self.root, 'bus/pci/devices', gpu.address)
        (folder / 'sriov_offset').write_text('8\n')
        (folder / 'sriov_stride').write_text('8\n')
        self.host.kernel.set_vfs(gpu.address, 2)
        self.assertEqual(['CPU1 SLOT2'] * 3 + ['CPU1 SLOT6'], self.slots())

    def test_host_without_smbios_has_no_labels_and_no_problem(self):
        self.forget_slots()
        self.path.unlink()
        self.be_nova()
        for _ in range(2):
            self.assertEqual([None, None], self.slots())
        self.assertEqual([], self.problems())
        self.assertEqual((1, []), (len(self.opened), self.helped))

    def test_helper_that_does_not_start_is_asked_again(self):
        self.forget_slots()
        self.be_nova()
        self.error = privsep.HelperUnavailable(
            errno.EPERM, 'the privileged helper does not start')
        [problem] = self.problems()
        self.assertIn('does not start', problem)
        self.assertEqual([None, None], self.slots())
        self.error = None
        self.assertEqual(BOTH, self.slots())
        self.assertEqual([], self.problems())

    def test_table_that_cannot_be_read_is_read_once(self):
        self.forget_slots()
        self.be_nova()
        self.error = OSError(errno.EIO, 'Input/output error')
        for _ in range(2):
            [problem] = self.problems()
            self.assertIn('Input/output error', problem)
        self.assertEqual(1, len(self.helped))
        self.host = fake_host.FakeHost(self.root)
        self.path.unlink()
        self.path.symlink_to(self.path.name)
        self.assertEqual(1, len(self.problems()))
