# SPDX-License-Identifier: Apache-2.0
"""Tests of a group's resource provider, without a database."""

from oslotest import base

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.domain import group
from gpgpu_plugin.domain import naming
from tests.fixtures import group as make


class OfGroupTest(base.BaseTestCase):

    def test_provider_has_the_groups_names_and_traits(self):
        found = capacity.group_inventory(make.t4s(make.gpu()), 'node')
        self.assertEqual(('T4', 'node_gpu_T4', 'p'), (
            found.variant, found.provider_name, found.provider_uuid))
        self.assertIn('CUSTOM_GPU_T4', found.traits)

    def test_types_that_are_listed_and_fit_have_an_inventory(self):
        types = (
            group.OfferedType(vgpu_type=naming.PASSTHROUGH),
            group.OfferedType(vgpu_type='T4-4Q', enabled=False),
            group.OfferedType(vgpu_type='T4-16Q', listed=False))
        found = capacity.group_inventory(
            make.t4s(make.gpu(mechanism='mdev'), types=()), 'node')
        self.assertEqual((), found.types)
        found = capacity.group_inventory(group.GroupCapacity(
            variant=make.T4, provider_uuid='p', types=types,
            allocation_policy='depth_first',
            devices=(make.gpu(mechanism='mdev'),)), 'node')
        self.assertEqual(
            [('CUSTOM_GPU_T4', 1, 0, 1), ('CUSTOM_VGPU_T4_T4_4Q', 4, 4, 4)],
            [(offered.resource_class, offered.total, offered.reserved,
              offered.max_unit)
             for offered in found.types])

    def test_type_without_gpus_and_allocations_is_left_out(self):
        self.assertEqual([naming.resource_class('T4')], [
            offered.resource_class for offered in capacity.group_inventory(
                make.t4s(make.gpu()), 'node').types])
