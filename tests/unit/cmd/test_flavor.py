# SPDX-License-Identifier: Apache-2.0
"""Tests of ``flavor render``."""

from gpgpu_plugin.objects import admin
from tests.unit.cmd import base


class RenderTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.api.variant_create(self.context, admin.VariantInfo(
            name='a100-80', vendor='10de', device='20b2'))

    def test_one_variant_becomes_one_resource(self):
        self.assertEqual(
            {'resources:CUSTOM_GPU_H100': '4'},
            self.json('flavor', 'render', '--variant', 'H100', '--count',
                      '4'))
        self.assertEqual(
            {'resources:CUSTOM_GPU_H100': '1'},
            self.json('flavor', 'render', '--variant', 'H100'))

    def test_two_variants_and_rules_become_extra_specs(self):
        self.assertEqual({
            'resources:CUSTOM_GPU_H100': '2',
            'resources:CUSTOM_GPU_A100_80': '1',
            'gpgpu:topology': 'same_numa',
            'gpgpu:allocation_policy': 'breadth_first'}, self.json(
                'flavor', 'render', '--gpu', 'H100=2', '--gpu', 'a100-80',
                '--topology', 'same_numa', '--allocation-policy',
                'breadth_first'))

    def test_extra_specs_are_shown_as_a_table(self):
        self.assertRegex(
            self.done('flavor', 'render', '--gpu', 'H100=2'),
            r'\| resources:CUSTOM_GPU_H100 +\| 2 +\|')

    def test_contradicting_options_are_refused(self):
        for arguments, expected in (
                (('--gpu', 'H9=1'),
                 'variant H9 (known: H100, a100-80) does not exist'),
                ((), '--variant V --count N, or --gpu VARIANT=COUNT'),
                (('--gpu', 'H100=1', '--count', '2'), '--count alone'),
                (('--gpu', 'H100=1', '--gpu', 'H100=2'),
                 'every variant once')):
            self.assertIn(expected, self.refused(
                'flavor', 'render', *arguments))

    def test_cloud_without_variants_is_said(self):
        for name in ('H100', 'a100-80'):
            self.done('variant', 'delete', name)
        self.assertIn('variant H100 (known: none) does not exist',
                      self.refused('flavor', 'render', '--gpu', 'H100=1'))

    def test_malformed_option_shows_the_usage(self):
        for arguments, expected in (
                (('--variant', 'H100', '--count', '0'), 'a number above 0'),
                (('--variant', 'H100', '--count', '-1'), 'a number above 0'),
                (('--gpu', 'H100=0'), 'count of at least 1'),
                (('--gpu', 'H100=two'), 'count of at least 1'),
                (('--gpu', '=2'), 'VARIANT=COUNT'),
                (('--gpu', 'H100', '--topology', 'round'), 'same_switch'),
                (('--variant', 'H100', '--count', 'two'), 'two')):
            self.assertIn(expected, self.misused(
                'flavor', 'render', *arguments))
