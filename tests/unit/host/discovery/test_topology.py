# SPDX-License-Identifier: Apache-2.0
"""Tests of stable ids, VF numbers, slots and switches."""

import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin.domain import pci
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
        return topology.PCITopology(sysfs.Sysfs(str(self.root)), self.problems)

    def stable_id(self):
        found = self.topology()
        return found.stable_id(found.hops(PF))

    def name_root(self, path):
        """Give the root bus a name of the firmware, as the kernel does."""
        node = self.root / 'devices/LNXSYSTM:00/LNXSYBUS:00/PNP0A08:07'
        node.mkdir(parents=True, exist_ok=True)
        (node / 'path').write_text(f'{path}\n')
        link = self.root / 'devices' / HOPS[0] / 'firmware_node'
        if not link.is_symlink():
            link.symlink_to('../LNXSYSTM:00/LNXSYBUS:00/PNP0A08:07')

    def test_stable_id_has_the_root_bus_but_no_other_bus_number(self):
        found = self.topology()
        self.assertEqual(HOPS, found.hops(PF))
        self.assertEqual('/devices/pci0000:7b/03.0/00.0',
                         found.stable_id(HOPS))
        self.assertEqual(
            found.stable_id(HOPS),
            found.stable_id([*HOPS[:2], '0000:99:00.0']))

    def test_stable_id_has_the_firmware_s_name_of_the_root_bus(self):
        self.name_root('\\_SB_.PC08')
        self.assertEqual('/devices/pci_SB_.PC08/03.0/00.0', self.stable_id())
        self.assertEqual('root port _SB_.PC08:03.0',
                         pci.bridge_of(self.stable_id()))

    def test_text_that_is_no_acpi_path_names_no_root_bus(self):
        for text in ('', 'PC08', '\\_SB_/PC08', '\\_SB_.PC08"', '\\_SB_.\n'):
            self.name_root(text)
            self.assertEqual(
                '/devices/pci0000:7b/03.0/00.0', self.stable_id(), text)

    def test_unreadable_name_of_the_root_bus_leaves_the_id_unknown(self):
        # With its bus number, it would be another device.
        self.name_root('\\_SB_.PC08')
        path = self.root / 'devices' / HOPS[0] / 'firmware_node/path'
        path.unlink()
        path.symlink_to('path')
        self.assertRaises(OSError, self.stable_id)

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
        reader = sysfs.Attempt(PF, self.problems)
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
