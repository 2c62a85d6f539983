# SPDX-License-Identifier: Apache-2.0
"""Tests of ``gpgpu-host designate`` and related, without hardware."""

import json
import pathlib

import fixtures

from gpgpu_plugin.cmd import designation as commands
from gpgpu_plugin.cmd import manage
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.vfio import designation
from tests.unit.cmd import base


class DesignationTest(base.CommandTestCase):
    FUNCTIONS = (pci.PCIFunction(id='/devices/pci0000:20/01.0/00.0',
                            address='0000:21:00.0', vendor='10de',
                            device='11fa'),
            pci.PCIFunction(id='/devices/pci0000:20/01.0/00.1',
                            address='0000:21:00.1', vendor='10de',
                            device='0e0b'))

    def setUp(self):
        super().setUp()
        self.calls = []

        class Designator:
            def designate(_self, name):
                self.calls.append(('designate', name))
                return self.FUNCTIONS

            def undesignate(_self, name, refusal):
                self.calls.append(('undesignate', name))
                self.refusal = refusal(self.FUNCTIONS)
                return self.FUNCTIONS
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.host.vfio.designation.Designator.as_root',
            lambda _class: Designator()))

    def manage(self, *arguments, **kwargs):
        return super().manage(*arguments, program=manage.HostApp, **kwargs)

    def user(self, uid):
        self.useFixture(fixtures.MockPatchObject(
            commands.os, 'geteuid', return_value=uid))

    def test_designation_names_all_functions_of_the_gpu(self):
        self.user(0)
        self.assertEqual(
            '0000:21:00.0 (10de:11fa) is designated for passthrough\n'
            '0000:21:00.1 (10de:0e0b) is designated for passthrough\n',
            self.done('designate', '0000:21:00.1'))
        self.assertIn("0000:21:00.1 (10de:0e0b) is no longer designated",
                      self.done('undesignate', '0000:21:00.0'))
        self.assertEqual([('designate', '0000:21:00.1'),
                          ('undesignate', '0000:21:00.0')], self.calls)

    def test_designation_without_root_is_refused(self):
        self.user(1000)
        for verb in ('designate', 'undesignate'):
            self.assertIn('only root may bind devices', self.refused(
                verb, '0000:21:00.0'))
        self.assertEqual([], self.calls)

    def test_undesignate_reads_the_book_of_nova_compute(self):
        self.user(0)
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        config = folder / 'nova.conf'
        config.write_text(f'[gpgpu_compute]\nstate_path = {folder}\n')
        (folder / 'h1.json').write_text(json.dumps(
            {'version': 1, 'unclean': [self.FUNCTIONS[0].id]}))
        result = base.run('--config-file', str(config), 'undesignate',
                          '0000:21:00.0', program=manage.HostApp)
        self.assertEqual(0, result.code, result.err)
        address, reason = self.refusal
        self.assertEqual('0000:21:00.0', address)
        self.assertIn('on host h1, it was not cleaned', reason)

    def test_undesignate_without_configuration_is_refused(self):
        self.user(0)
        self.useFixture(fixtures.MockPatchObject(
            commands.base, 'NOVA_CONFIG_FILE', '/nowhere/nova.conf'))
        result = base.run(
            'undesignate', '0000:21:00.0', program=manage.HostApp)
        self.assertEqual(1, result.code)
        for words in ('/nowhere/nova.conf', 'unknown', '--config-file'):
            self.assertIn(words, result.err)
        self.assertEqual([], self.calls)

    def test_designated_functions_are_listed(self):
        self.useFixture(fixtures.MockPatchObject(
            designation, 'listing', return_value=[designation.Designation(
                id=self.FUNCTIONS[0].id, address='0000:21:00.0', vendor='10de',
                device='11fa', kept_by='udev', driver='vfio-pci')]))
        self.assertEqual([{
            'ID': self.FUNCTIONS[0].id, 'Address': '0000:21:00.0',
            'Vendor': '10de', 'Device': '11fa', 'Kept By': 'udev',
            'Driver': 'vfio-pci'}], self.json('designated'))
