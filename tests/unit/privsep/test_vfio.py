# SPDX-License-Identifier: Apache-2.0
"""Tests of resets and memory tests through VFIO, on a modelled machine."""

import errno
import hashlib
import os
import pathlib
import struct
from unittest import mock

import fixtures
from oslo_privsep.test import fixture as privsep_fixture

from gpgpu_plugin import privsep
from gpgpu_plugin.privsep import vfio
from gpgpu_plugin.privsep import vfio_device
from tests.fixtures import vfio_kernel
from tests.unit.privsep import test_guard

MIB = 1024 ** 2


class VFIOCase(test_guard.GuardCase):
    """A GPU and its audio function, which are bound to vfio-pci and idle."""

    def setUp(self):
        super().setUp()
        self.gpu, self.audio = self.the('11fa'), self.the('0e0b')
        for address in (self.gpu, self.audio):
            self.write(address, 'enable', '0')
            self.bind(address, 'vfio-pci')
        self.kernel = self.useFixture(vfio_kernel.VFIOKernel())
        self.kernel.scope = [(7, 0, 5, 1), (7, 0, 5, 0)]
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.privsep.sysfs.SYSFS_ROOT', self.root))
        self.useFixture(fixtures.MockPatchObject(
            privsep.sys_admin_pctxt, 'client_mode', False))

    def was_reset(self):
        return vfio_device.VFIO_DEVICE_PCI_HOT_RESET in [
            request for request, _ in self.kernel.calls]

    def refused(self, function, *arguments, words):
        exc = self.assertRaises(
            PermissionError, function, self.root, self.gpu, *arguments)
        for word in words:
            self.assertIn(word, str(exc))
        self.assertFalse(self.was_reset())
        self.assertEqual({}, self.kernel.files)


class AllowedTest(VFIOCase):

    CALLS = ((vfio.hot_reset, []), (vfio.memory,), (vfio.firmware,),
             (vfio.write_marks, 'x'), (vfio.try_marks, 'x'),
             (vfio.find_marks, 'x'), (vfio.scrub, MIB))

    def all_refused(self, *words):
        for function, *arguments in self.CALLS:
            self.refused(function, *arguments, words=words)
        self.assertEqual([], self.kernel.calls)

    def test_device_that_a_process_has_open_is_refused(self):
        self.write(self.gpu, 'enable', '1')
        self.all_refused(self.gpu, 'a process has it open')

    def test_device_of_another_driver_is_refused(self):
        self.bind(self.gpu, 'nouveau')
        self.write(self.gpu, 'boot_vga', '0')
        self.all_refused(self.gpu, 'not bound to a VFIO driver')

    def test_memory_of_a_companion_is_none_of_ours(self):
        """What is behind its BARs are registers."""
        for function, *arguments in self.CALLS[1:]:
            exc = self.assertRaises(
                PermissionError, function, self.root, self.audio, *arguments)
            self.assertIn('not a GPU', str(exc))
        self.assertEqual([], self.kernel.calls)

    def test_other_roots_are_refused_by_the_daemon(self):
        self.useFixture(fixtures.MockPatchObject(
            privsep.sys_admin_pctxt, 'client_mode', True))
        self.useFixture(privsep_fixture.UnprivilegedPrivsepFixture(
            privsep.sys_admin_pctxt, {}))
        for function, *arguments in self.CALLS:
            self.assertRaises(
                privsep.HelperUnavailable, privsep.call, function,
                f'{self.root}/../sys', self.gpu, *arguments)
        self.assertEqual(2 * MIB, privsep.call(
            vfio.memory, self.root, self.gpu))


class HotResetTest(VFIOCase):

    def reset_refused(self, functions, *words):
        self.refused(vfio.hot_reset, functions, words=words)

    def test_card_is_reset(self):
        with vfio_device.opened(self.root, self.gpu) as device:
            self.assertEqual([self.audio, self.gpu], [
                member.address for member in device.hot_reset_scope()])
        self.assertFalse(self.was_reset())
        vfio.hot_reset(self.root, self.gpu, [self.audio, self.gpu])
        self.assertTrue(self.was_reset())
        self.assertEqual({}, self.kernel.files)

    def test_function_that_the_caller_does_not_name_is_refused(self):
        self.reset_refused([self.gpu], self.audio, 'does not name')

    def test_function_that_is_not_on_the_card_is_refused(self):
        self.kernel.scope.append((3, 0, 3, 0))
        self.reset_refused([self.gpu, self.audio, '0000:03:00.0'],
                           '0000:03:00.0', 'not on its card')

    def test_member_without_vfio_driver_is_refused(self):
        self.bind(self.audio, 'snd_hda_intel')
        self.reset_refused([self.gpu, self.audio], self.audio,
                           'not bound to a VFIO driver')

    def test_member_that_a_process_has_open_is_refused(self):
        self.write(self.audio, 'enable', '1')
        self.reset_refused([self.gpu, self.audio], self.audio, 'has it open')

    def test_error_of_the_kernel_names_what_vfio_does_not_own(self):
        folder = pathlib.Path(self.root, 'bus/pci/devices')
        for request, number in (
                (vfio_device.VFIO_DEVICE_GET_PCI_HOT_RESET_INFO,
                 errno.EPERM),
                (vfio_device.VFIO_DEVICE_GET_PCI_HOT_RESET_INFO,
                 errno.ENODEV),
                (vfio_device.VFIO_DEVICE_PCI_HOT_RESET, errno.ENOTTY)):
            self.kernel.errors = {request: number}
            exc = self.assertRaises(
                OSError, vfio.hot_reset, self.root, self.gpu,
                [self.gpu, self.audio])
            self.assertEqual((number, self.gpu), (exc.errno, exc.filename))
            self.assertIn(os.strerror(number), exc.strerror)
            self.assertIn('VFIO owns all functions on its bus', exc.strerror)
        self.kernel.errors = {
            vfio_device.VFIO_DEVICE_GET_PCI_HOT_RESET_INFO: errno.EPERM}
        (folder / self.audio / 'iommu_group').unlink()
        exc = self.assertRaises(
            PermissionError, vfio.hot_reset, self.root, self.gpu,
            [self.gpu, self.audio])
        self.assertIn(f'does not own {self.audio} on its bus', exc.strerror)
        self.assertEqual({}, self.kernel.files)


class MarksTest(VFIOCase):

    def marks(self):
        return vfio.find_marks(self.root, self.gpu, 'run 1')

    def test_marks_are_found_until_they_are_overwritten(self):
        self.assertEqual(0, self.marks())
        self.assertEqual(
            (64, 64), vfio.write_marks(self.root, self.gpu, 'run 1'))
        self.assertEqual(64, self.marks())
        self.assertEqual(0, vfio.find_marks(self.root, self.gpu, 'run 2'))
        # On the first and on the last page.
        for start in (0, 2 * MIB - 4096):
            self.assertTrue(any(self.kernel.bar[start:start + 64]))
        vfio.scrub(self.root, self.gpu, MIB)
        self.assertEqual(32, self.marks())
        self.assertEqual({}, self.kernel.files)

    def test_mark_that_is_not_kept_is_not_counted(self):
        self.kernel.stuck = {0}
        self.assertEqual(
            (64, 63), vfio.write_marks(self.root, self.gpu, 'run 1'))
        self.assertEqual(63, self.marks())

    def test_small_memory_is_not_marked(self):
        self.kernel.bar = bytearray(MIB // 2)
        self.assertEqual(
            (0, 0), vfio.write_marks(self.root, self.gpu, 'run 1'))
        self.assertEqual(0, self.marks())
        self.assertEqual(MIB // 2, vfio.memory(self.root, self.gpu))


    def test_marks_that_were_only_tried_are_erased(self):
        self.assertEqual(
            (64, 64), vfio.try_marks(self.root, self.gpu, 'run 1'))
        self.assertFalse(any(self.kernel.bar))
        self.kernel.stuck = {0}
        self.assertEqual(
            (64, 63), vfio.try_marks(self.root, self.gpu, 'run 1'))
        self.kernel.bar = bytearray(MIB // 2)
        self.assertEqual(
            (0, 0), vfio.try_marks(self.root, self.gpu, 'run 1'))

    def test_registers_are_not_marked(self):
        """A BAR that is not prefetchable."""
        struct.pack_into('<I', self.kernel.config, 0x14, 0)
        self.assertEqual(0, vfio.memory(self.root, self.gpu))
        self.assertEqual(
            (0, 0), vfio.write_marks(self.root, self.gpu, 'run 1'))
        self.assertFalse(any(self.kernel.bar))


class FirmwareTest(VFIOCase):

    def test_hashes_of_what_there_is(self):
        vpd = pathlib.Path(self.root, 'bus/pci/devices', self.gpu, 'vpd')
        vpd.unlink(missing_ok=True)
        self.assertEqual(('', ''), vfio.firmware(self.root, self.gpu))
        self.kernel.rom[:] = b'\x55\xaa' + os.urandom(MIB)
        vpd.write_bytes(b'serial' + bytes(2000))
        self.assertEqual(
            (hashlib.sha256(self.kernel.rom).hexdigest(),
             hashlib.sha256(b'serial' + bytes(1018)).hexdigest()),
            vfio.firmware(self.root, self.gpu))
        self.assertEqual({}, self.kernel.files)


class ScrubTest(VFIOCase):

    def scrub(self, length=2 * MIB):
        return vfio.scrub(self.root, self.gpu, length)

    def test_only_the_memory_is_filled(self):
        self.kernel.bar[:] = b'x' * len(self.kernel.bar)
        self.assertEqual(MIB + 10, self.scrub(MIB + 10))
        self.assertEqual(bytes(MIB + 10) + b'x', self.kernel.bar[:MIB + 11])

    def test_byte_that_does_not_keep_what_is_written_is_not_counted(self):
        self.kernel.bar[7] = self.kernel.bar[MIB] = 1
        self.kernel.stuck = {7, MIB}
        # One of them may be right by chance in the first round.
        self.assertEqual(2 * MIB - 2, self.scrub())

    def test_less_memory_than_the_bar_shows_is_noticed(self):
        """Its pages appear several times: each write is another's, too."""
        pwrite = self.kernel.pwrite

        def alias(fd, data, offset):
            written = pwrite(fd, data, offset)
            self.kernel.bar[MIB:] = self.kernel.bar[:MIB]
            return written
        self.useFixture(fixtures.MockPatchObject(
            self.kernel, 'pwrite', alias))
        self.assertLess(self.scrub(), 2 * MIB)

    def test_what_is_not_within_the_memory_is_refused(self):
        for length in (0, -1, 2 * MIB + 1):
            self.refused(vfio.scrub, length,
                         words=(f'memory BAR of {2 * MIB} bytes',))
        with mock.patch.object(vfio, 'SCRUB_LIMIT', MIB):
            self.refused(vfio.scrub, MIB + 1, words=(f'more than {MIB}',))
        self.assertFalse(any(self.kernel.bar))

    def test_device_without_memory_is_refused(self):
        self.kernel.bar = bytearray()
        self.assertEqual(0, vfio.memory(self.root, self.gpu))
        self.refused(vfio.scrub, 1, words=('memory BAR of 0 bytes',))
