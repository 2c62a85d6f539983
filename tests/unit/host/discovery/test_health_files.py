# SPDX-License-Identifier: Apache-2.0
"""Tests of the reader of health, on fake machines."""

import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.discovery import watch
from gpgpu_plugin.host.fake import kernel
from gpgpu_plugin.host.fake import machine
from gpgpu_plugin.host.fake import tree


class HealthFilesTest(base.BaseTestCase):

    machine = 'hgx-h100-8'

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        machine.build(machine.load(self.machine), self.root)
        self.sysfs = sysfs.Sysfs(self.root)
        self.gpu = next(
            function for function in scanner.scan(self.sysfs).functions
            if watch.is_judged(function)
            and function.vendor == '10de')
        self.folder = pathlib.Path(
            self.root, 'bus/pci/devices', self.gpu.address).resolve()

    def read(self):
        return watch.read_health(self.sysfs, self.gpu.address)

    def write_ras(self, uncorrectable=0, correctable=0):
        """Write how many errors amdgpu has counted in the memory."""
        path = self.folder / 'ras/umc_err_count'
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'ue: {uncorrectable}\nce: {correctable}\n')

    def test_link_is_as_wide_as_its_narrower_end(self):
        [*_, link] = self.read().links
        self.assertEqual((16, 16), (link.width, link.maximum))
        kernel.write_link(self.folder, width=8)
        [*_, link] = self.read().links
        self.assertEqual((self.gpu.address, 8, 16),
                         (link.address, link.width, link.maximum))
        # A slot with eight lanes is no fault of the GPU.
        kernel.write_link(self.folder.parent, maximum=8)
        self.assertFalse(self.read().links[-1].is_narrow)

    def test_links_of_switches_above_are_read_each_once(self):
        hops = [path.name for path in (self.folder, *self.folder.parents)
                if watch._HOP.fullmatch(path.name)][::-1]
        self.assertEqual(4, len(hops))
        kernel.write_link(self.folder.parents[1], width=4)
        self.assertEqual([(hops[1], True), (hops[3], False)], [
            (link.address, link.is_narrow) for link in self.read().links])

    def test_width_of_a_device_that_is_gone_is_unknown(self):
        for width in (63, 255):
            kernel.write_link(self.folder, width=4, maximum=width)
            self.assertFalse(self.read().links[-1].is_narrow)

    def test_totals_of_errors_are_read(self):
        kernel.write_errors(
            self.folder, fatal=1, nonfatal=2, correctable=30)
        found = self.read().counts
        self.assertEqual({'AER fatal': 1, 'AER nonfatal': 2},
                         found.uncorrected)
        self.assertEqual({'AER correctable': 30}, found.corrected)

    def test_errors_that_amdgpu_counted_are_read(self):
        self.write_ras(uncorrectable=1, correctable=5)
        found = self.read().counts
        self.assertEqual(1, found.uncorrected['amdgpu umc uncorrectable'])
        self.assertEqual(5, found.corrected['amdgpu umc correctable'])

    def test_files_that_are_missing_or_unreadable_are_left_out(self):
        for name in (watch.FATAL, watch.NONFATAL,
                     watch.CORRECTABLE, watch.WIDTH):
            (self.folder / name).unlink()
        tree.make_unreadable(self.folder / watch.WIDTH)
        found = self.read()
        self.assertEqual({}, found.counts.uncorrected)
        self.assertFalse(any(link.is_narrow for link in found.links))
        self.assertNotIn(self.gpu.address, ' '.join(
            path for path in found.watched if path.endswith('width')))

    def test_correctable_errors_are_not_watched(self):
        self.write_ras()
        watched = self.read().watched
        self.write_ras(correctable=1)
        kernel.write_errors(self.folder, correctable=1)
        self.assertEqual(watched, self.read().watched)
        self.write_ras(uncorrectable=1)
        self.assertNotEqual(watched, self.read().watched)


class IsJudgedTest(base.BaseTestCase):

    def test_only_pci_functions_that_can_be_gpus_are_judged(self):
        gpu = {'id': '/devices/x', 'address': '0000:3b:00.0',
               'class_code': '030200'}
        for expected, facts in (
                (True, {}), (True, {'class_code': None}),
                (False, {'class_code': '020000'}), (False, {'pf': '/x'}),
                (False, {'address': 'mbochs', 'class_code': '038000'})):
            self.assertIs(expected, watch.is_judged(
                pci.PCIFunction(**{**gpu, **facts})))
