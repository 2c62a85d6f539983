# SPDX-License-Identifier: Apache-2.0
"""Tests of the model of Nova."""

import pathlib

import fixtures
from oslotest import base

from tests.storm import nova as nova_mod


class NovaTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.nova = nova_mod.Nova(self.folder)

    def build(self, step='resize', *, again=False):
        instance = self.nova.begin_build('h0', 1, again=again)
        self.nova.finish_build(instance, step, 0)
        return instance

    def begin_migration(self):
        """Begin to resize an instance from h0 to h1; return the step there."""
        self.build()
        self.nova.begin_migration(self.nova.take_step('h0'), 'h1', 2)
        return self.nova.take_step('h1')

    def test_step_is_taken_once_and_by_its_host(self):
        instance = self.build()
        self.assertIsNone(self.nova.take_step('h1'))
        self.assertEqual(instance, self.nova.take_step('h0').uuid)
        self.assertIsNone(self.nova.take_step('h0'))

    def test_step_is_not_taken_before_it_is_due(self):
        instance = self.build()
        self.nova.set_step(instance, 'delete', None, 60)
        self.assertIsNone(self.nova.take_step('h0'))
        self.assertEqual('delete', self.nova.take_resting('h0').name)

    def test_instance_of_lost_step_is_deleted_on_its_host(self):
        self.begin_migration()
        self.assertFalse(self.nova.is_at_rest())
        nova_mod.Nova(self.folder).replace_lost_steps('h1')
        self.assertFalse(self.nova.is_at_rest())
        step = self.nova.take_move('h0')
        self.assertEqual(nova_mod.DELETE_ERROR, step.name)
        self.nova.delete(step.uuid)
        self.assertTrue(self.nova.is_at_rest())

    def test_move_that_has_begun_is_not_at_rest(self):
        instance = self.build()
        self.assertTrue(self.nova.is_at_rest())
        self.nova.set_step(instance, 'confirm_resize', 'h0', 60)
        self.assertFalse(self.nova.is_at_rest())
        self.assertIsNone(self.nova.take_step('h0'))
        self.assertEqual('confirm_resize', self.nova.take_move('h0').name)

    def test_location_has_the_migrations_newest_first(self):
        step = self.begin_migration()
        self.nova.update(step, status='confirmed', host='h1', gpus=2)
        location = self.nova.location(step.uuid)
        self.assertEqual(('h1', 2), (location.host, location.flavor))
        [migration] = location.migrations
        self.assertEqual(
            (step.migration.uuid, 'confirmed', 'h0', 'h1', 2),
            (migration.uuid, migration.status, migration.source,
             migration.dest, migration.new_flavor))

    def test_migration_has_the_allocation_of_its_source(self):
        step = self.begin_migration()
        self.assertEqual({step.migration.uuid: 1},
                         self.nova.allocations('h0'))
        self.assertEqual({step.uuid: 2}, self.nova.allocations('h1'))
        self.nova.update(step, status='confirmed', host='h1', gpus=2)
        self.assertEqual({}, self.nova.allocations('h0'))
        self.assertEqual({step.uuid: 2}, self.nova.allocations('h1'))

    def test_deleted_instance_is_built_again(self):
        instance = self.build()
        self.nova.delete(instance)
        self.assertIsNone(self.nova.location(instance).host)
        self.assertEqual(instance, self.build(again=True))
