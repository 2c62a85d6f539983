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
"""Tests of files that must survive a power failure."""

import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin.compute import assignments
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.vfio import baseline
from gpgpu_plugin.host.vfio import boot_files


class DurableTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.events = []
        fsync, replace = os.fsync, os.replace

        def noted_fsync(fd):
            path = pathlib.Path(os.readlink(f'/proc/self/fd/{fd}'))
            self.events.append(('fsync', path, path.is_file()
                                and path.read_text()))
            fsync(fd)

        def noted_replace(old, new):
            self.events.append(('replace', pathlib.Path(new),
                                pathlib.Path(old).read_text()))
            replace(old, new)
        for name, noted in (('fsync', noted_fsync),
                            ('replace', noted_replace)):
            self.useFixture(fixtures.MonkeyPatch(f'os.{name}', noted))

    def check(self, path):
        """Check the order: text synced, file replaced, folder synced."""
        path = pathlib.Path(path)
        text = path.read_text()
        self.assertNotEqual('', text)
        (first, new, written), *rest = self.events
        self.assertEqual(('fsync', path.parent, text),
                         (first, new.parent, written))
        self.assertEqual([('replace', path, text),
                          ('fsync', path.parent, False)], rest)
        self.assertEqual([path.name], os.listdir(path.parent))

    def test_baselines(self):
        baseline.Baselines(f'{self.folder}/cards').record(
            '/devices/x', 'a', {'vendor': '10de'})
        self.check(f'{self.folder}/cards/devices_x.json')

    def test_state_of_a_host(self):
        book = assignments.HostAssignments(f'{self.folder}/state.json')
        book.add_pending(['a'])
        self.check(f'{self.folder}/state.json')

    def test_designations(self):
        self.useFixture(fixtures.MockPatchObject(
            boot_files, 'ETC', self.folder))
        boot_files.add_rule(
            '/devices/pci0000:20/01.0', '10de', '11fa',
            vfio_drivers.VFIODriver(module='vfio-pci', name='vfio-pci'))
        self.check(f'{self.folder}/{boot_files.RULES}')
