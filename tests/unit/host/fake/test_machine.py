# SPDX-License-Identifier: Apache-2.0
"""Tests of descriptions of machines and of the trees built from them."""

import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.fake import machine

HEAD = 'title: x\nsource: x\nreference: x\n'
GPU = {'at': '00.0', 'vendor': '10de', 'device': '2330', 'class': '030200'}


class MachineTestCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.root = self.folder / 'sys'

    def load(self, text):
        path = self.folder / 'host.yaml'
        path.write_text(text)
        return machine.load(str(path))


class LoadTest(MachineTestCase):

    def test_every_machine_of_the_package_is_loaded_by_its_name(self):
        self.assertIn('hgx-h100-8', machine.names())
        for name in machine.names():
            self.assertEqual(name, machine.load(name).name)

    def test_unknown_machine_is_not_found_and_known_ones_are_named(self):
        exc = self.assertRaises(exception.NotFound, machine.load, 'cray-1')
        self.assertIn('hgx-h100-8', str(exc))

    def test_file_that_is_no_recording_is_refused(self):
        for text, words in (
                ('{', 'not YAML'), ('- 1', 'no keys'),
                ('title: x', 'lacks reference and source'),
                (HEAD, 'roots and tree'),
                (f'{HEAD}roots: []\ntree: {{}}', 'roots and tree'),
                # It could be written to any place.
                (f'{HEAD}roots: []', 'not a recording'),
                (f'{HEAD}tree: {{}}\nvgpu: []', 'mapping of rules')):
            exc = self.assertRaises(exception.Invalid, self.load, text)
            self.assertIn(words, str(exc))
            self.assertLess(len(str(exc)), 500)

    def test_refusal_of_a_file_says_how_to_make_one(self):
        exc = self.assertRaises(exception.Invalid, self.load, '{')
        self.assertIn('gpgpu-host record', str(exc))

    def test_folder_is_refused(self):
        exc = self.assertRaises(
            exception.Invalid, machine.load, str(self.folder))
        self.assertIn('Is a directory', str(exc))

    def test_recording_that_was_dumped_is_loaded(self):
        tree = {'bus': {'pci': {'devices': {}}}, 'text': 'two\nlines\n'}
        loaded = self.load(machine.dump(tree, 'a test'))
        self.assertEqual(
            (tree, 'a test', 'recorded', ()),
            (loaded.tree, loaded.reference, loaded.source, loaded.roots))


class BuildTest(MachineTestCase):

    def build(self, *children, **kwargs):
        return self.build_root(
            {'bus': '0000:3a', 'children': children}, **kwargs)

    def build_root(self, root, **kwargs):
        machine.build(machine.Machine(
            name='x', title='x', source='modelled', reference='none',
            facts={}, roots=(root,)), self.root, **kwargs)
        return scanner.scan(sysfs.Sysfs(str(self.root))).functions

    def test_function_has_what_its_description_says(self):
        [gpu] = self.build({**GPU, 'numa': 1, 'driver': 'nvidia',
                            'dsn': '00-11-22-33-44-55-66-77'})
        self.assertEqual(
            ('0000:3a:00.0', '10de', '2330', '030200', 'nvidia', 1,
             '00-11-22-33-44-55-66-77'),
            (gpu.address, gpu.vendor, gpu.device, gpu.class_code, gpu.driver,
             gpu.numa_node, gpu.dsn))

    def test_kernel_has_the_aliases_of_the_description(self):
        for name, count in (('wide-domains', 2), ('old-two-card', 0)):
            root = self.folder / name
            machine.build(machine.load(name), root)
            self.assertEqual(
                count, len(vfio_drivers.aliases(sysfs.Sysfs(str(root)))))

    def test_bus_step_changes_addresses_alone(self):
        port = {'at': '01.0', 'kind': 'root_port', 'vendor': '8086',
                'device': '2030', 'class': '060400', 'children': [GPU]}
        found = self.build(port)
        self.root = self.folder / 'other'
        others = self.build(port, bus_step=3)
        self.assertEqual([function.id for function in found],
                         [function.id for function in others])
        self.assertEqual(['0000:3a:01.0', '0000:3b:00.0'],
                         [function.address for function in found])
        self.assertEqual(['0000:3a:01.0', '0000:3d:00.0'],
                         [function.address for function in others])

    def test_bus_step_renumbers_root_buses_that_the_firmware_names(self):
        root = {'bus': '0000:3a', 'firmware': '\\_SB_.PC05',
                'children': [GPU]}
        for step, address in ((1, '0000:3a:00.0'), (3, '0000:3c:00.0')):
            self.root = self.folder / str(step)
            [gpu] = self.build_root(root, bus_step=step)
            self.assertEqual(('/devices/pci_SB_.PC05/00.0', address),
                             (gpu.id, gpu.address))

    def test_functions_of_one_device_share_an_iommu_group(self):
        first, second, other = self.build(
            GPU, {**GPU, 'at': '00.1'}, {**GPU, 'at': '02.0'})
        self.assertEqual(first.iommu_group, second.iommu_group)
        self.assertNotEqual(first.iommu_group, other.iommu_group)

    def test_dead_function_does_not_answer(self):
        [gpu] = self.build({**GPU, 'dead': True})
        self.assertIn('does not answer', gpu.fault)

    def test_attribute_may_be_in_folders(self):
        [gpu] = self.build({**GPU, 'attributes': {
            'sriov_admin/vf1/profile/vram_quota': 7}})
        self.assertEqual('7\n', (
            self.root / 'bus/pci/devices' / gpu.address
            / 'sriov_admin/vf1/profile/vram_quota').read_text())

    def test_rule_for_a_device_that_is_not_there_leaves_no_tree(self):
        self.assertRaises(
            exception.Invalid, machine.build, machine.Machine(
                name='x', title='x', source='recorded', reference='none',
                facts={}, tree={'bus': {'pci': {'devices': {}}}},
                vgpu={'0000:ff:00.0': {'mechanism': 'mdev', 'types': {}}}),
            self.root)
        self.assertFalse(os.path.exists(self.root))


class ArcProTest(MachineTestCase):

    def test_quotas_of_pf_and_vfs_are_there(self):
        machine.build(machine.load('intel-arc-pro-b60-2'), self.root)
        [*found] = self.root.glob('bus/pci/devices/*/sriov_admin/*/profile/*')
        self.assertEqual(2 * (3 + 4 * 4), len(found))
        self.assertEqual(2 * 4, sum(
            path.name == 'vram_quota' for path in found))


class ConfigTest(base.BaseTestCase):

    def test_space_has_ids_and_kind_of_port(self):
        space = machine.config({**GPU, 'subsystem_vendor': '10de',
                                'subsystem': '16c1', 'revision': 'a1'})
        shape = config_space.shape(space)
        self.assertEqual(
            ('10de', '2330', '030200', 'a1', '10de', '16c1'),
            tuple(shape[name] for name in (
                'vendor', 'device', 'class', 'revision', 'subsystem vendor',
                'subsystem')))
        self.assertEqual(0, config_space.port_type(space))
        self.assertEqual(5, config_space.port_type(machine.config(
            {**GPU, 'kind': 'upstream'})))

    def test_space_is_extended_for_a_serial_number_alone(self):
        self.assertEqual(256, len(machine.config(GPU)))
        self.assertEqual(4096, len(machine.config(
            {**GPU, 'dsn': '00-11-22-33-44-55-66-77'})))


class SyntheticTest(MachineTestCase):

    def test_machine_has_as_many_gpus_as_asked_for(self):
        machine.build(machine.synthetic(3, 2), self.root)
        gpus = [function for function in scanner.scan(
            sysfs.Sysfs(str(self.root))).functions
            if function.device == '74a1']
        self.assertEqual([2] * 3, [gpu.sriov_totalvfs for gpu in gpus])
