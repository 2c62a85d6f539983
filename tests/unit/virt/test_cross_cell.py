# SPDX-License-Identifier: Apache-2.0
"""Tests of Nova's calls of the driver for a move to another cell.

One host plays both parts, one after the other. The other cell's migration has
the same UUID.
"""

import types

import fixtures
from nova import objects
from nova.compute import task_states
from nova.compute import vm_states

from gpgpu_plugin import context as context_mod
from gpgpu_plugin import exception
from gpgpu_plugin.virt import exception as virt_exception
from tests.unit.virt import base


class CrossCellCase(base.DriverTestCase):

    def setUp(self):
        super().setUp()
        self.migrations = []
        self.useFixture(fixtures.MockPatchObject(
            objects.MigrationList, 'get_by_filters',
            side_effect=lambda context, filters: self.migrations))

    def migrate(self, source, dest, status, number=1):
        migration = types.SimpleNamespace(
            id=number, created_at=number, uuid=f'm{number}', status=status,
            source_compute=source, dest_compute=dest,
            migration_type='resize', new_instance_type_id=2)
        self.migrations.insert(0, migration)
        return migration

    def roles(self):
        return sorted(
            (str(assignment.role), assignment.state) for assignment
            in self.api.instance_assignments(context_mod.admin(), 'i1'))

    def fail_nova(self, method):
        self.useFixture(fixtures.MockPatch(
            f'nova.virt.fake.FakeDriver.{method}',
            side_effect=RuntimeError('x')))


class DestinationTest(CrossCellCase):

    def setUp(self):
        super().setUp()
        self.migration = self.migrate('h9', 'h1', 'post-migrating', 2)
        self.migrate('h9', 'h1', 'error')
        self.instance = self.make_instance(
            2, host='h9', hidden=True,
            task_state=task_states.RESIZE_FINISH)

    def claim(self):
        self.instance.migration_context = types.SimpleNamespace(
            migration_id=2, new_numa_topology=None)
        self.driver._gpu_claim_move(
            None, self.instance, self.instance.flavor, self.migration, {
                provider: {'resources': resources} for provider, resources
                in self.request(2).allocated.items()}, None, 'h1')
        self.instance.migration_context = None

    def finish(self):
        self.driver.spawn(
            None, self.instance, None, [], None,
            {self.provider: {'resources': {}}})

    def test_guest_gets_the_devices_claimed_for_the_migration(self):
        self.claim()
        self.finish()
        self.assertEqual([('destination', 'assigned')] * 2, self.roles())
        self.assertEqual(['i1'], self.driver.list_instance_uuids())

    def test_guest_without_a_claim_is_not_made(self):
        self.assertRaises(virt_exception.GPUOperationFailed, self.finish)
        self.assertEqual([], self.driver.list_instance_uuids())

    def test_guest_without_a_migration_is_not_made(self):
        self.migrations.clear()
        self.assertRaises(exception.NotFound, self.finish)
        self.assertEqual([], self.driver.list_instance_uuids())

    def test_guest_that_cannot_be_made_releases_the_claim(self):
        self.claim()
        self.fail_nova('spawn')
        self.assertRaises(RuntimeError, self.finish)
        self.assertEqual([], self.roles())
        self.assertEqual((), self.tracker.assignments.of_instance('i1'))

    def test_guest_that_cannot_be_removed_keeps_the_claim(self):
        self.claim()
        self.fail_nova('spawn')
        self.fail_nova('destroy')
        self.assertRaises(RuntimeError, self.finish)
        self.assertEqual([('destination', 'assigned')] * 2, self.roles())

    def test_revert_releases_the_claim(self):
        self.claim()
        self.finish()
        self.instance.host, self.instance.hidden = 'h1', False
        self.instance.vm_state = vm_states.RESIZED
        self.instance.task_state = task_states.RESIZE_REVERTING
        self.migration.status = 'reverting'
        self.driver.destroy(None, self.instance, None)
        self.assertEqual([], self.roles())

    def test_guest_without_gpus_is_created_without_a_claim(self):
        self.migrations.clear()
        self.instance.flavor = self.make_instance(0).flavor
        self.driver.spawn(None, self.instance, None, [], None, {})
        self.assertEqual(['i1'], self.driver.list_instance_uuids())


class SourceTest(CrossCellCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MockPatch(
            'nova.virt.fake.FakeDriver.cleanup'))
        self.instance = self.spawn(2)
        self.instance.task_state = task_states.RESIZE_MIGRATING
        self.driver.destroy(None, self.instance, None)
        self.instance.task_state = task_states.RESIZE_MIGRATED
        self.migration = self.migrate('h1', 'h9', 'finished')

    def cleanup(self):
        self.driver.cleanup(None, self.instance, None, destroy_vifs=False)

    def test_devices_stay_while_the_migration_is_undecided(self):
        self.assertEqual([('instance', 'assigned')] * 2, self.roles())
        # Nova calls it for other reasons, too.
        self.cleanup()
        self.assertEqual([('instance', 'assigned')] * 2, self.roles())

    def test_confirmation_releases_the_devices(self):
        self.instance.hidden = True
        self.cleanup()
        self.assertEqual([], self.roles())
        # Nova removes the migration's allocation next.
        self.assertTrue(self.tracker.allocation_removal)

    def test_confirmation_that_fails_keeps_the_devices(self):
        self.instance.hidden = True
        self.fail_nova('cleanup')
        self.assertRaises(RuntimeError, self.cleanup)
        self.assertEqual([('instance', 'assigned')] * 2, self.roles())
        self.assertTrue(self.tracker.allocation_removal)

    def test_confirmation_names_the_migration(self):
        confirm = self.useFixture(fixtures.MockPatchObject(
            self.tracker, 'confirm_migration')).mock
        self.instance.hidden = True
        for source in (2, 0):
            self.cleanup()
            [confirmation] = confirm.call_args.args
            self.assertEqual(('m1', source), (
                confirmation.migration_uuid,
                len(confirmation.source_assignments)))
            # The next one had no GPUs here before.
            self.tracker.release_instance('i1')
            self.instance.flavor = self.make_instance(0).flavor
            self.instance.new_flavor = self.make_instance(1).flavor

    def test_revert_prepares_the_devices_again(self):
        self.instance.task_state = task_states.RESIZE_REVERTING
        self.driver.instances['i1'] = self.instance
        prepare = self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'prepare')).mock
        self.driver.finish_revert_migration(
            None, self.instance, None, self.migration)
        self.assertEqual(2, prepare.call_count)
        self.assertEqual([('instance', 'assigned')] * 2, self.roles())
