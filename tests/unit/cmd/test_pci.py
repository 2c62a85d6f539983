#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""``pci list`` needs no database, no configuration and no service."""

import contextlib
import io
import json

import fixtures
from oslotest import base

from gpgpu_plugin.cmd import manage
from gpgpu_plugin.host import machine

KEYS = {'id', 'address', 'vendor', 'device', 'subsystem_vendor',
        'subsystem', 'revision', 'class', 'driver', 'numa_node',
        'iommu_group', 'slot', 'used_by'}


class PCIListTest(base.BaseTestCase):

    def run_on(self, name, *arguments):
        root = self.useFixture(fixtures.TempDir()).path
        machine.build(machine.load(name), root)
        return self.run_command('--sysfs-root', root, *arguments)

    def run_command(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = manage.run(['pci', 'list', *arguments])
        return code, out.getvalue(), err.getvalue()

    def test_json(self):
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
            'used_by': None}, next(
                row for row in rows if row['device'] == '27b8'))

    def test_text(self):
        code, out, _ = self.run_on('pcie-l40s-4', '--text')
        self.assertEqual(0, code)
        self.assertIn(
            '10de 26b9 1851 10de a1 /devices/pci0000:26/01.0/00.0 -\n', out)
        self.assertEqual(10, out.count('\n'))

    def test_table_shows_a_dash(self):
        _, out, _ = self.run_on('wide-domains')
        self.assertIn('| 27b8   |', out)
        self.assertIn('| -', out)

    def test_unreadable_is_said_and_does_not_stop(self):
        code, out, err = self.run_on('broken-l40s-4', '-f', 'json')
        self.assertEqual((0, 10), (code, len(json.loads(out))))
        self.assertIn('numa_node cannot be read', err)

    def test_no_sysfs(self):
        code, out, err = self.run_command('--sysfs-root', '/nowhere')
        self.assertEqual((1, ''), (code, out))
        self.assertIn('/nowhere', err)
        self.assertNotIn('Traceback', err)
