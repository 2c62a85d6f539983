# SPDX-License-Identifier: Apache-2.0
"""Tests of groups in Nova's provider tree and in Placement."""

import dataclasses
from unittest import mock

import os_traits
from nova import exception as nova_exception
from nova.compute import provider_tree
from oslotest import base

from gpgpu_plugin.compute import placement
from gpgpu_plugin.domain import naming
from tests.unit.compute import base as compute_base
from tests.unit.compute import make


def totals(tree):
    """Return (total, reserved) of the group's classes."""
    return {name: (record['total'], record['reserved']) for name, record
            in tree.data(make.GROUP).inventory.items()}


class TreeTestCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.tree = provider_tree.ProviderTree()
        self.tree.new_root('h1', make.NODE)


class ApplyTest(TreeTestCase):

    def apply(self, *groups):
        placement.apply(self.tree, 'h1', make.host_inventory(*groups))

    def record(self):
        return self.tree.data(make.GROUP).inventory['CUSTOM_GPU_H100']

    def test_group_becomes_a_child_of_the_node(self):
        self.apply(make.group(reserved=3))
        data = self.tree.data(make.GROUP)
        self.assertEqual(
            ('h1_gpu_H100', make.NODE, {'CUSTOM_GPU', 'OWNER_NOVA'}),
            (data.name, data.parent_uuid, data.traits))
        self.assertEqual(
            {'total': 8, 'reserved': 3, 'min_unit': 1, 'max_unit': 8,
             'step_size': 1, 'allocation_ratio': 1.0}, self.record())

    def test_group_that_is_there_is_updated(self):
        self.apply(make.group())
        self.apply(make.group(total=4))
        self.assertEqual(4, self.record()['total'])

    def test_group_that_is_gone_stays_and_is_reserved(self):
        self.apply(make.group())
        self.apply(make.group('T4'))
        self.assertEqual((8, 8), (
            self.record()['total'], self.record()['reserved']))
        self.assertEqual(0, self.tree.data('provider-T4').inventory[
            'CUSTOM_GPU_T4']['reserved'])

    def test_class_that_is_gone_stays_and_is_reserved(self):
        self.apply(make.group())
        self.apply(dataclasses.replace(
            make.group(), types=make.group('T4').types))
        self.assertEqual(
            {'CUSTOM_GPU_H100': (8, 8), 'CUSTOM_GPU_T4': (8, 0)},
            totals(self.tree))

    def test_unknown_inventory_reserves_every_group(self):
        self.apply(make.group())
        placement.apply(self.tree, 'h1', None)
        self.assertEqual(8, self.record()['reserved'])

    def test_node_has_the_trait_of_gpu_hosts_while_it_has_groups(self):
        self.tree.update_traits('h1', ['CUSTOM_RACK', 'OWNER_NOVA'])
        for groups, found in (
                ([], set()), ([make.group()], {'CUSTOM_GPGPU_HOST'}),
                ([make.group('T4')], {'CUSTOM_GPGPU_HOST'}), ([], set())):
            self.apply(*groups)
            self.assertEqual({'CUSTOM_RACK', 'OWNER_NOVA'} | found,
                             self.tree.data('h1').traits)

    def test_unknown_inventory_leaves_the_trait_of_the_node(self):
        placement.apply(self.tree, 'h1', None)
        self.assertEqual(set(), self.tree.data('h1').traits)
        self.apply(make.group())
        placement.apply(self.tree, 'h1', None)
        self.assertEqual({'CUSTOM_GPGPU_HOST'}, self.tree.data('h1').traits)

    def test_provider_of_somebody_else_is_left_alone(self):
        self.tree.new_child('other', 'h1', uuid='other')
        records = {'CUSTOM_FPGA': {'total': 2, 'reserved': 0}}
        self.tree.update_inventory('other', records)
        # Both together name the plugin's.
        for trait in (
                'OWNER_NOVA', naming.TRAIT_GPU, naming.TRAIT_OWNER):
            self.tree.update_traits('other', [trait])
            placement.apply(self.tree, 'h1', None)
            self.assertEqual(records, self.tree.data('other').inventory)


class DisabledTest(TreeTestCase):

    def test_trait_of_nova_on_the_node_counts(self):
        self.assertFalse(placement.is_disabled(self.tree, 'h1'))
        self.tree.update_traits('h1', [os_traits.COMPUTE_STATUS_DISABLED])
        self.assertTrue(placement.is_disabled(self.tree, 'h1'))


class CyborgTest(base.BaseTestCase):

    def managed(self, *children):
        tree = provider_tree.ProviderTree()
        tree.new_root('h1', make.NODE)
        for name, *traits in children:
            tree.new_child(name, 'h1', uuid=name)
            tree.update_traits(name, traits)
        return placement.managed_by_cyborg(tree, 'h1')

    def test_device_is_known_by_trait_and_address(self):
        self.assertEqual(
            {'0000:3b:00.0': 'Cyborg (provider h1_0000:3b:00.0 in Placement '
                             'has OWNER_CYBORG)'},
            self.managed(('h1_0000:3b:00.0', os_traits.OWNER_CYBORG),
                         ('h1_0000:3c:00.0', os_traits.OWNER_NOVA)))

    def test_provider_without_an_address_names_no_device(self):
        self.assertEqual({}, self.managed(('fpga', os_traits.OWNER_CYBORG)))


class PushTestCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.client = compute_base.FakeReportClient()
        self.client.tree = provider_tree.ProviderTree()
        self.client.tree.new_root('h1', make.NODE)

        self.written = {}

    def push(self, *groups):
        placement.push(None, self.client, make.host_inventory(*groups),
                       self.written)


class PushTest(PushTestCase):

    def test_unknown_provider_is_fetched_and_written(self):
        self.push(make.group())
        self.assertEqual([make.GROUP], self.client.fetches)
        self.assertEqual([make.GROUP], self.client.writes)
        self.assertEqual({'CUSTOM_GPU', 'OWNER_NOVA'},
                         self.client.tree.data(make.GROUP).traits)

    def test_equal_inventory_is_not_written_again(self):
        self.push(make.group())
        self.push(make.group())
        self.assertEqual([make.GROUP], self.client.writes)

    def test_provider_is_read_again_before_it_is_changed(self):
        self.push(make.group())
        self.push(make.group())
        self.assertEqual([make.GROUP], self.client.fetches)
        self.push(make.group(reserved=1))
        self.assertEqual([make.GROUP] * 2, self.client.fetches)
        self.assertEqual([make.GROUP] * 2, self.client.writes)

    def test_change_that_failed_is_written_later(self):
        self.push(make.group())
        self.client.error = nova_exception.ResourceProviderUpdateFailed(
            url='', error='')
        self.assertRaises(nova_exception.ResourceProviderUpdateFailed,
                          self.push, make.group(reserved=1))
        self.client.error = None
        self.push(make.group(reserved=1))
        self.assertEqual(1, self.client.tree.data(make.GROUP).inventory[
            'CUSTOM_GPU_H100']['reserved'])

    def test_three_conflicts_are_tried_again(self):
        self.push(make.group())
        self.client.conflicts = 3
        self.push(make.group(reserved=1))
        self.assertEqual([make.GROUP] * 2, self.client.writes)

    def test_fourth_conflict_is_raised(self):
        self.push(make.group())
        self.client.conflicts = 4
        self.assertRaises(
            nova_exception.ResourceProviderUpdateConflict, self.push,
            make.group(reserved=1))
        self.assertEqual(0, self.client.conflicts)

    def test_provider_that_never_comes_is_an_error(self):
        self.client.get_provider_tree_and_ensure_root = (
            lambda *args, **kwargs: self.client.tree)
        exc = self.assertRaises(
            nova_exception.ResourceProviderUpdateFailed, self.push,
            make.group())
        self.assertIn('h1_gpu_H100', str(exc))


class UnusedClassTest(PushTestCase):
    """A group loses its only resource class, which an allocation uses."""

    def setUp(self):
        super().setUp()
        self.push(make.group())
        self.client.allocations = {
            'i1': {make.GROUP: {'CUSTOM_GPU_H100': 2}}}
        self.gone = dataclasses.replace(make.group(), types=())

    def totals(self):
        return totals(self.client.tree)

    def test_class_with_an_allocation_stays_reserved(self):
        for _ in range(3):
            self.push(self.gone)
            self.assertEqual({'CUSTOM_GPU_H100': (8, 8)}, self.totals())
        self.assertEqual([make.GROUP] * 2, self.client.writes)

    def test_class_goes_once_it_is_reserved_and_not_allocated(self):
        self.client.allocations = {
            'i1': {make.GROUP: {'CUSTOM_GPU_T4': 1}, 'other': {}}}
        self.push(self.gone)
        # An allocation may have been made until it was reserved.
        self.assertEqual({'CUSTOM_GPU_H100': (8, 8)}, self.totals())
        self.push(self.gone)
        self.assertEqual({}, self.totals())

    def test_class_whose_allocations_are_unknown_stays(self):
        self.push(self.gone)
        self.client.get_allocations_for_resource_provider = mock.Mock(
            side_effect=(
                nova_exception.ResourceProviderAllocationRetrievalFailed(
                    rp_uuid=make.GROUP, error='503')))
        self.push(self.gone)
        self.assertEqual({'CUSTOM_GPU_H100': (8, 8)}, self.totals())

    def test_class_that_is_offered_again_is_not_reserved(self):
        self.push(self.gone)
        self.push(make.group())
        self.assertEqual({'CUSTOM_GPU_H100': (8, 0)}, self.totals())


class WithdrawTest(PushTestCase):

    def setUp(self):
        super().setUp()
        self.push(make.group())
        self.withdraw(make.group())

    def withdraw(self, *groups):
        placement.withdraw(None, self.client, make.host_inventory(*groups),
                           self.written)

    def reserved(self):
        return self.client.tree.data(make.GROUP).inventory[
            'CUSTOM_GPU_H100']['reserved']

    def test_group_that_exists_is_not_reserved(self):
        self.assertEqual({make.GROUP: make.group()}, self.written)
        self.assertEqual(0, self.reserved())

    def test_group_that_is_gone_is_reserved_once(self):
        self.withdraw()
        self.assertEqual((8, {}), (self.reserved(), self.written))
        self.client.fetches.clear()
        self.withdraw()
        self.assertEqual([], self.client.fetches)

    def test_group_whose_write_fails_is_withdrawn_again(self):
        self.client.error = nova_exception.ResourceProviderUpdateFailed(
            url='', error='')
        self.assertRaises(nova_exception.ResourceProviderUpdateFailed,
                          self.withdraw)
        self.client.error = None
        self.withdraw()
        self.assertEqual(8, self.reserved())


class AllocationsTest(PushTestCase):

    def test_amounts_are_by_provider_and_consumer(self):
        self.push(make.group())
        self.client.allocations = {
            'i1': {make.GROUP: {'CUSTOM_GPU_H100': 2}},
            'i2': {'other': {'VCPU': 1}}}
        self.assertEqual(
            {make.GROUP: {'i1': {'CUSTOM_GPU_H100': 2}}},
            placement.allocations(None, self.client, [make.GROUP]))

    def test_provider_that_placement_does_not_have_is_left_out(self):
        self.assertEqual({}, placement.allocations(
            None, self.client, ['nowhere']))
