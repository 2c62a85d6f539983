# SPDX-License-Identifier: Apache-2.0
"""Tests of the extra specs that ``flavor set`` makes of its options."""

from gpgpu_plugin.objects import admin
from tests.unit.cmd import base

DRY_RUN = ('flavor', 'set', 'f1', '--dry-run')


class RenderTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.api.variant_create(self.context, admin.VariantInfo(
            name='a100-80', vendor='10de', device='20b2'))

    def test_one_variant_becomes_one_resource(self):
        for gpus, count in (('H100=4', '4'), ('H100', '1')):
            self.assertEqual(
                {'resources:CUSTOM_GPU_H100': count},
                self.json(*DRY_RUN, '--gpu', gpus))

    def test_two_variants_and_rules_become_extra_specs(self):
        self.assertEqual({
            'resources:CUSTOM_GPU_H100': '2',
            'resources:CUSTOM_GPU_A100_80': '1',
            'gpgpu:topology': 'same_numa',
            'gpgpu:allocation_policy': 'breadth_first'}, self.json(
                *DRY_RUN, '--gpu', 'H100=2', '--gpu', 'a100-80',
                '--topology', 'same_numa', '--allocation-policy',
                'breadth_first'))

    def test_extra_specs_are_shown_as_a_table(self):
        self.assertRegex(
            self.done(*DRY_RUN, '--gpu', 'H100=2'),
            r'\| resources:CUSTOM_GPU_H100 +\| 2 +\|')

    def test_contradicting_options_are_refused(self):
        for arguments, expected in (
                (('--gpu', 'H9=1'),
                 'variant H9 (known: H100, a100-80) does not exist'),
                (('--gpu', 'H100=1', '--gpu', 'H100=2'),
                 'each variant or type once')):
            self.assertIn(expected, self.refused(
                *DRY_RUN, *arguments))

    def test_cloud_without_variants_is_said(self):
        for name in ('H100', 'a100-80'):
            self.done('variant', 'delete', name)
        self.assertIn('variant H100 (known: none) does not exist',
                      self.refused(*DRY_RUN, '--gpu', 'H100=1'))

    def test_malformed_option_shows_the_usage(self):
        for arguments, expected in (
                ((), '--gpu'),
                (('--gpu', 'H100=0'), 'count of 1 to 1000'),
                (('--gpu', 'H100=999999999999'), 'count of 1 to 1000'),
                (('--gpu', 'H100=two'), 'count of 1 to 1000'),
                (('--gpu', '=2'), 'VARIANT=COUNT'),
                (('--gpu', 'H100', '--topology', 'round'), 'same_switch')):
            self.assertIn(expected, self.misused(
                *DRY_RUN, *arguments))
