# SPDX-License-Identifier: Apache-2.0
"""Tests of ``variant``, but for its import."""

import dataclasses

import fixtures

from gpgpu_plugin.cmd import variant as variant_cmd
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.domain import variant as rules
from tests.unit.cmd import base
from tests.unit.conductor import base as machine
from tests.unit.conductor import test_manager


class VariantTest(base.CommandTestCase):

    variants = ()

    def names(self):
        return [row['Name'] for row in self.json('variant', 'list')]

    def test_create_counts_the_devices_that_match(self):
        shown = self.json('variant', 'create', *base.H100)
        self.assertEqual(
            ('H100', '10de', '2330', 'gpu', 'CUSTOM_GPU_H100', [], 8),
            tuple(shown[key] for key in (
                'Name', 'Vendor', 'Device', 'Type', 'Resource Class',
                'Traits', 'Devices')))
        self.assertEqual({'available': 8}, self.json(
            'host', 'show', 'h1')['Devices'])

    def test_create_with_all_options_normalizes_them(self):
        shown = self.json(
            'variant', 'create', 'big', '--vendor', '0x10DE', '--device',
            '2330', '--subsystem-vendor', '10de', '--subsystem', '16C1',
            '--revision', 'A1', '--type', 'gpu', '--resource-class', 'PGPU',
            '--trait', 'CUSTOM_B', '--trait', 'HW_GPU_API_VULKAN',
            '--mix-policy', 'any_mix', '--allocation-policy',
            'breadth_first', '--cleaning-policy',
            'reset+memory-clear+settings', '--memory-mib', '81920',
            '--unsupported-ok')
        self.assertEqual(
            {
                'Name': 'big',
                'Vendor': '10de',
                'Device': '2330',
                'Subsystem Vendor': '10de',
                'Subsystem': '16c1',
                'Revision': 'a1',
                'Type': 'gpu',
                'Resource Class': 'PGPU',
                'Traits': ['CUSTOM_B', 'HW_GPU_API_VULKAN'],
                'Mix Policy': 'any_mix',
                'Allocation Policy': 'breadth_first',
                'Cleaning Policy': 'reset+memory-clear+settings',
                'Memory Mib': 81920,
                'Link Partitions': None,
                'Unsupported Ok': True,
                'Devices': 8,
                'Status': 'ready',
                'Reason': None,
                'Hosts Pending': 0,
            },
            shown,
        )

    def test_create_without_a_matching_device_is_noted(self):
        result = self.manage('variant', 'create', 'A100', '--vendor',
                             '10de', '--device', '20b0')
        self.assertEqual(0, result.code)
        self.assertEqual(
            'gpgpu-manage: variant A100 has no device: no host has reported '
            'one so far, or all are unmanaged; the column Reason of '
            '"gpgpu-manage device list" says why\n', result.err)
        self.assertEqual(['A100'], self.names())

    def test_create_with_a_wrong_value_is_refused(self):
        self.manage('variant', 'create', *base.H100)
        for wrong, expected in (
                (('a b', '--vendor', '10de', '--device', '20b0'),
                 "variant name: 'a b' is not valid"),
                (('X', '--vendor', '10deg', '--device', '20b0'),
                 "vendor: '10deg' is not valid: 4 hex digits"),
                (('X', '--vendor', '10de', '--device', 'ffff'),
                 "device: 'ffff' is not valid"),
                (('X', '--vendor', '10de', '--device', '20b0',
                  '--revision', 'a'), "revision: 'a' is not valid: 2 hex"),
                (('X', '--vendor', '10de', '--device', '20b0',
                  '--subsystem', '16c1'), 'a subsystem vendor, too'),
                (('X', '--vendor', '10de', '--device', '20b0',
                  '--trait', 'FAST'), "trait: 'FAST' is not valid"),
                (('X', '--vendor', '10de', '--device', '20b0',
                  '--resource-class', 'VCPU'),
                 "resource class: 'VCPU' is not valid"),
                (('X', '--vendor', '10de', '--device', '20b0',
                  '--type', 'disk'), "variant type: 'disk' is not valid"),
                (base.H100, 'variant H100: it exists already'),
                (('h100', *base.H100[1:]), 'the same name in Placement'),
                (('X', *base.H100[1:]), 'it ties with variant H100'),
                (('X', '--vendor', '10de', '--device', '20b0',
                  '--resource-class', 'CUSTOM_GPU_H100'),
                 'has the resource class')):
            self.assertIn(expected, self.refused('variant', 'create', *wrong))
        self.assertEqual(['H100'], self.names())

    def test_create_without_a_device_shows_the_usage(self):
        self.assertIn('--device', self.misused(
            'variant', 'create', 'X', '--vendor', '10de'))

    def test_list_is_sorted_and_show_equals_its_row(self):
        self.done('variant', 'create', *base.H100)
        self.manage('variant', 'create', 'A100', '--vendor', '10de',
                    '--device', '20b0')
        self.assertEqual(['A100', 'H100'], self.names())
        # A table would be too long for a row.
        self.assertEqual(
            {**self.json('variant', 'list')[1], 'Link Partitions': None},
            self.json('variant', 'show', 'H100'))

    def test_set_changes_the_given_fields_alone(self):
        self.done('variant', 'create', *base.H100, '--trait', 'CUSTOM_A')
        shown = self.json('variant', 'set', 'H100', '--subsystem-vendor',
                          '10de', '--subsystem', '16c2')
        self.assertEqual(
            ('2330', '16c2', ['CUSTOM_A'], 0),
            (shown['Device'], shown['Subsystem'], shown['Traits'],
             shown['Devices']))
        shown = self.json('variant', 'set', 'H100', '--trait', 'CUSTOM_B')
        self.assertEqual(['CUSTOM_B'], shown['Traits'])

    def test_set_without_a_field_is_refused(self):
        self.done('variant', 'create', *base.H100)
        self.assertIn(
            'nothing to change: give an option, such as --trait, or --unset',
            self.refused('variant', 'set', 'H100', code=2))

    def test_steps_that_hosts_may_not_have_are_named(self):
        result = self.manage('variant', 'create', *base.H100,
                             '--cleaning-policy', 'reset+setings+acme-scrub')
        self.assertEqual(0, result.code)
        for step in ('setings', 'acme-scrub'):
            self.assertIn(f'{step} is not one of the cleaning steps of the '
                          f'plugin itself (canary, flr, ', result.err)
        for arguments in (('--cleaning-policy', 'reset+memory-clear'),
                          ('--unset', 'cleaning-policy')):
            result = self.manage('variant', 'set', 'H100', *arguments)
            self.assertEqual((0, ''), (result.code, result.err))
        self.assertIn('host-drive is not one of the ', self.manage(
            'variant', 'set', 'H100', '--cleaning-policy',
            'reset+host-drive').err)

    def test_policy_that_proves_nothing_about_the_memory_is_noted(self):
        self.done('variant', 'create', *base.H100)
        for policy, expected in (
                ('reset-only', True), ('flr+knobs+settings', True),
                ('scrub', False), ('reset+acme-scrub', False)):
            self.assertEqual(expected, 'proves nothing about the memory' in (
                self.manage('variant', 'set', 'H100', '--cleaning-policy',
                            policy).err), policy)

    def test_each_optional_field_is_unset(self):
        self.done('variant', 'create', *base.H100)
        before = self.json('variant', 'show', 'H100')
        for option, value, column in (
                ('subsystem', '16c1', 'Subsystem'),
                ('subsystem-vendor', '10de', 'Subsystem Vendor'),
                ('revision', 'a1', 'Revision'),
                ('resource-class', 'PGPU', 'Resource Class'),
                ('mix-policy', 'any_mix', 'Mix Policy'),
                ('allocation-policy', 'breadth_first', 'Allocation Policy'),
                ('cleaning-policy', 'scrub', 'Cleaning Policy'),
                ('memory-mib', '81920', 'Memory Mib'),
                ('trait', 'CUSTOM_A', 'Traits')):
            board = ('--subsystem-vendor', '10de') * (option == 'subsystem')
            shown = self.json(
                'variant', 'set', 'H100', f'--{option}', value, *board)
            self.assertNotEqual(before[column], shown[column], option)
            unset = ('--unset', 'subsystem-vendor') if board else ()
            self.assertEqual(before, self.json(
                'variant', 'set', 'H100', '--unset', option, *unset), option)
        self.assertEqual(before, self.json(
            'variant', 'show', 'H100'))

    def test_every_optional_field_can_be_unset(self):
        required = {'name', 'vendor', 'device'}
        # type: only gpu; unsupported_ok: --no-unsupported-ok.
        self.assertEqual(
            set(variant_cmd._OPTIONS.values()),
            {field.name for field in dataclasses.fields(rules.Variant)}
            - required - {'type', 'unsupported_ok'})

    def test_field_that_is_set_and_unset_is_refused(self):
        self.done('variant', 'create', *base.H100)
        self.assertIn('a field that --trait does not set', self.refused(
            'variant', 'set', 'H100', '--trait', 'CUSTOM_A', '--unset',
            'trait'))
        self.assertIn('invalid choice', self.misused(
            'variant', 'set', 'H100', '--unset', 'vendor'))

    def test_unsupported_gpus_are_offered_if_the_operator_says_so(self):
        self.report([machine.replace(number, nvswitches=4)
                     for number in range(8)])
        self.assertIn('has no device: ', self.manage(
            'variant', 'create', *base.H100).err)
        row = self.json('device', 'list')[0]
        self.assertEqual('unmanaged', row['Shown State'])
        for shown in (row, self.json('device', 'show', row['UUID'])):
            self.assertIn('its host has 4 NVSwitches', shown['Reason'])
            self.assertIn('variant set H100 --unsupported-ok',
                          shown['Reason'])
        for option, accepted, devices in (
                ('--unsupported-ok', True, 8), ('--trait=CUSTOM_A', True, 8),
                ('--no-unsupported-ok', False, 0)):
            shown = self.json('variant', 'set', 'H100', option)
            self.assertEqual((accepted, devices), (
                shown['Unsupported Ok'], shown['Devices']), option)

    def test_unsupported_gpus_are_accepted_while_one_is_assigned(self):
        self.done('variant', 'create', *base.H100, '--unsupported-ok')
        self.claim()
        for option in ('--no-unsupported-ok', '--unsupported-ok'):
            self.done('variant', 'set', 'H100', option)

    def test_change_of_a_variant_in_use_is_refused(self):
        self.done('variant', 'create', *base.H100)
        self.claim()
        for command in (('delete', 'H100'),
                        ('set', 'H100', '--device', '2331')):
            self.assertIn(
                f'variant H100: instance {base.INSTANCE} has a device',
                self.refused('variant', *command))
        self.assertEqual('2330', self.json(
            'variant', 'show', 'H100')['Device'])

    def test_delete_leaves_the_devices_unmanaged(self):
        self.done('variant', 'create', *base.H100)
        self.assertEqual('', self.done('variant', 'delete', 'H100'))
        self.assertEqual([], self.names())
        self.assertEqual({'unmanaged': 8}, self.json(
            'host', 'show', 'h1')['Devices'])

    def test_change_that_takes_longer_than_its_call_is_noted(self):
        self.done('variant', 'create', *base.H100)
        self.conductor.stop()
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.conductor.variant_sweep.VariantSweep.start',
                lambda worker: None):
            self.conductor.start()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.manager._PART', -1))
        for command, status in (
                (('create', 'X', *base.H100[1:], '--subsystem-vendor',
                  '10de', '--subsystem', '16c1'), 'applying'),
                (('set', 'H100', '--revision', 'a1'), 'applying'),
                (('delete', 'X'), 'deleting')):
            if command[0] == 'delete':
                worker = variant_sweep.VariantSweep(
                    self.conductor.db, test_manager.FakeComputeAPI())
                worker.run_once()
            result = self.manage('variant', *command)
            self.assertEqual(0, result.code)
            self.assertEqual(
                f'gpgpu-manage: variant {command[1]} has status {status}: '
                f'1 hosts are left, and gpgpu-conductor goes on; see '
                f'"gpgpu-manage variant show {command[1]}"\n', result.err)
            shown = self.json('variant', 'show', command[1])
            self.assertEqual((status, 1), (
                shown['Status'], shown['Hosts Pending']))
        self.assertIn('it is being deleted', self.refused(
            'variant', 'set', 'X', '--trait', 'CUSTOM_B'))

    def test_unknown_variant_is_not_found(self):
        for command in (('show', 'X'), ('delete', 'X'),
                        ('set', 'X', '--device', '2330')):
            self.assertEqual('gpgpu-manage: variant X does not exist; see '
                             '"gpgpu-manage variant list"\n',
                             self.refused('variant', *command))


class DryRunTest(base.CommandTestCase):
    """Variants that would have new devices cleaned."""

    variants = ()
    cleaned_before = False

    def test_create_says_what_would_be_cleaned_and_creates_nothing(self):
        self.assertEqual(
            {'Name': 'H100', 'Result': 'not created', 'Devices To Clean': 8,
             'Hosts': {'h1': 8}},
            self.json('variant', 'create', *base.H100, '--dry-run'))
        self.assertEqual([], self.json('variant', 'list'))
        self.assertIn('h1 8', self.done(
            'variant', 'create', *base.H100, '--dry-run'))

    def test_import_says_what_would_be_cleaned_and_creates_nothing(self):
        words = ('variant', 'import', '--only', 'NVIDIA_H100_SXM5_80GB',
                 '--only', 'NVIDIA_L4', '--dry-run')
        found = {row['Name']: (row['Result'], row['Devices To Clean'],
                               row['Hosts']) for row in self.json(*words)}
        self.assertEqual({
            'NVIDIA_H100_SXM5_80GB': ('not created', 8, {'h1': 8}),
            'NVIDIA_L4': ('not created', 0, {})}, found)
        self.assertEqual([], self.json('variant', 'list'))
        self.manage(*words[:-1])
        self.assertEqual(
            ['unchanged'] * 2, [row['Result'] for row in self.json(*words)])
