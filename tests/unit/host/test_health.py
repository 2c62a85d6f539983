# SPDX-License-Identifier: Apache-2.0
"""Tests of the judge of health, through a host on a fake machine."""

import os
import pathlib
import uuid

import fixtures
from oslotest import base

from gpgpu_plugin.domain import health as rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.host.fake import kernel


class HealthBookTest(base.BaseTestCase):

    machine = 'hgx-h100-8'

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        self.host = fake_host.FakeHost.for_machine(self.machine, self.root)
        self.gpus = [function for function in self.host.scan().functions
                     if pci.can_be_gpu(function.class_code)
                     and function.vendor == '10de']
        self.gpu = self.gpus[0]
        self.folder = pathlib.Path(
            self.root, 'bus/pci/devices', self.gpu.address).resolve()

    def health(self):
        return self.host.scan().health[self.gpu.id]

    def clean(self):
        device = host_base.HostDevice(
            assignment_uuid=str(uuid.uuid4()), stable_id=self.gpu.id,
            address=self.gpu.address)
        self.host.prepare(device)
        return self.host.clean(device)

    def test_all_gpus_of_a_machine_that_is_well_are_ok(self):
        found = self.host.scan().health
        self.assertLessEqual({gpu.id for gpu in self.gpus}, found.keys())
        self.assertEqual({rules.Health.OK},
                         {condition.health for condition in found.values()})
        self.assertFalse(self.host.changed())

    def test_narrow_link_is_noticed_and_degrades(self):
        kernel.write_link(self.folder, width=8)
        self.assertTrue(self.host.changed())
        found = self.health()
        self.assertIs(rules.Health.DEGRADED, found.health)
        self.assertIn('width x8', found.reason)
        kernel.write_link(self.folder)
        self.assertTrue(self.host.changed())
        self.assertIs(rules.Health.OK, self.health().health)

    def test_narrow_link_of_a_switch_degrades_all_gpus_below(self):
        kernel.write_link(self.folder.parents[1], width=8)
        self.assertTrue(self.host.changed())
        below = {gpu.id for gpu in self.gpus
                 if gpu.switch_path == self.gpu.switch_path}
        self.assertEqual(below, {
            stable_id for stable_id, found in self.host.scan().health.items()
            if found.health is rules.Health.DEGRADED})

    def test_errors_count_until_a_cleaning_across_restarts(self):
        kernel.write_errors(self.folder, nonfatal=2)
        self.assertTrue(self.host.changed())
        self.assertIn('AER nonfatal 2', self.health().reason)
        self.host = fake_host.FakeHost(self.root)
        self.assertIn('AER nonfatal 2', self.health().reason)
        # The host reboots, and the kernel counts anew.
        kernel.write_errors(self.folder, nonfatal=1)
        self.assertIn('AER nonfatal 3', self.health().reason)

        self.assertTrue(self.clean().passed)
        self.assertTrue(self.host.changed())
        self.assertIs(rules.Health.OK, self.health().health)
        self.assertFalse(self.host.changed())
        kernel.write_errors(self.folder, nonfatal=2)
        self.assertIn('AER nonfatal 1', self.health().reason)

    def test_cleaning_that_fails_forgets_no_error(self):
        kernel.write_errors(self.folder, fatal=1)
        self.health()
        self.host.kernel.faults['/reset'] = 5
        self.assertFalse(self.clean().passed)
        self.assertIn('AER fatal 1', self.health().reason)

    def test_errors_during_a_cleaning_do_not_count(self):
        vfio, resets = self.host.kernel.vfio, []
        original = vfio.reset

        def reset(address, *args):
            resets.append(address)
            kernel.write_errors(self.folder, nonfatal=1)
            return original(address, *args)
        self.useFixture(fixtures.MockPatchObject(vfio, 'reset', reset))
        verdict = self.clean()
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertTrue(resets)
        self.assertIs(rules.Health.OK, self.health().health)

    def test_gpu_that_does_not_answer_has_failed(self):
        (self.folder / 'config').write_bytes(b'\xff' * 256)
        self.assertTrue(self.host.changed())
        found = self.health()
        self.assertIs(rules.Health.FAILED, found.health)
        self.assertIn('does not answer', found.reason)

    def test_degraded_gpu_is_withheld_only_if_that_is_configured(self):
        kernel.write_link(self.folder, width=8)

        def fault():
            return next(function.fault
                        for function in self.host.scan().functions
                        if function.id == self.gpu.id)
        self.assertIsNone(fault())
        self.host = fake_host.FakeHost(self.root, withhold_degraded=True)
        self.assertIn('withhold_degraded', fault())
        self.assertFalse(self.host.changed())
        with self.host._in_cleaning.cleaning([self.gpu]):
            self.assertIn('withhold_degraded', fault())
        kernel.write_link(self.folder)
        self.assertTrue(self.host.changed())
        self.assertIsNone(fault())

    def test_lost_file_of_errors_begins_anew(self):
        kernel.write_errors(self.folder, nonfatal=2)
        self.health()
        path = pathlib.Path(self.root, 'etc/health/errors.json')
        path.write_text('{')
        self.host = fake_host.FakeHost(self.root)
        self.assertIs(rules.Health.OK, self.health().health)
        kernel.write_errors(self.folder, nonfatal=3)
        self.assertIn('AER nonfatal 1', self.health().reason)

    def test_watch_reads_four_small_files_of_a_gpu_and_one_of_a_link(self):
        opened, read = [], []
        open_, pread = os.open, os.pread
        self.useFixture(fixtures.MockPatchObject(
            os, 'open', lambda *args, **kwargs:
            opened.append(args) or open_(*args, **kwargs)))
        self.useFixture(fixtures.MockPatchObject(
            os, 'pread', lambda *args: read.append(args) or pread(*args)))
        self.assertFalse(self.host.changed())
        judged = self.host.scan().health
        gpus = [gpu for gpu in self.gpus if gpu.id in judged]
        links = {gpu.switch_path for gpu in gpus}
        del opened[:], read[:]
        self.assertFalse(self.host.changed())
        self.assertEqual([], opened)
        # Configuration space, width, fatal and nonfatal errors.
        others = len(judged) - len(gpus)
        self.assertEqual(4 * len(gpus) + len(links) + 4 * others, len(read))
