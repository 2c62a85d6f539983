# SPDX-License-Identifier: Apache-2.0
"""Tests of scans while functions are being cleaned."""

import pathlib

from gpgpu_plugin.host.cleaning import ladder
from tests.unit.host.cleaning import card


class ScanTest(card.CardCase):
    """A scan while another thread has the GPU, played by a step's hook."""

    def setUp(self):
        super().setUp()
        self.before = self.host.scan()
        self.path = pathlib.Path(
            self.root, 'bus/pci/devices', self.address, 'config')
        self.scans = []

    def scan_in_reset(self):
        """Scan while the GPU does not answer, as in a reset."""
        config = self.path.read_bytes()
        self.path.write_bytes(b'\xff' * len(config))
        self.scans += [self.host.scan(), self.host.inspect().scan]
        self.assertFalse(self.host.changed())
        self.path.write_bytes(config)

    def function(self, scan):
        [found] = [function for function in scan.functions
                   if function.id == self.gpu.id]
        return found

    def clean_while_scanned(self):
        hot_reset = self.vfio.hot_reset

        def reset(*args):
            self.scan_in_reset()
            hot_reset(*args)
        self.vfio.hot_reset = reset
        verdict, _ = self.clean()
        self.assertTrue(verdict.passed, verdict.failure)

    def test_gpu_is_shown_as_it_was(self):
        self.use()
        self.before = self.host.scan()
        self.clean_while_scanned()
        for scan in self.scans:
            self.assertEqual(self.before.functions, scan.functions)
        self.assertEqual(2, len(self.scans))

    def test_gpu_is_scanned_again_after_its_cleaning(self):
        self.use()
        self.host.scan()
        self.clean_while_scanned()
        self.assertTrue(self.host.changed())
        self.host.give_back(self.device())
        # An examination sees it as it is now, and lets the next scan alone.
        self.assertEqual(self.gpu, self.function(self.host.inspect().scan))
        self.assertTrue(self.host.changed())
        self.assertEqual(self.gpu, self.function(self.host.scan()))
        self.assertFalse(self.host.changed())

    def test_gpu_without_a_cleaning_is_shown_as_it_is(self):
        self.path.write_bytes(b'\xff' * 256)
        self.assertIsNotNone(self.function(self.host.scan()).fault)


class BoardTest(ScanTest):
    """A GPU behind NVSwitches, which the scan of its card does not see."""

    machine = 'hgx-h100-8'

    def test_gpu_is_shown_with_the_nvswitches_of_its_host(self):
        self.use()
        self.clean_while_scanned()
        self.assertEqual(4, self.function(self.scans[0]).nvswitches)


class FunctionsInCleaningTest(card.CardCase):

    def test_cleaning_that_ended_during_the_scan_counts(self):
        functions = ladder.FunctionsInCleaning()
        functions.begin_scan()
        with functions.cleaning([self.gpu]):
            self.assertEqual({self.gpu.id}, functions.ids())
        self.assertEqual(frozenset(), functions.ids())
        found = self.host.scan()
        without = type(found)(functions=tuple(
            function for function in found.functions
            if function.id != self.gpu.id))
        self.assertEqual(found.functions, functions.shown(without).functions)
        self.assertTrue(functions.is_outdated())
        functions.begin_scan()
        self.assertIs(without, functions.shown(without))
        self.assertFalse(functions.is_outdated())
