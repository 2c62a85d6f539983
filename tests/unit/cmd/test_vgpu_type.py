# SPDX-License-Identifier: Apache-2.0
"""Tests of ``vgpu-type``, and flavors of vGPUs."""

import uuid

import fixtures

from tests.unit.cmd import base
from tests.unit.conductor import vgpu_base

DRY_RUN = ('flavor', 'set', 'f1', '--dry-run')


class VGPUTypeTest(base.CommandTestCase):

    variants = ()

    def setUp(self):
        super().setUp()
        self.manage('variant', 'create', 'T4', '--vendor', '10de',
                    '--device', '1eb8')
        for host in ('t1', 't2'):
            self.report(vgpu_base.GPUS, host, node_uuid=str(uuid.uuid4()))

    def listed(self, *arguments):
        return {(row['Host'], row['vGPU Type']): row for row in self.json(
            'vgpu-type', 'list', *arguments)}

    def test_list_has_every_type_of_every_host(self):
        self.assertEqual({
            'Host': 't2', 'Variant': 'T4', 'vGPU Type': 'T4-4Q',
            'Enabled': False, 'Max vGPU Per pGPU': 4, 'Max Capacity': 8,
            'Remaining Capacity': 0, 'Assigned': 0, 'Host State': 'up'},
            self.listed()['t2', 'T4-4Q'])
        self.assertEqual(12, len(self.listed()))
        self.assertEqual(
            {('t1', 'passthrough')},
            self.listed('--enabled', '--host', 't1').keys())
        self.assertEqual({}, self.listed_of_nobody())

    def test_list_comes_in_parts(self):
        rows = list(self.listed())
        first = self.listed('--limit', '5')
        self.assertEqual(rows[:5], list(first))
        self.assertEqual(rows[5:], list(self.listed(
            '--marker', '{}:T4:{}'.format(*rows[4]))))
        self.assertIn('--limit and --marker', self.refused(
            'vgpu-type', 'list', '--cloud', '--limit', '5'))

    def listed_of_nobody(self):
        self.manage('variant', 'create', 'other', '--vendor', '10de',
                    '--device', '9999')
        return self.listed('--variant', 'other')

    def test_type_is_enabled_on_all_hosts_and_disabled_on_one(self):
        rows = self.json('vgpu-type', 'enable', 'T4', 'T4-4Q')
        self.assertEqual([('t1', True, 8), ('t2', True, 8)], [
            (row['Host'], row['Enabled'], row['Remaining Capacity'])
            for row in rows])
        self.done('vgpu-type', 'disable', 't2', 'T4', 'T4-4Q')
        self.assertEqual([True, False], [
            row['Enabled'] for key, row in sorted(self.listed().items())
            if key[1] == 'T4-4Q'])
        self.assertEqual(
            {'Variant': 'T4', 'vGPU Type': 'T4-4Q', 'Hosts': 1,
             'Max Capacity': 16, 'Remaining Capacity': 8, 'Assigned': 0},
            next(row for row in self.json('vgpu-type', 'list', '--cloud')
                 if row['vGPU Type'] == 'T4-4Q'))

    def test_change_that_takes_longer_than_its_call_is_noted(self):
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.conductor.variant_sweep.VariantSweep.run_once',
                lambda worker: None), fixtures.MonkeyPatch(
                'gpgpu_plugin.conductor.manager._PART', -1):
            result = self.manage('vgpu-type', 'enable', 'T4', 'T4-4Q')
        self.assertEqual(0, result.code)
        self.assertIn('variant T4 has status applying: 3 hosts are left',
                      result.err)

    def test_long_list_has_the_details_of_every_host(self):
        first, second = self.json('vgpu-type', 'list', '--variant', 'T4',
                                  '--type', 'T4-4Q', '--long')
        self.assertEqual(
            ('t1', 'CUSTOM_VGPU_T4_T4_4Q', 4096, None, 't2'),
            (first['Host'], first['Resource Class'], first['Video RAM'],
             first['Max Heads'], second['Host']))

    def test_unknown_type_variant_or_host_is_refused(self):
        self.assertIn('vGPU type T4-3Q of T4 (known: T4-16Q, T4-1Q',
                      self.refused('vgpu-type', 'enable', 'T4', 'T4-3Q'))
        self.assertIn('variant T5', self.refused(
            'vgpu-type', 'enable', 'T5', 'T4-1Q'))
        self.assertIn('host h9', self.refused(
            'vgpu-type', 'disable', 'h9', 'T4', 'T4-1Q'))
        self.assertIn('host h9', self.refused(
            'vgpu-type', 'list', '--host', 'h9'))
        self.assertIn('variant T5', self.refused(
            'vgpu-type', 'list', '--variant', 'T5'))

    def test_unknown_mix_policy_is_refused(self):
        self.assertEqual('any_mix', self.json(
            'variant', 'set', 'T4', '--mix-policy', 'any_mix')['Mix Policy'])
        self.assertIn(
            'one of same_type, equal_size, any_mix, mixed_size', self.refused(
                'variant', 'set', 'T4', '--mix-policy', 'fair'))

    def test_flavor_of_vgpus_has_their_resource_classes(self):
        self.assertEqual(
            {'resources:CUSTOM_VGPU_T4_T4_4Q': '2'}, self.json(
                *DRY_RUN, '--gpu', 'T4/T4-4Q=2'))
        self.assertEqual(
            {'resources:CUSTOM_GPU_T4': '1',
             'resources:CUSTOM_VGPU_T4_T4_1Q': '3'}, self.json(
                *DRY_RUN, '--gpu', 'T4', '--gpu', 'T4/T4-1Q=3'))
        self.assertIn(
            'vGPU type T4/T4-3Q (known: T4/T4-16Q', self.refused(
                *DRY_RUN, '--gpu', 'T4/T4-3Q'))
