# SPDX-License-Identifier: Apache-2.0
"""Resets and memory tests by the helper's own code, on the kernel's VFIO."""

from __future__ import annotations

import errno
import struct
import subprocess
import time

import fixtures

from gpgpu_plugin import nvidia
from gpgpu_plugin import privsep
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.privsep import vfio
from gpgpu_plugin.privsep import vfio_device
from tests.vfio_lab import lab

ROOT = '/sys'
# Global Control of a sound controller; its bit 0 is 0 after a reset (High
# Definition Audio specification).
_GCTL = 8


class VFIOCase(lab.LabTestCase):
    """Functions that are bound to vfio-pci, without their drivers."""

    def setUp(self) -> None:
        super().setUp()
        subprocess.run(['modprobe', 'vfio-pci'], check=True)
        lab.unload('bochs')
        # The tests run as root: no daemon.
        self.useFixture(fixtures.MockPatchObject(
            privsep.sys_admin_pctxt, 'client_mode', False))

    def bind(self, address: str) -> None:
        """Bind a function to vfio-pci during the test."""
        self.unbind(address)
        path = f'bus/pci/devices/{address}/driver_override'
        lab.write(path, 'vfio-pci')
        self.addCleanup(lab.write, path, '')
        self.addCleanup(self.unbind, address)
        lab.write('bus/pci/drivers_probe', address)

    @staticmethod
    def unbind(address: str) -> None:
        """Leave a function without a driver."""
        found = scanner.scan_function(sysfs.Sysfs(ROOT), address)
        assert found is not None, address
        if found.driver:
            lab.write(f'bus/pci/drivers/{found.driver}/unbind', address)


class HotResetTest(VFIOCase):
    """A display and a sound controller in one slot."""

    def setUp(self) -> None:
        super().setUp()
        self.functions = [
            function.address for function in lab.two_functions()]
        self.gpu, self.audio = self.functions
        for address in self.functions:
            self.bind(address)

    def refused(self, functions: list[str], *words: str) -> None:
        exc = self.assertRaises(
            PermissionError, vfio.hot_reset, ROOT, self.gpu, functions)
        for word in words:
            self.assertIn(word, str(exc))

    def test_functions_are_reset_together(self) -> None:
        exc = self.assertRaises(
            OSError, lab.write, f'bus/pci/devices/{self.gpu}/reset', '1')
        self.assertEqual(errno.ENOTTY, exc.errno)
        for address in self.functions:
            with vfio_device.opened(ROOT, address) as device:
                self.assertEqual(self.functions, sorted(
                    member.address for member in device.hot_reset_scope()))
            began = time.monotonic()
            vfio.hot_reset(ROOT, address, self.functions)
            print(f'{", ".join(self.functions)}: hot reset of {address} took '
                  f'{time.monotonic() - began:.2f} s')

    def test_reset_reaches_the_hardware(self) -> None:
        with vfio_device.opened(ROOT, self.audio) as device:
            device.enable_memory()
            region = device.region(0)
            region.write(_GCTL, b'\1\0\0\0')
            self.assertEqual(1, region.read(_GCTL, 4)[0])
            device.hot_reset(
                member.group for member in device.hot_reset_scope())
            self.assertEqual(0, region.read(_GCTL, 4)[0])

    def test_function_that_the_caller_does_not_name_is_refused(self) -> None:
        self.refused([self.gpu], self.audio, 'does not name')

    def test_function_without_vfio_driver_is_refused(self) -> None:
        self.unbind(self.audio)
        self.refused(self.functions, self.audio, 'not bound to a VFIO driver')
        # As does the kernel itself.
        with vfio_device.opened(ROOT, self.gpu) as device:
            scope = device.hot_reset_scope()
            exc = self.assertRaises(
                OSError, device.hot_reset,
                [member.group for member in scope])
        print(f'the kernel refuses that with {exc}')


class MemoryTest(VFIOCase):
    """A display alone in its slot, whose memory no reset clears."""

    def setUp(self) -> None:
        super().setUp()
        self.display = lab.displays()[0]
        self.gpu = self.display.address
        self.bind(self.gpu)

    def scrub(self) -> int:
        """Scrub the whole memory; return how many bytes were right."""
        size: int = vfio.memory(ROOT, self.gpu)
        began = time.monotonic()
        kept: int = vfio.scrub(ROOT, self.gpu, size)
        seconds = time.monotonic() - began
        print(f'{size} bytes of {self.gpu} written and read twice in '
              f'{seconds:.2f} s: {size / seconds:.0f} bytes/s, {kept} right')
        return kept

    def test_marks_survive_a_reset_until_scrubbed(self) -> None:
        self.assertEqual(
            (64, 64), vfio.write_marks(ROOT, self.gpu, 'guest'))
        lab.write(f'bus/pci/devices/{self.gpu}/reset', '1')
        # The leak that these calls are there to find.
        self.assertEqual(64, vfio.find_marks(ROOT, self.gpu, 'guest'))
        self.assertEqual(0, vfio.find_marks(ROOT, self.gpu, 'other'))
        self.assertEqual(vfio.memory(ROOT, self.gpu), self.scrub())
        self.assertEqual(0, vfio.find_marks(ROOT, self.gpu, 'guest'))

    def test_registers_are_read_before_and_after_a_reset(self) -> None:
        """An emulated display has none: its memory outlasts the reset."""
        exc = self.assertRaises(
            PermissionError, vfio.reset_and_wait, ROOT, self.gpu,
            [self.gpu])
        self.assertIn('no register of 1234:1111', str(exc))
        registers = nvidia.Registers(boot=0x1000, booted=0x3ff, clear=0x2000)
        with vfio_device.opened(ROOT, self.gpu) as device:
            bar = device.registers()
            bar.write(registers.boot, struct.pack('<I', registers.booted))
            bar.write(registers.clear, struct.pack('<I', nvidia.CLEARED))
        self.useFixture(fixtures.MockPatchObject(
            vfio, '_registers', lambda *_: registers))
        found = nvidia.ClearReading(*vfio.reset_and_wait(
            ROOT, self.gpu, [self.gpu]))
        self.assertEqual((1, 1, 0x3ff, 1), found[:4])
        print(f'{self.gpu}: {found}')

    def test_device_that_is_open_is_refused(self) -> None:
        with lab.opened(self.display.iommu_group, self.gpu):
            for function, *arguments in (
                    (vfio.hot_reset, [self.gpu]), (vfio.memory,),
                    (vfio.write_marks, 'x'), (vfio.find_marks, 'x'),
                    (vfio.scrub, 1)):
                exc = self.assertRaises(
                    PermissionError, function, ROOT, self.gpu, *arguments)
                self.assertIn('has it open', str(exc))
            # Nor would the kernel let this process have it.
            refusal = self.assertRaises(
                OSError, vfio_device.opened(ROOT, self.gpu).__enter__)
            self.assertEqual(errno.EBUSY, refusal.errno)
