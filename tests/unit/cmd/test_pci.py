# SPDX-License-Identifier: Apache-2.0
"""Tests of ``gpgpu-host list`` and ``record``; neither needs a service."""

import contextlib
import io
import json
import os
import pathlib

import fixtures
import yaml
from oslotest import base

from gpgpu_plugin.cmd import manage
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.host.fake import machine
from tests.unit.compute import test_assignments

KEYS = {'id', 'address', 'vendor', 'device', 'subsystem_vendor',
        'subsystem', 'revision', 'class', 'driver', 'numa_node',
        'iommu_group', 'slot', 'used_by', 'instance'}


class PCICase(base.BaseTestCase):

    command = 'list'

    def build(self, name):
        root = self.useFixture(fixtures.TempDir()).path
        machine.build(machine.load(name), root)
        return root

    def run_on(self, name, *arguments):
        return self.run_command(
            '--sysfs-root', self.build(name), *arguments)

    def run_command(self, *arguments, command=None):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = manage.run([command or self.command, *arguments],
                              program=manage.HostApp)
        return code, out.getvalue(), err.getvalue()


class PCIListTest(PCICase):

    def test_json_has_all_keys(self):
        code, out, err = self.run_on('wide-domains', '-f', 'json')
        rows = json.loads(out)
        self.assertEqual((0, ''), (code, err))
        self.assertEqual([KEYS] * 4, [set(row) for row in rows])
        self.assertEqual({
            'id': '/devices/pci10000:e0/01.0/00.0',
            'address': '10000:e1:00.0', 'vendor': '10de', 'device': '27b8',
            'subsystem_vendor': '10de', 'subsystem': '16ee',
            'revision': 'a1', 'class': '030200', 'driver': None,
            'numa_node': None, 'iommu_group': 3, 'slot': None,
            'used_by': None, 'instance': 'unknown'}, next(
                row for row in rows if row['device'] == '27b8'))

    def test_instance_is_that_of_the_record_of_nova_compute(self):
        root = self.build('pcie-l40s-4')
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.cmd.pci._SYSFS', root))
        folder = self.useFixture(fixtures.TempDir()).path
        conf = f'{folder}/nova.conf'
        state = pathlib.Path(folder, 'state')
        pathlib.Path(conf).write_text(
            f'[gpgpu_compute]\nstate_path = {state}\n', encoding='ascii')
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.cmd.base.NOVA_CONFIG_FILE', conf))
        gpu = '/devices/pci_SB_.PC01/01.0/00.0'

        def instances():
            code, out, err = self.run_command('-f', 'json')
            found = {row['id']: row['instance'] for row in json.loads(out)}
            self.assertEqual(0, code)
            return found.pop(gpu), set(found.values()), err
        self.assertEqual(('unknown', {'unknown'}, ''), instances())
        book = assignment_file.AssignmentFile(str(state / 'h1.json'))
        book.add('i1', [test_assignments.make_assignment(
            stable_id=gpu, instance_uuid='i1')])
        self.assertEqual(('i1', {None}, ''), instances())
        pathlib.Path(state, 'h2.json').write_text('{', encoding='ascii')
        of_gpu, others, err = instances()
        self.assertEqual(('i1', {'unknown'}), (of_gpu, others))
        self.assertRegex(err, r'\Agpgpu-host: it is unknown .*h2\.json')
        pathlib.Path(conf).write_text('nonsense', encoding='ascii')
        of_gpu, others, err = instances()
        self.assertEqual(('unknown', {'unknown'}), (of_gpu, others))
        self.assertIn(conf, err)

    def test_text_has_one_line_a_function(self):
        code, out, _ = self.run_on('pcie-l40s-4', '--text')
        self.assertEqual(0, code)
        self.assertIn(
            '10de 26b9 1851 10de a1 /devices/pci_SB_.PC01/01.0/00.0 -\n', out)
        self.assertEqual(10, out.count('\n'))

    def test_table_shows_a_dash_for_a_missing_value(self):
        _, out, _ = self.run_on('wide-domains')
        self.assertIn('| 27b8   |', out)
        self.assertIn('| -', out)

    def test_unreadable_attribute_does_not_stop_the_list(self):
        code, out, err = self.run_on('broken-l40s-4', '-f', 'json')
        self.assertEqual((0, 10), (code, len(json.loads(out))))
        self.assertIn('numa_node cannot be read', err)

    def test_folder_without_sysfs_is_refused(self):
        code, out, err = self.run_command('--sysfs-root', '/nowhere')
        self.assertEqual((1, ''), (code, out))
        self.assertIn('/nowhere', err)
        self.assertNotIn('Traceback', err)

    def test_machine_of_the_package_is_listed_by_name(self):
        code, out, err = self.run_command(
            '--machine', 'broken-l40s-4', '-f', 'json')
        self.assertEqual((0, 10), (code, len(json.loads(out))))
        self.assertIn('numa_node cannot be read', err)

    def test_unknown_machine_is_not_found(self):
        code, out, err = self.run_command('--machine', 'cray-1')
        self.assertEqual((1, ''), (code, out))
        for words in ('cray-1', 'hgx-h100-8', 'path'):
            self.assertIn(words, err)

    def test_folder_beside_a_machine_is_refused(self):
        code, _, err = self.run_on('pcie-l40s-4', '--machine', 'pcie-l40s-4')
        self.assertEqual(2, code)
        self.assertIn('not allowed with', err)


class PCIRecordTest(PCICase):

    command = 'record'

    def setUp(self):
        super().setUp()
        self.file = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'host.yaml')

    def listed(self, *arguments):
        return self.run_command(*arguments, '-f', 'json', command='list')

    def test_recorded_file_is_listed_as_the_host(self):
        root = self.build('broken-l40s-4')
        self.assertEqual(
            (0, f'recorded in {self.file}, serial numbers masked\n', ''),
            self.run_command('--sysfs-root', root, self.file))
        self.assertEqual(self.listed('--sysfs-root', root),
                         self.listed('--machine', self.file))

    def test_standard_output_is_the_recording_alone(self):
        root = self.build('wide-domains')
        code, out, err = self.run_command('--sysfs-root', root)
        self.assertEqual((0, ''), (code, err))
        self.run_command('--sysfs-root', root, self.file)
        with open(self.file, encoding='utf-8') as file:
            self.assertEqual(file.read(), out)
        # What a stranger may see of where it was recorded.
        self.assertEqual(
            ('recorded', 'a sysfs in a directory', {}),
            tuple(yaml.safe_load(out)[key]
                  for key in ('source', 'reference', 'facts')))

    def test_serial_numbers_are_masked_unless_included(self):
        # Its Device Serial Number, as configuration space has it.
        serial = '01 01 00 00 00 2d b0 48'
        root = self.build('pcie-l40s-4')
        for arguments, found, said in (((), 0, 'masked'),
                                       (('--with-serials',), 1, 'included')):
            code, out, _ = self.run_command('--sysfs-root', root, *arguments)
            self.assertEqual((0, found), (code, out.count(serial)))
            _, out, _ = self.run_command(
                '--sysfs-root', root, *arguments, f'{self.file}.{said}')
            self.assertIn(said, out)

    def test_existing_file_is_not_replaced(self):
        pathlib.Path(self.file).write_text('mine')
        code, out, err = self.run_on('wide-domains', self.file)
        self.assertEqual((1, ''), (code, out))
        self.assertIn(f'{self.file}: it exists', err)
        self.assertEqual('mine', pathlib.Path(self.file).read_text())

    def test_file_that_cannot_be_written_is_refused(self):
        code, out, err = self.run_on('wide-domains', f'{self.file}/no/where')
        self.assertEqual((1, ''), (code, out))
        self.assertIn('cannot be written: No such file', err)

    def test_folder_without_sysfs_is_refused(self):
        code, out, err = self.run_command('--sysfs-root', '/nowhere',
                                          self.file)
        self.assertEqual((1, ''), (code, out))
        self.assertIn('is this the root of a sysfs?', err)
        self.assertFalse(os.path.exists(self.file))

    def test_recording_without_root_is_warned_about(self):
        if not os.path.isdir('/sys/bus/pci/devices'):
            self.skipTest('no PCI')
        for uid, words in ((0, ''), (1000, 'only root can read')):
            with fixtures.MonkeyPatch('os.geteuid', lambda uid=uid: uid):
                code, out, err = self.run_command()
            self.assertEqual((0, bool(words)), (code, bool(err)))
            self.assertIn(words, err)
            self.assertIn(os.uname().release, out)
            self.assertNotIn(os.uname().nodename, out.partition('tree:')[0])
