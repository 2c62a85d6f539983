# SPDX-License-Identifier: Apache-2.0
"""Tests of the privileged wait for a GPU that clears its memory."""

import errno

import fixtures
from oslo_privsep.test import fixture as privsep_fixture

from gpgpu_plugin import nvidia
from gpgpu_plugin import privsep
from gpgpu_plugin.privsep import vfio
from gpgpu_plugin.privsep import vfio_device
from tests.unit.privsep import test_vfio

CLEAR, BOOT = 0x100b20, 0x118234
H100_BOOT = 0x200bc


class ResetAndWaitTest(test_vfio.VFIOCase):

    def setUp(self):
        super().setUp()
        self.be('10de', '1eb8')
        self.kernel.registers = {CLEAR: [1, 0, 0, 1], BOOT: [0, 0x3ff]}
        # No test waits.
        self.useFixture(fixtures.MockPatchObject(vfio, 'time', self))
        self.now = 100.0

    def sleep(self, seconds):
        self.now += seconds

    def monotonic(self):
        return self.now

    def be(self, vendor, device):
        for name, value in (('vendor', vendor), ('device', device)):
            self.write(self.gpu, name, f'0x{value}')

    def wait(self, functions=None):
        return nvidia.ClearReading(*vfio.reset_and_wait(
            self.root, self.gpu, functions or [self.gpu, self.audio]))

    def test_registers_are_read_around_the_reset_in_one_open_device(self):
        opened = []
        resets = []
        pread = self.kernel.pread

        def note(fd, length, offset):
            resets.append(self.was_reset())
            opened.append(fd)
            return pread(fd, length, offset)
        self.useFixture(fixtures.MockPatchObject(self.kernel, 'pread', note))
        self.assertEqual(
            nvidia.ClearReading(before=1, first=0, boot=0x3ff, clear=1,
                                milliseconds=10), self.wait())
        self.assertTrue(self.was_reset())
        self.assertEqual(1, len(set(opened)))
        self.assertIs(False, resets[0])
        self.assertIs(True, resets[-1])
        self.assertEqual(1, [number for number, _ in self.kernel.calls].count(
            vfio_device.VFIO_GROUP_GET_DEVICE_FD))
        self.assertEqual({}, self.kernel.files)

    def test_gpu_that_has_not_booted_is_not_cleared(self):
        """Before the firmware has booted, its last clear has not begun."""
        self.kernel.registers = {CLEAR: [1], BOOT: [0, 0, 0, 0x3ff]}
        self.assertEqual(30, self.wait().milliseconds)

    def test_wait_ends_although_it_is_not_cleared(self):
        for clear, boot in ((0, 0x3ff), (0xffffffff, 0xffffffff),
                            (0xbadf0201, 0x3ff), (1, 0)):
            self.kernel.registers = {CLEAR: [clear], BOOT: [boot]}
            found = self.wait()
            self.assertEqual((boot, clear), (found.boot, found.clear))
            self.assertGreaterEqual(found.milliseconds, 30000)
        self.assertEqual({}, self.kernel.files)

    def test_gpu_that_does_not_answer_at_first_is_waited_for(self):
        off = 0xffffffff
        self.kernel.registers = {
            CLEAR: [1, off, off, off, 0, 1], BOOT: [off, off, 0x3ff]}
        found = self.wait()
        self.assertEqual((off, 1), (found.first, found.clear))

    def test_registers_are_those_of_the_model(self):
        self.be('10de', '2330')
        self.kernel.registers = {CLEAR: [1], H100_BOOT: [0xff]}
        self.assertEqual(0xff, self.wait().boot)
        self.be('10de', '2bb5')
        self.kernel.registers = {0x8a004c: [1], 0xad00bc: [0xff]}
        self.assertEqual(1, self.wait().clear)

    def test_unknown_model_is_refused_before_it_is_opened(self):
        for vendor, device in (('10de', '1db6'), ('1002', '2330')):
            self.be(vendor, device)
            self.refused(vfio.reset_and_wait,
                         [self.gpu, self.audio],
                         words=(f'no register of {vendor}:{device}',))
        self.assertEqual([], self.kernel.calls)

    def test_companion_and_gpu_in_use_are_refused(self):
        exc = self.assertRaises(
            PermissionError, vfio.reset_and_wait, self.root,
            self.audio, [self.gpu, self.audio])
        self.assertIn('not a GPU', str(exc))
        self.write(self.gpu, 'enable', '1')
        self.refused(vfio.reset_and_wait, [self.gpu, self.audio],
                     words=('a process has it open',))
        self.assertEqual([], self.kernel.calls)

    def test_reset_beyond_the_card_is_refused(self):
        self.refused(vfio.reset_and_wait, [self.gpu],
                     words=(self.audio, 'does not name'))

    def test_small_bar_has_no_register(self):
        self.kernel.registers = {}
        exc = self.assertRaises(OSError, self.wait)
        self.assertEqual(errno.ENXIO, exc.errno)
        self.assertIn('BAR 0 has 128 bytes', str(exc))
        self.assertFalse(self.was_reset())
        self.assertEqual({}, self.kernel.files)

    def test_other_root_is_refused_by_the_daemon(self):
        self.useFixture(fixtures.MockPatchObject(
            privsep.sys_admin_pctxt, 'client_mode', True))
        self.useFixture(privsep_fixture.UnprivilegedPrivsepFixture(
            privsep.sys_admin_pctxt, {}))
        self.assertRaises(
            privsep.HelperUnavailable, privsep.call,
            vfio.reset_and_wait, f'{self.root}/../sys', self.gpu,
            [self.gpu, self.audio])
        answer = privsep.call(
            vfio.reset_and_wait, self.root, self.gpu,
            [self.gpu, self.audio])
        self.assertEqual((1, 0x3ff, 1), (
            answer[0], answer[2], answer[3]))
