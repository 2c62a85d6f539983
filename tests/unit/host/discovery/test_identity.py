# SPDX-License-Identifier: Apache-2.0
"""Tests of a machine's identity, read without privileges."""

import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin.domain import host
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import machine


class IdentityTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True)
        file.write_text(text)

    def test_ids_are_read_without_their_line_end(self):
        self.write('proc/sys/kernel/random/boot_id', 'b1\n')
        self.write('etc/machine-id', 'm1\n')
        self.assertEqual(
            host.MachineIdentity(boot_id='b1', machine_id='m1'),
            machine.read_identity((), str(self.root)))

    def test_id_that_cannot_be_read_is_empty(self):
        self.assertEqual(host.MachineIdentity(),
                         machine.read_identity((), str(self.root)))

    def test_gpus_have_their_serial_numbers_and_vfs_are_left_out(self):
        functions = (
            pci.PCIFunction(id='/a', address='a', serial='1', dsn='2'),
            pci.PCIFunction(id='/b', address='b', dsn='3'),
            pci.PCIFunction(id='/c', address='c'),
            pci.PCIFunction(id='/a/vf0', address='v', pf='/a', dsn='9'))
        self.assertEqual({'/a': '2', '/b': '3', '/c': ''},
                         machine.read_identity(functions, str(self.root)).gpus)

    def test_this_machine_has_a_boot_id(self):
        self.assertRegex(machine.read_identity(()).boot_id, '^[0-9a-f-]{36}$')
