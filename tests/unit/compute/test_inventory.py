# SPDX-License-Identifier: Apache-2.0
"""Tests of the inventory that a host offers, and when it is written."""

import fixtures
from nova.compute import provider_tree
from oslotest import base

from gpgpu_plugin.compute import inventory
from gpgpu_plugin.compute import placement
from tests.unit.compute import make


class OfferedInventoryTestCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.frozen = False
        self.offered = inventory.OfferedInventory(
            'h1', object(), lambda: self.frozen)
        self.tree = provider_tree.ProviderTree()
        self.tree.new_root('h1', make.NODE)
        self.written = []
        self.useFixture(fixtures.MockPatchObject(
            placement, 'push', self.push))

    def push(self, context, client, new, written):
        self.written.append(new.generation)
        written.update(
            {group.provider_uuid: group for group in new.groups})

    def accept(self, *groups, **kwargs):
        self.offered.accept(make.host_inventory(*groups, **kwargs))


class AcceptTest(OfferedInventoryTestCase):

    def test_newer_answer_replaces_the_known_one(self):
        self.accept(generation=1)
        self.accept(generation=2)
        self.assertEqual(2, self.offered.newest.generation)

    def test_older_answer_that_arrives_late_is_dropped(self):
        self.accept(generation=2)
        self.accept(generation=1)
        self.assertEqual(2, self.offered.newest.generation)

    def test_answer_of_the_same_generation_is_accepted(self):
        self.accept(generation=1)
        self.accept(make.group(), generation=1)
        self.assertEqual(1, len(self.offered.newest.groups))

    def test_answer_about_another_host_is_dropped(self):
        self.accept(generation=2, host='h2')
        self.assertIsNone(self.offered.newest)

    def test_missing_answer_is_dropped(self):
        self.accept(generation=1)
        self.offered.accept(None)
        self.assertEqual(1, self.offered.newest.generation)


class ContentTest(OfferedInventoryTestCase):

    def test_unknown_inventory_has_no_groups(self):
        self.assertIsNone(self.offered.newest)
        self.assertEqual(set(), self.offered.provider_uuids())

    def test_groups_have_providers_and_resource_classes(self):
        self.accept(make.group(), make.group('T4'))
        self.assertEqual({'CUSTOM_GPU_H100', 'CUSTOM_GPU_T4'},
                         self.offered.newest.resource_classes())
        self.assertEqual({'provider-H100', 'provider-T4'},
                         self.offered.provider_uuids())


class WriteTest(OfferedInventoryTestCase):

    def test_push_before_nova_has_the_groups_writes_nothing(self):
        self.accept(make.group())
        self.offered.push()
        self.assertEqual([], self.written)

    def test_push_after_apply_writes_the_newest(self):
        self.offered.apply(self.tree, 'h1')
        self.accept(make.group(), generation=3)
        self.offered.push()
        self.assertEqual([3], self.written)

    def test_push_of_an_unknown_inventory_writes_nothing(self):
        self.offered.apply(self.tree, 'h1')
        self.offered.push()
        self.assertEqual([], self.written)

    def test_push_while_frozen_writes_nothing(self):
        self.accept(make.group())
        self.offered.apply(self.tree, 'h1')
        self.frozen = True
        self.offered.push()
        self.assertEqual([], self.written)

    def test_apply_while_frozen_leaves_the_tree(self):
        self.accept(make.group(total=8))
        self.offered.apply(self.tree, 'h1')
        self.frozen = True
        self.accept(make.group(total=4), generation=2)
        self.offered.apply(self.tree, 'h1')
        self.assertEqual(8, self.total())

    def test_first_apply_is_made_also_while_frozen(self):
        self.frozen = True
        self.accept(make.group())
        self.offered.apply(self.tree, 'h1')
        self.assertEqual(8, self.total())

    def total(self):
        return self.tree.data(make.GROUP).inventory[
            'CUSTOM_GPU_H100']['total']

    def test_apply_to_a_tree_without_the_node_raises(self):
        self.accept(make.group())
        self.assertRaises(ValueError, self.offered.apply, self.tree, 'h9')

    def test_push_that_fails_is_logged_and_does_not_raise(self):
        self.accept(make.group())
        self.offered.apply(self.tree, 'h1')
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.compute.inventory'))
        with fixtures.MockPatchObject(
                placement, 'push', side_effect=RuntimeError('409')):
            self.offered.push()
        self.assertIn('Cannot write the GPU groups of h1', log.output)
        self.offered.push()
        self.assertEqual([1], self.written)

    def test_group_that_is_gone_is_withdrawn_once(self):
        withdrawn = []

        def withdraw(context, client, found, written):
            gone = written.keys() - {
                group.provider_uuid for group in found.groups}
            withdrawn.append(gone)
            for uuid in gone:
                del written[uuid]
        self.useFixture(fixtures.MockPatchObject(
            placement, 'withdraw', withdraw))
        self.offered.apply(self.tree, 'h1')
        self.accept(make.group())
        self.offered.push()
        self.accept(generation=2)
        self.offered.push()
        self.offered.push()
        self.assertEqual([set(), {make.GROUP}, set()], withdrawn)
