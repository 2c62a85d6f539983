# SPDX-License-Identifier: Apache-2.0
"""Tests of the scanner on all machines, by the facts of their listings."""

import collections
import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.discovery import vfio_drivers
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import machine
from tests.fixtures import hives
from tests.fixtures import reported

BMC = '1a03'


class MachineTestCase(base.BaseTestCase):

    def build(self, name, **kwargs):
        root = self.useFixture(fixtures.TempDir()).path
        machine.build(machine.load(name), root, **kwargs)
        return root

    def scan(self, name, **kwargs):
        return scanner.scan(sysfs.Sysfs(self.build(name, **kwargs)))

    @staticmethod
    def gpus(scan):
        return [function for function in reported.functions(scan)
                if pci.can_be_gpu(function.class_code)
                and function.vendor != BMC]


class TextTest(MachineTestCase):
    """What a device says must not control the operator's terminal."""

    def test_text_of_a_device_is_escaped(self):
        root = self.build('old-two-card')
        tree = sysfs.Sysfs(root)
        gpu = next(function for function in scanner.scan(tree).functions
                   if function.device == '11fa')
        pathlib.Path(root, 'bus/pci/devices', gpu.address,
                     'label').write_text('\x1b]0;root\x07\nx')
        expected = r'\x1b]0;root\x07\nx'
        self.assertEqual(expected, next(
            function.slot for function in scanner.scan(tree).functions
            if function.id == gpu.id))
        self.assertEqual(
            expected, scanner.scan_card(tree, gpu.address)[0].slot)
        self.assertEqual(
            expected, scanner.scan_function(tree, gpu.address).slot)


class FactsTest(MachineTestCase):

    def test_every_machine_has_the_facts_of_its_listing(self):
        self.assertGreaterEqual(len(machine.names()), 7)
        for name in machine.names():
            with self.subTest(name):
                description = machine.load(name)
                self.assertIn(description.source, ('recorded', 'modelled'))
                self.assertIn('https://', description.reference)
                self._check(description.facts, self.scan(name))

    def _check(self, facts, scan):
        gpus = self.gpus(scan)
        switches = {gpu.switch_path[-1] for gpu in gpus if gpu.switch_path}
        checks = {
            'gpus': lambda: len(gpus),
            'ids': lambda: ' '.join({
                f'{gpu.vendor}:{gpu.device}' for gpu in gpus}),
            'subsystem': lambda: ' '.join({
                f'{gpu.subsystem_vendor}:{gpu.subsystem}' for gpu in gpus}),
            'class': lambda: ' '.join({gpu.class_code for gpu in gpus}),
            'numa_nodes': lambda: dict(collections.Counter(
                gpu.numa_node for gpu in gpus if gpu.numa_node is not None)),
            'switches': lambda: len(switches),
            'gpus_per_switch': lambda: max(collections.Counter(
                gpu.switch_path[-1] for gpu in gpus).values()),
            'driverless': lambda: sum(gpu.driver is None for gpu in gpus),
            'first_id': lambda: gpus[0].id,
            'slot_of_first': lambda: gpus[0].slot,
            'sriov_totalvfs': lambda: max(
                gpu.sriov_totalvfs for gpu in gpus),
            'faults': lambda: sum(gpu.fault is not None for gpu in gpus),
            'unreadable': lambda: dict(collections.Counter(
                name for gpu in gpus for name in gpu.unreadable)),
            'vgpu_types': lambda: {
                listed.name: listed.max_instances
                for listed in gpus[0].vgpu_types},
            'addresses': lambda: [gpu.address for gpu in gpus],
            'companions': lambda: {
                f'{gpu.vendor}:{gpu.device}': len(gpu.companions)
                for gpu in gpus if gpu.companions},
            'nvswitches': lambda: max(gpu.nvswitches for gpu in gpus),
            'unsupported': lambda: sum(
                gpu_rules.unsupported_reason(gpu) is not None for gpu in gpus),
            'boot_vga': lambda: sum(
                function.used_by == 'boot_vga' for function in scan.functions),
        }
        self.assertTrue(facts)
        for name, expected in facts.items():
            self.assertEqual(expected, checks[name](), name)


class IdentityTest(MachineTestCase):

    def test_ids_survive_renumbering(self):
        for name in machine.names():
            one, other = self.scan(name), self.scan(name, bus_step=3)
            self.assertEqual({function.id for function in one.functions},
                             {function.id for function in other.functions})
            self.assertEqual(len(one.functions),
                             len({function.id for function in one.functions}))
        self.assertNotEqual(
            [
                function.address
                for function in self.scan('hgx-h100-8').functions
            ],
            [
                function.address
                for function in self.scan('hgx-h100-8', bus_step=3).functions
            ],
        )

    def test_companions_and_iommu_group_are_found(self):
        functions = {function.address: function
                     for function in self.scan('old-two-card').functions}
        [quadro] = [function for function in functions.values()
                    if function.device == '11fa']
        [audio] = quadro.companions
        self.assertEqual((audio,), quadro.iommu_group_members)
        self.assertEqual(quadro.iommu_group, functions[audio].iommu_group)
        self.assertEqual('Slot 4', quadro.slot)


class UseTest(MachineTestCase):

    def test_open_device_is_used_by_vfio(self):
        root = self.build('hgx-h100-8')
        gpu = self.gpus(scanner.scan(sysfs.Sysfs(root)))[0]
        folder = f'{root}/bus/pci/devices/{gpu.address}'
        kernel = fake_kernel.FakeKernel(root)
        kernel.write(f'bus/pci/devices/{gpu.address}/driver_override',
                     'vfio-pci')
        kernel.write('bus/pci/drivers/vfio-pci/bind', gpu.address)
        for enabled, used_by in (('0', None), ('1', 'vfio')):
            with open(f'{folder}/enable', 'w') as file:
                file.write(f'{enabled}\n')
            self.assertEqual(used_by, scanner.scan_function(
                sysfs.Sysfs(root), gpu.address).used_by)


class UnprivilegedTest(MachineTestCase):

    def test_switches_are_found_in_the_header_alone(self):
        # Without CAP_SYS_ADMIN the kernel shows 64 bytes of config space.
        for name in machine.names():
            root = self.build(name)
            before = scanner.scan(sysfs.Sysfs(root))
            for folder in os.scandir(f'{root}/bus/pci/devices'):
                with open(f'{folder.path}/config', 'r+b') as file:
                    file.truncate(64)
            after = scanner.scan(sysfs.Sysfs(root))
            self.assertEqual(
                [function.switch_path for function in before.functions],
                [function.switch_path for function in after.functions], name)


class HiveTest(MachineTestCase):
    """The xGMI hive, in a folder of one GPU to which the others link."""

    def test_hive_is_read_while_amdgpu_reports_it(self):
        root = self.build('amd-mi300x-8')
        tree = sysfs.Sysfs(root)
        addresses = [gpu.address for gpu in self.gpus(scanner.scan(tree))]
        folder = hives.link(root, addresses[:-1])
        self.assertEqual(
            [hives.HIVE] * 7 + [None],
            [gpu.hive for gpu in self.gpus(scanner.scan(tree))])
        (folder / 'xgmi_hive_id').unlink()
        (folder / 'xgmi_hive_id').mkdir()
        scan = scanner.scan(tree)
        self.assertEqual({None}, {gpu.hive for gpu in self.gpus(scan)})
        self.assertEqual(7, len([problem for problem in scan.problems
                                 if 'hive' in problem]))


class BrokenTest(MachineTestCase):

    def test_unreadable_attribute_is_unknown_and_a_problem(self):
        scan = self.scan('broken-l40s-4')
        (half,) = [
            function for function in scan.functions if function.unreadable
        ]
        self.assertEqual((None, None), (half.numa_node, half.subsystem))
        self.assertEqual(2, len(scan.problems))
        for problem in scan.problems:
            self.assertIn(half.address, problem)
        self.assertEqual(10, len(scan.functions))

    def test_folder_without_pci_bus_is_refused(self):
        exc = self.assertRaises(
            exception.HostError, scanner.scan, sysfs.Sysfs('/nonexistent'))
        self.assertIn('/nonexistent/bus/pci/devices', str(exc))

    def test_function_that_vanishes_during_the_scan_is_a_problem(self):
        root = self.build('pcie-l40s-4')
        link = next(os.scandir(f'{root}/bus/pci/devices'))
        os.unlink(link.path)
        os.symlink('nowhere', link.path)
        scan = scanner.scan(sysfs.Sysfs(root))
        self.assertEqual(9, len(scan.functions))
        self.assertIn(link.name, scan.problems[0])


class VFIOTest(MachineTestCase):

    def grace(self, root):
        return next(
            function for function in scanner.scan(sysfs.Sysfs(root)).functions
            if function.device == '2342')

    def test_gpu_without_its_vfio_driver_has_a_reason(self):
        root = self.build('wide-domains')
        self.assertIsNone(self.grace(root).vfio_refusal)
        os.unlink(f'{root}/{vfio_drivers.ALIASES}')
        reason = self.grace(root).vfio_refusal
        for words in ('10de:2342 needs VFIO driver nvgrace-gpu-vfio-pci',
                      'depmod'):
            self.assertIn(words, reason)
        self.assertNotIn(root, reason)
        self.assertEqual(1, sum(
            function.vfio_refusal is not None for function
            in scanner.scan(sysfs.Sysfs(root)).functions))

    def test_vf_with_vgpu_types_needs_no_vfio_driver(self):
        root = self.build('nvidia-l40s-vgpu-2')
        kernel = fake_kernel.FakeKernel(root)
        pf = next(function for function in scanner.scan(sysfs.Sysfs(
            root)).functions if function.sriov_totalvfs)
        kernel.set_vfs(pf.address, 1)
        # Both are GB200 now.
        folders = [pathlib.Path(root, 'bus/pci/devices', name) for name in (
            pf.address, os.path.basename(os.readlink(
                f'{root}/bus/pci/devices/{pf.address}/virtfn0')))]
        for folder in folders:
            (folder / 'device').write_text('0x2941\n')
            (folder / 'modalias').write_text('\n')
        self.assertEqual([True, False], [
            scanner.scan_function(sysfs.Sysfs(root), folder.name
                                  ).vfio_refusal is not None
            for folder in folders])

    def test_function_without_an_iommu_group_has_a_reason(self):
        root = self.build('nvidia-l40s-vgpu-2')
        for link in pathlib.Path(root, 'bus/pci/devices').glob(
                '*/iommu_group'):
            link.unlink()
        for function in scanner.scan(sysfs.Sysfs(root)).functions:
            self.assertIn('is the IOMMU on', function.vfio_refusal)

    def test_device_that_is_open_through_a_variant_is_used(self):
        root = self.build('wide-domains')
        kernel = fake_kernel.FakeKernel(root)
        kernel.load_vfio('nvgrace_gpu_vfio_pci')
        folder = f'bus/pci/devices/{self.grace(root).address}'
        kernel.write(f'{folder}/driver_override', 'nvgrace_gpu_vfio_pci')
        kernel.write('bus/pci/drivers/nvgrace_gpu_vfio_pci/bind',
                     self.grace(root).address)
        for enabled, used_by in (('0', None), ('1', 'vfio')):
            pathlib.Path(root, folder, 'enable').write_text(f'{enabled}\n')
            self.assertEqual(used_by, self.grace(root).used_by)


class CallsTest(MachineTestCase):

    def test_calls_for_a_function_are_bounded(self):
        calls = collections.Counter()
        for name in ('open', 'readlink', 'listdir'):
            original = getattr(os, name)

            def counted(*args, original=original, name=name, **kwargs):
                calls[name] += 1
                return original(*args, **kwargs)
            self.useFixture(fixtures.MonkeyPatch(f'os.{name}', counted))
        root = self.build('amd-mi300x-8')
        calls.clear()
        scan = scanner.scan(sysfs.Sysfs(root))
        functions, gpus = len(scan.functions), len(self.gpus(scan))
        # GPUs are no VFs here.
        self.assertLessEqual(calls['readlink'], 4 * functions - gpus)
        # The folder, modalias, revision and numa_node of each; the ids of
        # bridges, which lack a modalias.
        self.assertLessEqual(
            calls['open'], 4 * functions + 6 * (functions - gpus) + 4 * gpus)
        # Folders of functions, slots and mdev parents.
        self.assertLessEqual(calls['listdir'], 3 + gpus)
