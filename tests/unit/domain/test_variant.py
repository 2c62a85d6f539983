# SPDX-License-Identifier: Apache-2.0
"""Tests of variants: the most specific one matches."""

import dataclasses

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import variant

FUNCTION = pci.PCIFunction(
    id='/devices/pci0000:00/01.0', address='0000:01:00.0', vendor='10de',
    device='2330', subsystem_vendor='10de', subsystem='16c1', revision='a1')


def make(name='V', **ids):
    return variant.Variant(
        name=name, **{'vendor': '10de', 'device': '2330', **ids})


class CheckTest(base.BaseTestCase):

    def test_ids_and_class_get_their_one_form(self):
        checked = variant.check(make('nv-h100', vendor='0x10DE',
                                     revision='A1'))
        self.assertEqual(('10de', '2330', 'a1', 'CUSTOM_GPU_NV_H100'), (
            checked.vendor, checked.device, checked.revision,
            checked.resource_class))

    def test_refused(self):
        for wrong, field in (
                (make(vendor='10dg'), 'vendor'),
                (make(device='233'), 'device'),
                (make(device='ffff'), 'device'),
                (make(vendor='0000'), 'vendor'),
                (make(revision='a'), 'revision'),
                (make(subsystem='16c1'), 'subsystem'),
                (make(type='fpga'), 'variant type'),
                (make(''), 'variant name'),
                (make('a b'), 'variant name'),
                (make('x' * 65), 'variant name'),
                (make(resource_class='GPU'), 'resource class'),
                (make(allocation_policy='sideways'), 'allocation policy'),
                (make(traits=('HW_NONSENSE',)), 'trait')):
            exc = self.assertRaises(exception.Invalid, variant.check, wrong)
            self.assertEqual(field, exc.kwargs['field'])
            self.assertTrue(exc.kwargs['expected'])

    def test_fields_that_differ_are_named(self):
        self.assertEqual((), variant.changed(make(), make()))
        self.assertEqual(
            ('device', 'traits', 'memory_mib'), variant.changed(
                make(), make(device='1111', traits=('CUSTOM_A',),
                             memory_mib=1)))

    def test_every_field_is_part_of_the_identity_or_changes_at_any_time(self):
        self.assertEqual(
            {field.name for field in dataclasses.fields(variant.Variant)},
            {'name', *variant.IDENTITY, 'traits', 'mix_policy',
             'unsupported_ok', 'link_partitions', 'cleaning_policy',
             'memory_mib', 'allocation_policy'})


class MatchTest(base.BaseTestCase):

    def test_most_specific_wins(self):
        broad, board = make('A'), make(
            'B', subsystem_vendor='10de', subsystem='16c1')
        for order in ((broad, board), (board, broad)):
            self.assertEqual(board, variant.match(order, FUNCTION))

    def test_tie_names_both(self):
        exc = self.assertRaises(
            exception.VariantTie, variant.match,
            [make('A', revision='a1'), make('B', subsystem_vendor='10de')],
            FUNCTION)
        self.assertEqual({'A', 'B'}, {
            exc.kwargs['first'], exc.kwargs['second']})

    def test_unknown_id_matches_no_variant_that_names_it(self):
        function = dataclasses.replace(FUNCTION, revision=None)
        self.assertIsNone(variant.match([make(revision='a1')], function))
        self.assertIsNotNone(variant.match([make()], function))

    def test_broken_function_has_no_variant(self):
        function = dataclasses.replace(FUNCTION, fault='dead')
        self.assertIsNone(variant.match([make()], function))

    def test_names_collide_after_normalisation(self):
        self.assertEqual('h100-sxm', variant.collides(
            'H100_SXM', ['l4', 'h100-sxm']))
        self.assertIsNone(variant.collides('H100', ['H200']))

    @settings(max_examples=300, derandomize=True, deadline=None)
    @given(*[st.fixed_dictionaries({
        'vendor': st.sampled_from(['10de', '1002']),
        'device': st.sampled_from(['0001', '0002']),
        'subsystem_vendor': st.sampled_from([None, '1043', '10de']),
        'revision': st.sampled_from([None, 'a1', 'a2'])})] * 2)
    def test_overlap_is_exactly_a_possible_tie(self, one, other):
        one, other = variant.Variant(name='A', **one), variant.Variant(
            name='B', **other)
        tie = False
        for vendor in ('10de', '1002'):
            for device in ('0001', '0002'):
                for board in ('1043', '10de', 'aaaa'):
                    for revision in ('a1', 'a2', 'a3'):
                        try:
                            variant.match([one, other], pci.PCIFunction(
                                id='x', address='y', vendor=vendor,
                                device=device, subsystem_vendor=board,
                                revision=revision))
                        except exception.VariantTie:
                            tie = True
        self.assertEqual(tie, variant.overlaps(one, other))
