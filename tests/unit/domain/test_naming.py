# SPDX-License-Identifier: Apache-2.0
"""Tests of names in Placement: well-formed, stable, unique."""

import uuid

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import naming

VARIANTS = st.from_regex(r'[A-Za-z0-9][A-Za-z0-9._-]{0,63}', fullmatch=True)
VGPU_TYPES = st.from_regex(r'[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}', fullmatch=True)


class VariantNameTest(base.BaseTestCase):

    def test_well_formed_name_is_returned(self):
        for name in ('H100', 'nv-h100.80_GB', '4', 'a' * 64):
            self.assertEqual(name, naming.check_variant_name(name))

    def test_malformed_name_is_refused(self):
        for name in ('', '-a', '.a', '_a', 'a b', 'a/b', 'a:b', 'a\n',
                     'ä', 'a' * 65):
            exc = self.assertRaises(
                exception.Invalid, naming.check_variant_name, name)
            self.assertEqual(name, exc.kwargs['value'])


class ResourceClassTest(base.BaseTestCase):

    def test_class_of_a_vgpu_type_differs_from_that_of_the_gpu(self):
        self.assertEqual('CUSTOM_GPU_NV_H100',
                         naming.resource_class('nv-h100'))
        self.assertEqual('CUSTOM_GPU_A40',
                         naming.resource_class('A40', naming.PASSTHROUGH))
        self.assertEqual('CUSTOM_VGPU_A40_NVIDIA_558', naming.resource_class(
            'a40', 'nvidia-558'))

    def test_case_and_punctuation_make_no_difference(self):
        self.assertEqual({'NV_H100'}, {
            naming.normalize(name)
            for name in ('NV_H100', 'nv-h100', 'Nv.H100')})

    @settings(max_examples=100, derandomize=True, deadline=None)
    @given(VARIANTS, VGPU_TYPES)
    def test_class_of_any_variant_and_type_is_well_formed_and_reserved(
            self, variant, vgpu_type):
        for name in (naming.resource_class(variant),
                     naming.resource_class(variant, vgpu_type)):
            self.assertEqual(name, naming.check_resource_class(name))
            self.assertTrue(naming.is_reserved_class(name))

    def test_class_of_others_is_not_reserved(self):
        for name in ('PGPU', 'VGPU', 'CUSTOM_FPGA', 'CUSTOM_GPUS',
                     'X_CUSTOM_GPU_A'):
            self.assertFalse(naming.is_reserved_class(name), name)

    def test_standard_class_of_gpus_is_accepted_and_others_refused(self):
        for name in ('PGPU', 'VGPU', 'CUSTOM_A', 'CUSTOM_' + 'A' * 248):
            self.assertEqual(name, naming.check_resource_class(name))
        for name in ('', 'VCPU', 'CUSTOM_', 'CUSTOM_a', 'CUSTOM_A-B',
                     'CUSTOM_' + 'A' * 249, 'CUSTOM_A\n'):
            self.assertRaises(
                exception.Invalid, naming.check_resource_class, name)


class TraitTest(base.BaseTestCase):

    def test_known_or_custom_trait_is_accepted(self):
        for name in ('HW_GPU_API_VULKAN', 'CUSTOM_X'):
            self.assertEqual(name, naming.check_trait(name))

    def test_unknown_or_malformed_trait_is_refused(self):
        for name in ('', 'HW_GPU_API_NONE', 'CUSTOM_', 'custom_x',
                     'CUSTOM_' + 'A' * 249):
            self.assertRaises(exception.Invalid, naming.check_trait, name)

    def test_traits_name_plugin_owner_and_variant(self):
        self.assertEqual(
            {'CUSTOM_GPU', 'CUSTOM_GPU_NV_H100', 'OWNER_NOVA', 'CUSTOM_X'},
            naming.traits('nv-h100', ('CUSTOM_X',)))


class ProviderTest(base.BaseTestCase):

    def test_uuid_is_that_of_earlier_releases(self):
        # Another one would leave the providers of running instances behind.
        self.assertEqual(
            str(uuid.uuid5(uuid.UUID('7d0c4a4e-5d2f-5c63-9a39-0f6f2c3c8a11'),
                           'n1/NV_H100')),
            naming.provider_uuid('n1', 'nv-h100'))

    def test_uuid_is_own_to_node_and_variant(self):
        self.assertEqual(4, len({
            naming.provider_uuid(node, name)
            for node in ('n1', 'n2') for name in ('A', 'B')}))

    def test_names_that_are_equal_in_placement_have_one_uuid(self):
        self.assertEqual(naming.provider_uuid('n1', 'nv-h100'),
                         naming.provider_uuid('n1', 'NV.H100'))

    def test_name_shows_node_and_variant(self):
        self.assertEqual('h1.example.org_gpu_NV_H100',
                         naming.provider_name('h1.example.org', 'nv-h100'))
