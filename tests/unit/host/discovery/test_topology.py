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
"""Tests of stable ids, VF numbers, slots and switches."""

import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin.host.discovery import attempt
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.discovery import topology

PF = '0000:7c:00.0'
HOPS = ['pci0000:7b', '0000:7b:03.0', PF]


class TopologyTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.device = self.root.joinpath('devices', *HOPS)
        self.device.mkdir(parents=True)
        links = self.root / 'bus/pci/devices'
        links.mkdir(parents=True)
        (links / PF).symlink_to(os.path.relpath(self.device, links))
        self.problems = []

    def topology(self):
        return topology.Topology(sysfs.Sysfs(str(self.root)), self.problems)

    def test_stable_id_has_the_root_bus_but_no_other_bus_number(self):
        self.assertEqual(HOPS, self.topology().hops(PF))
        self.assertEqual('/devices/pci0000:7b/03.0/00.0',
                         topology.Topology.stable_id(HOPS))
        self.assertEqual(
            topology.Topology.stable_id(HOPS),
            topology.Topology.stable_id([*HOPS[:2], '0000:99:00.0']))

    def test_function_below_no_host_bridge_is_refused(self):
        link = self.root / 'bus/pci/devices/0000:01:00.0'
        link.symlink_to('nowhere')
        self.assertRaises(ValueError, self.topology().hops, link.name)

    def test_vf_index_is_that_of_the_link_of_the_pf(self):
        (self.device / 'virtfn11').symlink_to('../0000:7c:01.3')
        found = self.topology()
        self.assertEqual(11, found.vf_index(PF, '0000:7c:01.3'))
        self.assertIsNone(found.vf_index(PF, '0000:7c:01.4'))

    def test_slot_is_the_label_else_the_nearest_slot(self):
        folder = self.root / 'bus/pci/slots/7'
        folder.mkdir(parents=True)
        (folder / 'address').write_text('0000:7b:03\n')
        (self.device / 'label').write_text('GPU 1\n')
        found = self.topology()
        reader = attempt.Attempt(PF, self.problems)
        with sysfs.Folder(str(self.device)) as device:
            for names, slot in (({'label'}, 'GPU 1'), (set(), '7')):
                self.assertEqual(slot, found.slot(
                    device, HOPS, names, reader))

    def test_unreadable_slot_is_a_problem(self):
        folder = self.root / 'bus/pci/slots/7'
        folder.mkdir(parents=True)
        (folder / 'address').symlink_to('address')
        self.topology()
        self.assertIn('slot 7 cannot be read', self.problems[0])
