# SPDX-License-Identifier: Apache-2.0
"""Tests of ``variant import`` and the shipped catalogue."""

import itertools
import os
import pathlib
import re
import sys

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import catalogue
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import variant as rules
from tests.unit.cmd import base as cmd_base

CHECKOUT = pathlib.Path(__file__).parents[3]
TWO = """
variants:
  - {name: H100, vendor: "10DE", device: "2330", traits: [CUSTOM_HOPPER]}
  - {name: A100, vendor: "10de", device: "20b0"}
"""

_PCI_IDS = pathlib.Path('/usr/share/misc/pci.ids')
# What the PCI ID Repository calls GPUs of data centres and workstations since
# 2016: of NVIDIA, chips since Pascal that have a product's name.
_GPUS = {
    '10de': r'(GP1|GV1|TU1|GA1|AD1|GH1|GB1|GB2)\w+ .*\[',
    '1002': r'.*(Instinct|Radeon (AI )?P(ro|RO) |/ ?P(ro|RO) W\d|FirePro S\d)',
    '8086': r'.*(Data Center GPU|Server GPU|Arc Pro)',
    '1da3': r'.*Accelerator'}
_LEFT_OUT = (
    (r'(?i)GeForce|TITAN|\bMX\d|RTX Spark|Generic-GPU|AC AD104',
     'cards of consumers'),
    (r'RX \d', 'ids that cards of consumers share'),
    (r'Mobile|Laptop|Max-Q(?! Work)|Embedded|GLM \[|Pro A\d0M|W\d{4}M|00M\b|'
     r'WX 41[37]0|WX Vega M|Arrow Lake|Panther Lake',
     'GPUs of laptops, embedded and integrated ones'),
    (r'\[CMP |\[P10\d|BC-160', 'cards for mining'),
    (r'Reserved|Dev ?ID|SKU|PG\d{3}|GRID A100|GH3|Skinny Joe',
     'boards that are not sold under a name'),
    (r'DRIVE|Jetson|Tegra', 'boards of vehicles and robots'),
    (r'W\d{4}X\b|Pro Vega|Pro 5\d00', 'cards of Apple\'s machines'),
    (r'Barco', 'cards of medical displays'),
    (r'\bVF\b|MxGPU|S7150V', 'VFs, for which operators create variants'),
    (r'NVSwitch', 'switches'))
# The VF of 74a9 MI300X HF, though its name does not say so.
_VF = ('1002', '74bd')


class ShippedTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.variants = catalogue.read(
            CHECKOUT / 'etc' / 'gpgpu' / 'variants.yaml')

    def test_shipped_entry_is_in_normal_form(self):
        self.assertGreater(len(self.variants), 40)
        for variant in self.variants:
            self.assertEqual(variant, rules.check(variant))

    def test_shipped_entries_never_collide(self):
        for one, other in itertools.combinations(self.variants, 2):
            self.assertFalse(rules.overlaps(one, other), (one, other))
            self.assertNotEqual(one.resource_class, other.resource_class)
        for number, variant in enumerate(self.variants):
            self.assertIsNone(rules.collides(variant.name, [
                other.name for other in self.variants[:number]]))

    def test_shipped_entry_matches_its_own_device_alone(self):
        for variant in self.variants:
            function = pci.PCIFunction(
                id='/devices/x', address='0000:01:00.0',
                vendor=variant.vendor, device=variant.device,
                subsystem_vendor=variant.subsystem_vendor,
                subsystem=variant.subsystem)
            self.assertEqual(variant, rules.match(self.variants, function))

    def test_shipped_entry_is_named_after_its_vendor(self):
        self.assertEqual({
            'NVIDIA': '10de', 'AMD': '1002', 'INTEL': '8086',
            'HABANA': '1da3'}, {
            variant.name.partition('_')[0]: variant.vendor
            for variant in self.variants})

    def test_entry_has_the_policy_that_its_model_passes_or_its_own(self):
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'x.yaml')
        path.write_text(TWO.replace('"20b0"', '"20B0", cleaning_policy: scrub')
                        + '  - {name: V100, vendor: "10de", device: "1db4"}')
        self.assertEqual(
            ['reset+memory-clear+settings', 'scrub', 'default'],
            [variant.cleaning_policy for variant in catalogue.read(path)])

    def test_shipped_entry_accepts_no_unsupported_hardware(self):
        for variant in self.variants:
            self.assertFalse(variant.unsupported_ok, variant.name)

    def test_catalogue_is_found_in_checkout_or_installation(self):
        self.useFixture(fixtures.MonkeyPatch(
            'sys.prefix', self.useFixture(fixtures.TempDir()).path))
        if not os.path.exists('/etc/gpgpu/variants.yaml'):
            self.assertEqual(CHECKOUT / 'etc/gpgpu/variants.yaml',
                             catalogue.shipped())
        folder = pathlib.Path(sys.prefix, 'etc', 'gpgpu')
        folder.mkdir(parents=True)
        (folder / 'variants.yaml').write_text(TWO, encoding='utf-8')
        if not os.path.exists('/etc/gpgpu/variants.yaml'):
            self.assertEqual(folder / 'variants.yaml', catalogue.shipped())


class PCIIDsTest(base.BaseTestCase):
    """The catalogue has what the PCI ID Repository of this machine has."""

    def test_catalogue_has_every_gpu_that_is_not_left_out_on_purpose(self):
        if not _PCI_IDS.exists():
            self.skipTest('no package pci.ids')
        known = {(variant.vendor, variant.device) for variant in
                 catalogue.read(CHECKOUT / 'etc' / 'gpgpu' / 'variants.yaml')}
        vendor, found, missing = '', set(), []
        for line in _PCI_IDS.read_text('utf-8', 'replace').splitlines():
            device, _, name = line.strip().partition('  ')
            if re.match(r'[0-9a-f]{4} ', line):
                vendor = device
            elif re.match(r'\t[0-9a-f]{4} ', line):
                if (vendor, device) in known:
                    found.add(vendor)
                elif re.match(_GPUS.get(vendor, '$^'), name) and not any(
                        re.search(pattern, name) for pattern, _ in _LEFT_OUT
                        ) and (vendor, device) != _VF:
                    missing.append(f'{vendor}:{device} {name}')
            elif line.startswith('C '):
                # Classes follow, in the form of vendors.
                break
        self.assertEqual([], missing)
        self.assertEqual(set(_GPUS), found)


class ReadTest(base.BaseTestCase):

    def read(self, text):
        path = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'x.yaml')
        path.write_text(text, encoding='utf-8')
        return catalogue.read(path)

    def test_entry_is_read_into_normal_form(self):
        first = self.read(TWO)[0]
        self.assertEqual(('10de', 'CUSTOM_GPU_H100', ('CUSTOM_HOPPER',)),
                         (first.vendor, first.resource_class, first.traits))

    def test_entry_may_accept_unsupported_hardware(self):
        [*accepted] = (variant.unsupported_ok for variant in self.read(
            TWO.replace('device: "2330"',
                        'device: "2330", unsupported_ok: true')))
        self.assertEqual([True, False], accepted)

    def test_malformed_entry_is_refused_and_file_is_named(self):
        for text, expected in (
                ('', 'a mapping with a list "variants"'),
                ('[]', 'a mapping with a list "variants"'),
                ('variants: 3', 'a mapping with a list "variants"'),
                ('variants: {a: b}', 'a mapping with a list "variants"'),
                ('variants: [', 'a file of YAML text'),
                ('[' * 3000, 'a file of YAML text'),
                ('variants: [2026-13-01]', 'a file of YAML text'),
                ('variants: [3]', 'entry 1'),
                ('variants: [{name: A, vendor: "10de"}]', '`device`'),
                ('variants: [{name: A, vendor: 1002, device: "74a1"}]',
                 'ids in quotes'),
                ('variants: [{name: A, vendor: "10de", device: "1eb8", '
                 'colour: red, devices: 3}]', 'not colour, devices'),
                ('variants: [{name: A, vendor: "10de", device: "1eb8", '
                 'traits: CUSTOM_A}]', '$.traits'),
                ('variants: [{name: A, vendor: "10de", device: "1eb8", '
                 'unsupported_ok: maybe}]', '$.unsupported_ok'),
                ('variants: [{name: A, vendor: "10de", device: "1eb"}]',
                 "device: '1eb' is not valid: 4 hex digits")):
            error = self.assertRaises(exception.Invalid, self.read, text)
            self.assertIn(expected, str(error))
            self.assertIn('x.yaml', str(error))

    def test_entries_that_cannot_both_exist_are_refused(self):
        for second, expected in (
                ('{name: t4, vendor: "10de", device: "1eb9"}',
                 'T4 has the same name in Placement'),
                ('{name: B, vendor: "10de", device: "1eb8"}', 'equally well'),
                ('{name: B, vendor: "10de", device: "1eb9", '
                 'resource_class: CUSTOM_GPU_T4}', 'CUSTOM_GPU_T4 already')):
            error = self.assertRaises(
                exception.Conflict, self.read,
                'variants: [{name: T4, vendor: "10de", device: "1eb8"}, '
                f'{second}]')
            self.assertIn(expected, str(error))


class ImportTest(cmd_base.CommandTestCase):

    variants = ()

    def setUp(self):
        super().setUp()
        self.path = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'x.yaml')
        self.write(TWO)

    def write(self, text):
        pathlib.Path(self.path).write_text(text, encoding='utf-8')

    def imported(self, *arguments):
        return [(row['Name'], row['Result'], row['Devices']) for row in
                self.json('variant', 'import', *arguments)]

    def names(self):
        return [row['Name'] for row in self.json('variant', 'list')]

    def test_second_import_changes_nothing(self):
        self.assertEqual(
            [('H100', 'created', 8), ('A100', 'created', 0)],
            self.imported(self.path))
        self.assertEqual(
            [('H100', 'unchanged', 8), ('A100', 'unchanged', 0)],
            self.imported(self.path))
        self.assertEqual(['CUSTOM_HOPPER'], self.json(
            'variant', 'show', 'H100')['Traits'])

    def test_import_keeps_the_cleaning_policy_of_a_variant(self):
        self.imported(self.path)
        self.json('variant', 'set', 'H100', '--cleaning-policy', 'scrub',
                  '--memory-mib', '81559')
        self.assertEqual(
            [('H100', 'unchanged', 8), ('A100', 'unchanged', 0)],
            self.imported(self.path))
        self.assertEqual('scrub', self.json(
            'variant', 'show', 'H100')['Cleaning Policy'])

    def test_import_of_named_entries_leaves_out_the_rest(self):
        self.assertEqual([('A100', 'created', 0)],
                         self.imported(self.path, '--only', 'A100'))
        self.assertEqual(['A100'], self.names())
        self.assertIn('H9 (known: A100, H100) does not exist',
                      self.refused('variant', 'import', self.path,
                                   '--only', 'H9'))

    def test_import_without_a_file_reads_the_shipped_catalogue(self):
        self.assertEqual([
            ('NVIDIA_H100_SXM5_80GB', 'created', 8),
            ('NVIDIA_L4', 'created', 0)], self.imported(
                '--only', 'NVIDIA_H100_SXM5_80GB', '--only', 'NVIDIA_L4'))

    def test_policy_that_gpus_may_not_pass_is_noted_before_any_tenant(self):
        result = self.manage(
            'variant', 'import', '--only', 'NVIDIA_H100_SXM5_80GB',
            '--only', 'AMD_MI300X', '--only', 'NVIDIA_P40')
        self.assertEqual(0, result.code)
        self.assertIn('GPUs of AMD_MI300X, NVIDIA_P40 may wait for another '
                      'cleaning policy', result.err)
        for name, policy, reason in (
                ('NVIDIA_H100_SXM5_80GB', 'reset+memory-clear+settings', ''),
                ('NVIDIA_P40', 'default',
                 'another policy: reset+scrub-guest')):
            shown = self.json('variant', 'show', name)
            self.assertEqual(policy, shown['Cleaning Policy'])
            self.assertIn(reason, shown['Reason'] or '')

    def test_entry_that_differs_from_its_variant_is_refused(self):
        self.manage('variant', 'create', 'A100', '--vendor', '10de',
                    '--device', '20b2')
        err = self.refused('variant', 'import', self.path)
        self.assertIn('variant A100: it exists with another device;', err)
        self.assertIn('nothing was imported', err)
        self.assertEqual(['A100'], self.names())

    def test_entry_that_ties_with_a_variant_is_refused(self):
        self.manage('variant', 'create', 'MINE', '--vendor', '10de',
                    '--device', '20b0')
        err = self.refused('variant', 'import', self.path)
        self.assertIn('variant A100: it ties with variant MINE', err)
        self.assertEqual(['MINE'], self.names())

    def test_entry_with_a_name_equal_in_placement_is_refused(self):
        self.manage('variant', 'create', 'a100', '--vendor', '10de',
                    '--device', '20b5')
        self.assertIn('variant A100: variant a100 has the same name in',
                      self.refused('variant', 'import', self.path))
        self.assertEqual(['a100'], self.names())

    def test_file_that_cannot_be_read_imports_nothing(self):
        self.write('variants: [{name: A}]')
        self.assertIn(self.path, self.refused(
            'variant', 'import', self.path))
        self.assertIn('/nowhere/x.yaml does not exist', self.refused(
            'variant', 'import', '/nowhere/x.yaml'))
        self.assertEqual([], self.names())
