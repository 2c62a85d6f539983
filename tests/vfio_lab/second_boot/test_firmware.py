# SPDX-License-Identifier: Apache-2.0
"""Cleaning of a GPU whose firmware was changed between two boots."""

from __future__ import annotations

from tests.vfio_lab import kept
from tests.vfio_lab import lab


class SecondBootTest(lab.LabTestCase):

    def test_other_option_rom_fails(self) -> None:
        backend = lab.host(self, baselines=kept.BASELINES)
        lab.unload('bochs')
        gpu = lab.displays()[0]
        for _ in range(2):
            verdict = backend.clean(kept.display_device(gpu, 'second'))
            print(verdict.failure)
            self.assertFalse(verdict.passed)
            self.assertIn(
                f'{gpu.address} differs from its baseline: option ROM was',
                verdict.failure)
        accepted = backend.clean(kept.display_device(gpu, 'third'))
        self.assertTrue(accepted.passed, accepted.failure)
        backend.give_back(kept.display_device(gpu, 'third'))
