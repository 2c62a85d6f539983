# SPDX-License-Identifier: Apache-2.0
"""Tests of mdev parents that are no PCI functions: kernel samples."""

import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.discovery import watch
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.host.fake import vgpu_driver
from gpgpu_plugin.host.vfio import designation
from tests.contract import mdev
from tests.fixtures import reported

MBOCHS = {'mechanism': 'mdev', 'mix_policy': 'any_mix', 'types': {
    f'mbochs-{name}': {
        'name': f'mbochs-{name}', 'video_ram': size, 'max': 256 // size,
        'description': f'virtual display, {size} MB video memory'}
    for name, size in (('small', 4), ('medium', 16), ('large', 64))}}
MTTY = {'mechanism': 'mdev', 'mix_policy': 'any_mix', 'types': {
    f'mtty-{ports}': {'name': f'{name} port serial', 'video_ram': ports,
                      'max': 24 // ports}
    for ports, name in ((1, 'Single'), (2, 'Dual'))}}


def add(root, name, rule):
    """Add to a tree what the module of a sample driver adds."""
    folder = pathlib.Path(root, 'devices/virtual', name, name)
    folder.mkdir(parents=True)
    vgpu_driver.add_types(pathlib.Path(root), folder, rule)


class VirtualParentCase(base.BaseTestCase):

    machine = 'pcie-l40s-4'

    def setUp(self):
        super().setUp()
        self.root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        self.backend = fake_host.FakeHost.for_machine(self.machine, self.root)
        self.sysfs = sysfs.Sysfs(self.root)

    def parents(self, scan=None):
        scan = scan or scanner.scan(self.sysfs)
        self.assertEqual((), scan.problems)
        return [parent for parent in reported.functions(scan)
                if ':' not in parent.address]


class ScanTest(VirtualParentCase):

    def test_samples_are_found_with_ids_and_types(self):
        before = reported.functions(scanner.scan(self.sysfs))
        add(self.root, 'mtty', MTTY)
        add(self.root, 'mbochs', MBOCHS)
        mbochs, mtty = self.parents()
        self.assertEqual(
            ('/devices/virtual/mbochs/mbochs', 'mbochs', '1234', '1111',
             '038000', vgpu.VGPUMechanism.MDEV, (), None),
            (mbochs.id, mbochs.address, mbochs.vendor, mbochs.device,
             mbochs.class_code, mbochs.vgpu_mechanism, mbochs.existing_vgpus,
             mbochs.used_by))
        self.assertEqual(
            [('mbochs-large', 64, 4), ('mbochs-medium', 16, 16),
             ('mbochs-small', 4, 64)],
            [(listed.name, listed.video_ram, listed.max_instances)
             for listed in mbochs.vgpu_types])
        self.assertEqual(
            ('/devices/virtual/mtty/mtty', '4348', '3253', '070002'),
            (mtty.id, mtty.vendor, mtty.device, mtty.class_code))
        self.assertEqual(
            {'mtty-1': 24, 'mtty-2': 12},
            {listed.name: listed.max_instances
             for listed in mtty.vgpu_types})
        for parent in (mbochs, mtty):
            self.assertEqual(
                parent, reported.function(self.sysfs, parent.address)
            )
            # Not functions of one card, though neither has a slot.
            self.assertEqual((None, (), ()), (
                parent.part_of, parent.companions,
                parent.iommu_foreign_members))
        self.assertEqual([*before, mbochs, mtty],
                         reported.functions(scanner.scan(self.sysfs)))

    def test_unknown_parent_has_types_but_no_ids(self):
        add(self.root, 'matrix', MBOCHS)
        [found] = self.parents()
        self.assertEqual((None, None, None, 3), (
            found.vendor, found.device, found.class_code,
            len(found.vgpu_types)))

    def test_pci_function_is_reported_once(self):
        root = f'{self.useFixture(fixtures.TempDir()).path}/sys'
        fake_host.FakeHost.for_machine('nvidia-t4-2', root)
        self.assertEqual(2, len(os.listdir(f'{root}/class/mdev_bus')))
        self.assertEqual([], self.parents(scanner.scan(sysfs.Sysfs(root))))

    def test_missing_parent_is_none(self):
        self.assertIsNone(scanner.scan_function(self.sysfs, 'mbochs'))

    def test_unreadable_parent_is_a_problem(self):
        add(self.root, 'mbochs', MBOCHS)
        add(self.root, 'mtty', MTTY)
        # A link to itself cannot be read; another one leads nowhere.
        path = pathlib.Path(self.root, 'devices/virtual/mtty/mtty',
                            'mdev_supported_types/mtty-1/name')
        path.unlink()
        path.symlink_to('name')
        link = pathlib.Path(self.root, 'class/mdev_bus/mbochs')
        link.unlink()
        link.symlink_to('elsewhere')
        scan = scanner.scan(self.sysfs)
        self.assertEqual(['mbochs: path', 'mtty: vGPU types'], [
            problem.partition(' cannot')[0] for problem in scan.problems])
        found = reported.functions(scan)[-1]
        self.assertEqual(('mtty', None, ('vGPU types',)), (
            found.address, found.vgpu_mechanism, found.unreadable))

    def test_parent_of_any_class_is_discovered(self):
        add(self.root, 'mtty', MTTY)
        scan = self.backend.scan()
        found = self.backend.discover(scan)
        self.assertEqual([parent.function for parent in self.parents(scan)], [
            function for function in found
            if not pci.can_be_gpu(function.class_code)])
        self.assertIn(self.parents(scan)[0].function, found)

    def test_loaded_driver_is_noticed(self):
        seen = watch.Watch(self.sysfs, self.backend.scan())
        self.addCleanup(seen.close)
        self.assertFalse(seen.changed())
        add(self.root, 'mbochs', MBOCHS)
        self.assertTrue(seen.changed())

    def test_parent_is_not_passed_through(self):
        add(self.root, 'mbochs', MBOCHS)
        [found] = self.parents()
        self.assertRaises(
            exception.HostError, self.backend.prepare, host_base.HostDevice(
                assignment_uuid='a', stable_id=found.id,
                address=found.address))
        self.assertRaises(
            exception.NotFound, designation.Designator(
                self.sysfs, self.backend.binder,
                self.backend.designations).designate, 'mbochs')


class VirtualMdevContractTest(mdev.MdevContract, VirtualParentCase):
    """The fake mbochs keeps the contract of the real one in the lab."""

    def setUp(self):
        super().setUp()
        add(self.root, 'mbochs', MBOCHS)
        [self.parent] = self.parents()
        self.types = {'mbochs-small': 64, 'mbochs-medium': 16,
                      'mbochs-large': 4}

    def write(self, path, value):
        self.backend.kernel.write(path, value)
