# SPDX-License-Identifier: Apache-2.0
"""Tests of what the helper refuses, on a modelled machine."""

import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.fake import machine
from gpgpu_plugin.privsep import guard

UNUSED = (guard.check_unused, guard.check_closed)
CHECKS = (guard.check_card, guard.check_no_guest, *UNUSED)


class GuardCase(base.BaseTestCase):

    machine = 'old-two-card'

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        machine.build(machine.load(self.machine), self.root)
        self.functions = scanner.scan(sysfs.Sysfs(self.root)).functions

    def the(self, device):
        return next(function.address for function in self.functions
                    if function.device == device)

    def write(self, address, name, value):
        pathlib.Path(self.root, 'bus/pci/devices', address, name).write_text(
            f'{value}\n')

    def bind(self, address, driver):
        link = pathlib.Path(self.root, 'bus/pci/devices', address, 'driver')
        link.unlink(missing_ok=True)
        os.symlink(f'../../../bus/pci/drivers/{driver}', link)

    def refused(self, check, name, *words):
        exc = self.assertRaises(PermissionError, check, self.root, name)
        for word in (name, *words):
            self.assertIn(word, str(exc))


class CardTest(GuardCase):

    def setUp(self):
        super().setUp()
        self.gpu, self.audio = self.the('11fa'), self.the('0e0b')
        self.write(self.gpu, 'boot_vga', '0')

    def test_gpu_and_its_companion_are_allowed(self):
        for check in CHECKS:
            for address in (self.gpu, self.audio):
                check(self.root, address)

    def test_every_other_function_is_refused(self):
        others = [function.address for function in self.functions
                  if not function.class_code.startswith('03')
                  and function.part_of is None]
        self.assertGreater(len(others), 3)
        for check in CHECKS:
            for address in others:
                self.refused(check, address, 'neither a GPU')

    def test_function_whose_class_cannot_be_read_is_refused(self):
        for address in (self.gpu, self.audio):
            self.write(address, 'class', '')
        self.refused(guard.check_card, self.gpu, 'neither a GPU')

    def test_name_that_is_no_address_is_refused(self):
        for name in ('', '..', '../drivers', f'{self.gpu} x'):
            self.refused(guard.check_card, name)

    def test_function_that_is_not_there(self):
        self.assertRaises(FileNotFoundError, guard.check_card, self.root,
                          '0000:ff:00.0')

    def test_display_that_the_host_booted_with_is_refused(self):
        self.write(self.gpu, 'boot_vga', '1')
        guard.check_card(self.root, self.gpu)
        guard.check_no_guest(self.root, self.gpu)
        for check in UNUSED:
            self.refused(check, self.gpu, 'booted with')
        # Once it was designated, the host does not use it.
        self.bind(self.gpu, 'vfio-pci')
        self.write(self.gpu, 'enable', '0')
        for check in CHECKS:
            check(self.root, self.gpu)

    def test_device_of_a_running_guest_is_refused(self):
        for driver in ('vfio-pci', 'nvgrace_gpu_vfio_pci', 'xe-vfio-pci'):
            self.bind(self.gpu, driver)
            self.write(self.gpu, 'enable', '1')
            guard.check_unused(self.root, self.gpu)
            self.refused(guard.check_closed, self.gpu, 'has it open')
            self.write(self.gpu, 'enable', '0')
            guard.check_closed(self.root, self.gpu)
        # A driver of the host enables its device as well.
        self.bind(self.gpu, 'nouveau')
        self.write(self.gpu, 'enable', '1')
        guard.check_closed(self.root, self.gpu)
        # But not if it is a vendor's VFIO driver.
        pathlib.Path(self.root, 'bus/pci/devices', self.gpu,
                     'vfio-dev').mkdir()
        self.refused(guard.check_closed, self.gpu, 'has it open')

    def test_pf_of_a_vf_that_a_guest_has_is_refused(self):
        os.symlink(f'../{self.audio}', pathlib.Path(
            self.root, 'bus/pci/devices', self.gpu, 'virtfn0'))
        self.bind(self.audio, 'vfio-pci')
        self.write(self.audio, 'enable', '0')
        guard.check_closed(self.root, self.gpu)
        self.write(self.audio, 'enable', '1')
        self.refused(guard.check_closed, self.gpu,
                     f'its VF {self.audio} open')


class GPUTest(GuardCase):

    def test_companion_is_no_gpu(self):
        guard.check_gpu(self.root, self.the('11fa'))
        self.refused(guard.check_gpu, self.the('0e0b'), 'it is not a GPU')


class NVSwitchTest(GuardCase):

    machine = 'hgx-h100-8'

    def test_nvswitch_is_allowed_and_a_network_card_is_not(self):
        guard.check_closed(self.root, self.the('22a3'))
        self.refused(guard.check_gpu, self.the('22a3'), 'it is not a GPU')
        self.refused(guard.check_card, self.the('1021'), 'neither a GPU')
        # The same class of another vendor.
        self.write(self.the('22a3'), 'vendor', '0x15b3')
        self.refused(guard.check_card, self.the('22a3'), 'neither a GPU')


class MdevTest(GuardCase):

    UUID = '5f9c1b1e-8ab0-4a6a-9a7e-0d3f3f1f0a11'

    def setUp(self):
        super().setUp()
        self.gpu, self.other = self.the('11fa'), next(
            function.address for function in self.functions
            if not function.class_code.startswith('03')
            and function.part_of is None)

    def add_mdev(self, parent):
        """Return the name of the parent, which has the mdev now."""
        for kind in ('class/mdev_bus', 'bus/mdev/devices'):
            os.makedirs(f'{self.root}/{kind}', exist_ok=True)
        link = pathlib.Path(self.root, 'class/mdev_bus', parent.name)
        link.symlink_to(parent)
        (parent / self.UUID).mkdir(parents=True)
        mdev = pathlib.Path(self.root, 'bus/mdev/devices', self.UUID)
        mdev.unlink(missing_ok=True)
        mdev.symlink_to(parent / self.UUID)
        return parent.name

    def pci(self, address):
        return pathlib.Path(os.path.realpath(
            f'{self.root}/bus/pci/devices/{address}'))

    def test_gpu_and_a_parent_that_is_no_pci_function_are_allowed(self):
        for parent in (self.pci(self.gpu), pathlib.Path(
                self.root, 'devices/virtual/mtty/mtty')):
            guard.check_parent(self.root, self.add_mdev(parent))
            guard.check_mdev(self.root, self.UUID)

    def test_gpu_with_mdevs_is_not_closed(self):
        """A guest may have one, which a reset of the GPU would end."""
        self.write(self.gpu, 'boot_vga', '0')
        guard.check_closed(self.root, self.gpu)
        self.add_mdev(self.pci(self.gpu))
        (self.pci(self.gpu) / self.UUID / 'mdev_type').touch()
        self.refused(guard.check_closed, self.gpu, 'it has mdevs')

    def test_parent_that_is_no_gpu_is_refused(self):
        name = self.add_mdev(self.pci(self.other))
        self.refused(guard.check_parent, name, 'neither a GPU')
        exc = self.assertRaises(
            PermissionError, guard.check_mdev, self.root, self.UUID)
        self.assertIn(name, str(exc))

    def test_parent_outside_of_the_devices_is_refused(self):
        name = self.add_mdev(pathlib.Path(self.root, 'devices/system/cpu'))
        self.refused(guard.check_parent, name)
