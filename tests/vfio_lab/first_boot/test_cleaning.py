# SPDX-License-Identifier: Apache-2.0
"""Cleaning of GPUs whose memory no reset clears, on a real kernel."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import time

from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.privsep import vfio_device
from tests.vfio_lab import kept
from tests.vfio_lab import lab
from tests.vfio_lab import machine

SECRET = b'TENANT-A-SECRET-WEIGHTS'
SIZE = machine.MEMORY_MIB * 1024 ** 2
PLACE = 3 * 1024 ** 2


class CleaningCase(lab.LabTestCase):

    def setUp(self) -> None:
        super().setUp()
        subprocess.run(['modprobe', 'vfio-pci'], check=True)
        lab.unload('bochs')
        self.backend = lab.host(self)
        self.gpu: pci.PCIFunction = self._gpu()

    def _gpu(self) -> pci.PCIFunction:
        return lab.displays()[0]

    def device(self, assignment: str, policy: str) -> host_base.HostDevice:
        return host_base.HostDevice(
            assignment_uuid=assignment, stable_id=self.gpu.id,
            address=self.gpu.address, cleaning=f'of {assignment}',
            steps=cleaning.steps_of(policy), memory_mib=machine.MEMORY_MIB)

    def memory(self, data: bytes | None = None) -> bytes:
        """Write into the memory of the GPU as a guest does, and read it."""
        with vfio_device.opened('/sys', self.gpu.address) as opened:
            region = opened.memory()
            assert region is not None
            if data is not None:
                region.write(PLACE, data)
            return region.read(PLACE, len(SECRET))

    def clean(self, device: host_base.HostDevice) -> host_base.CleanVerdict:
        """Clean the GPU, and give it back if it passed."""
        verdict = self.backend.clean(device)
        if verdict.passed:
            self.backend.give_back(device)
        return verdict

    def cleaned(self, policy: str) -> host_base.CleanVerdict:
        """Let tenant A use the GPU; clean it after that."""
        device = self.device('a', policy)
        self.backend.prepare(device)
        self.assertEqual(SECRET, self.memory(SECRET))
        self.backend.release(device)
        began = time.monotonic()
        verdict = self.clean(device)
        print(f'{policy}: {time.monotonic() - began:.1f} s, '
              f'{"passed" if verdict.passed else "failed"}')
        for result in verdict.results:
            print(f'  {result}, {result.facts}, {result.seconds} s')
        return verdict

    def read_by_next_tenant(self) -> bytes:
        """Return what tenant B finds where tenant A wrote."""
        device = self.device('b', 'reset-only')
        self.backend.prepare(device)
        found = self.memory()
        self.assertTrue(self.clean(device).passed)
        return found


class MemoryTest(CleaningCase):

    def test_data_of_the_last_tenant_is_found_without_a_scrub(self) -> None:
        verdict = self.cleaned('default')
        self.assertFalse(verdict.passed)
        self.assertIn('64 of 64 marks in its memory outlasted',
                      verdict.failure)
        # It is not taken for clean, and no driver of the host has it.
        [found] = [function for function in lab.functions().values()
                   if function.id == self.gpu.id]
        self.assertEqual('vfio-pci', found.driver)
        # What the policy is there to prevent.
        self.assertTrue(self.clean(self.device('a', 'reset-only')).passed)
        self.assertEqual(SECRET, self.read_by_next_tenant())

    def test_next_tenant_reads_zeros_after_a_scrub(self) -> None:
        verdict = self.cleaned('scrub')
        self.assertTrue(verdict.passed, verdict.failure)
        facts = {result.step: result.facts for result in verdict.results}
        self.assertEqual(SIZE, facts['scrub']['bytes_verified'])
        self.assertEqual({'marks': 64, 'places': 64, 'found': 0},
                         facts['canary'])
        self.assertEqual(bytes(len(SECRET)), self.read_by_next_tenant())

    def test_window_on_a_larger_memory_is_no_scrub(self) -> None:
        device = self.device('a', 'scrub')
        self.backend.prepare(device)
        verdict = self.clean(host_base.HostDevice(
            assignment_uuid='a', stable_id=device.stable_id,
            address=device.address, cleaning='of a', steps=device.steps,
            memory_mib=80 * 1024))
        self.assertIn(f'scrub inapplicable: {SIZE} of 85899345920 bytes',
                      verdict.failure)
        self.clean(self.device('a', 'reset-only'))


class SettingsTest(CleaningCase):

    def setUp(self) -> None:
        super().setUp()
        self.backend = lab.host(self, baselines=kept.BASELINES)

    def test_lost_baseline_fails(self) -> None:
        device = self.device('a', 'reset+settings')
        self.backend.prepare(device)
        for path in pathlib.Path(kept.BASELINES).iterdir():
            path.unlink()
        verdict = self.clean(device)
        self.assertFalse(verdict.passed)
        self.assertIn('its baseline: it is lost', verdict.failure)
        accepted = dataclasses.replace(device, cleaning='of an operator')
        self.assertTrue(self.clean(accepted).passed)
        # Nobody knows any more which driver it had.
        self.backend.binder.unbind(self.gpu)

    def test_option_rom_is_evidence_for_the_second_boot(self) -> None:
        device = kept.display_device(self.gpu, 'first')
        self.backend.prepare(device)
        verdict = self.clean(device)
        self.assertTrue(verdict.passed, verdict.failure)
        print(verdict.results[1], verdict.results[1].facts)
        self.assertIn('option_rom_sha256', verdict.results[1].facts)


class TwoFunctionsTest(CleaningCase):
    """A card whose functions have no reset of their own (ENOTTY)."""

    def _gpu(self) -> pci.PCIFunction:
        return lab.two_functions()[0]

    def _drivers(self) -> list[str | None]:
        found = lab.functions()
        return [found[address].driver for address in (
            self.gpu.address, *self.gpu.companions)]

    def test_card_is_clean_after_a_hot_reset(self) -> None:
        before = self._drivers()
        verdict = self.cleaned('scrub')
        self.assertTrue(verdict.passed, verdict.failure)
        [reset, *_] = verdict.results
        self.assertEqual({'method': 'card', 'functions': 2}, reset.facts)
        # The sound controller has its own driver again.
        self.assertEqual(before, self._drivers())
