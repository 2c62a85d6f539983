# SPDX-License-Identifier: Apache-2.0
"""Tests of the designations that the privileged daemon stores."""

import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.vfio import designation

ID = '/devices/pci0000:20/01.0/00.0'
OTHER = '/devices/pci0000:a0/01.0/00.0'
VFIO = vfio_drivers.VFIODriver(module='vfio-pci', name='vfio-pci')
XE = vfio_drivers.VFIODriver(module='xe_vfio_pci', name='xe-vfio-pci')


class DesignationCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        # Programs do not run from /dev/shm everywhere.
        self.folder = self.useFixture(
            fixtures.TempDir(rootdir='/var/tmp')).path
        for name, value in (('ETC', self.folder),
                            ('DRIVERCTL', f'{self.folder}/driverctl')):
            self.useFixture(fixtures.MonkeyPatch(
                f'gpgpu_plugin.host.vfio.designation.{name}', value))


class RulesTest(DesignationCase):

    def rules(self):
        return designation.read_rules(self.folder)

    def test_added_and_removed(self):
        self.assertEqual({}, self.rules())
        for _ in range(2):
            designation.add_rule(ID, '10de', '11fa', VFIO)
        designation.add_rule(OTHER, '10de', '102d', VFIO)
        self.assertEqual({ID, OTHER}, self.rules().keys())
        self.assertIn('ATTR{vendor}=="0x10de", ATTR{device}=="0x11fa"',
                      self.rules()[ID])
        for _ in range(2):
            designation.remove_rule(ID)
            self.assertEqual({OTHER}, self.rules().keys())
        designation.remove_rule(OTHER)
        self.assertEqual([], os.listdir(f'{self.folder}/udev/rules.d'))

    def test_place_without_bus_numbers(self):
        # The second as Intel's VMD has it: another host bridge, below a
        # function.
        for stable_id, path in (
                (ID, 'pci0000:20/0000:??:01.0/0000:??:00.0'),
                ('/devices/pci0000:3f/0e.0/pci10000:e0/01.0/00.0',
                 'pci0000:3f/0000:??:0e.0/pci10000:e0/10000:??:01.0/'
                 '10000:??:00.0')):
            designation.add_rule(stable_id, '10de', '11fa', VFIO)
            self.assertIn(f'DEVPATH=="/devices/*{path}", ',
                          self.rules()[stable_id])

    def test_place_below_a_root_bus_that_the_firmware_names(self):
        # The rule of udev for "?" in a value: any one character, here "\\".
        node = 'KERNELS=="pci????:??", ATTRS{firmware_node/path}=="?_SB_.PC08"'
        for stable_id, path in (
                ('/devices/pci_SB_.PC08/01.0/00.0',
                 'pci????:??/????:??:01.0/????:??:00.0'),
                ('/devices/pci_SB_.PC08/0e.0/pci10000:e0/01.0/00.0',
                 'pci????:??/????:??:0e.0/pci10000:e0/10000:??:01.0/'
                 '10000:??:00.0')):
            designation.add_rule(stable_id, '10de', '11fa', VFIO)
            self.assertIn(f'DEVPATH=="/devices/*{path}", {node}, ATTR{{vendor',
                          self.rules()[stable_id])

    def test_words_of_the_caller_are_refused(self):
        designation.add_rule(ID, '10de', '11fa', VFIO)
        before = self.rules()
        other = '", RUN+="/bin/sh -c id'
        for arguments in (
                (f'{OTHER}{other}', '10de', '11fa'),
                (OTHER, f'10de{other}', '11fa'),
                (OTHER, '10de', f'11fa{other}'),
                (f'{OTHER}\nSUBSYSTEM=="pci"', '10de', '11fa'),
                (OTHER, '10de\n', '11fa'), (OTHER, '*', '11fa'),
                ('/devices/pci0000:20/*', '10de', '11fa'),
                ('/devices/pci0000:20/../01.0', '10de', '11fa'),
                ('/devices/pci0000:20', '10de', '11fa'),
                ('/devices/pci_SB_.PC*8/01.0', '10de', '11fa'),
                ('/devices/pci_SB_.PC08"/01.0', '10de', '11fa'),
                ('0000:21:00.0', '10de', '11fa'), ('', '', '')):
            self.assertRaises(
                PermissionError, designation.add_rule, *arguments, VFIO)
        self.assertEqual(before, self.rules())

    def test_other_words_than_vfio_drivers_are_refused(self):
        for word in ('', 'nvidia', 'vfio-pci; id', "vfio-pci'", 'vfio-pci"',
                     'vfio-pci\n', '../vfio-pci', '%k-vfio-pci',
                     '$x-vfio-pci', 'vfio-pci,RUN+=x'):
            for driver in (
                    vfio_drivers.VFIODriver(module=word, name='vfio-pci'),
                    vfio_drivers.VFIODriver(module='vfio-pci', name=word)):
                self.assertRaises(PermissionError, designation.add_rule,
                                  ID, '10de', '11fa', driver)
        self.assertEqual({}, self.rules())

    def test_rule_loads_the_module_and_binds_its_driver(self):
        designation.add_rule(ID, '10de', '11fa', VFIO)
        designation.add_rule(OTHER, '8086', 'e211', XE)
        self.assertIn('ATTR{driver_override}="vfio-pci", RUN+="/bin/sh -c '
                      "'modprobe vfio-pci; ", self.rules()[ID])
        rule = self.rules()[OTHER]
        self.assertIn('ATTR{driver_override}="xe-vfio-pci", RUN+="/bin/sh -c '
                      "'modprobe xe_vfio_pci; ", rule)
        self.assertIn('grep -qx DRIVER=xe-vfio-pci uevent', rule)


class DriverctlTest(DesignationCase):

    def setUp(self):
        super().setUp()
        pathlib.Path(self.folder, 'driverctl').write_text(
            f'#!/bin/sh\necho "$@" >> {self.folder}/called\n')
        os.chmod(f'{self.folder}/driverctl', 0o755)

    def test_called_for_one_function(self):
        designation.unset_override('0000:26:00.0')
        self.assertEqual(
            '--noprobe unset-override 0000:26:00.0\n',
            pathlib.Path(self.folder, 'called').read_text())

    def test_no_address(self):
        for address in ('--all', '', '../../etc', '0000:26:00.0 x'):
            self.assertRaises(
                exception.Invalid, designation.unset_override, address)
        self.assertFalse(os.path.exists(f'{self.folder}/called'))
