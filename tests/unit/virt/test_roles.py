# SPDX-License-Identifier: Apache-2.0
"""Tests of the roles of an instance's assignments."""

import types
from unittest import mock

import fixtures
from nova import objects
from nova.compute import task_states
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.objects import claim
from gpgpu_plugin.virt import assignment_selector

INSTANCE, DESTINATION = (
    types.SimpleNamespace(
        uuid=f'a-{role}', role=role, migration_uuid=migration_uuid,
        host_generation=0)
    for role, migration_uuid in (
        (claim.ClaimRole.INSTANCE, None),
        (claim.ClaimRole.DESTINATION, 'm1')))


class SelectorTest(base.BaseTestCase):

    def test_claim_of_another_migration_is_not_the_destination_s(self):
        other = types.SimpleNamespace(
            role=claim.ClaimRole.DESTINATION, migration_uuid='m0')
        migration = types.SimpleNamespace(uuid='m1')
        for assignment, is_destination in (
                (INSTANCE, False), (DESTINATION, True), (other, False)):
            self.assertIs(is_destination,
                          assignment_selector.destination_of(
                              migration)(assignment))

    def test_named_device_stays_in_a_resize_on_one_host(self):
        named, flavors = (types.SimpleNamespace(
            role=claim.ClaimRole.INSTANCE, migration_uuid=None, exact=exact)
            for exact in (True, False))
        for dest, assignment, arrives in (
                ('h1', named, True), ('h1', flavors, False),
                ('h2', named, False), ('h2', flavors, False)):
            migration = types.SimpleNamespace(
                uuid='m1', source_compute='h1', dest_compute=dest)
            self.assertIs(
                arrives,
                assignment_selector.arriving_with(migration)(assignment))

    def test_every_role_is_any_role(self):
        self.assertTrue(assignment_selector.any_role(INSTANCE))
        self.assertTrue(assignment_selector.any_role(DESTINATION))


class LocatedTestCase(base.BaseTestCase):
    """Instance with one migration m1 to the host ``dest``."""

    def locate(self, *, status='error', dest='h1', flavor=1, moved=True,
               assigned=(INSTANCE, DESTINATION)):
        self.find = self.useFixture(fixtures.MockPatchObject(
            objects.MigrationList, 'get_by_filters', return_value=[
                types.SimpleNamespace(
                    id=1, created_at=1, uuid='m1', status=status,
                    source_compute='h0' if dest != 'h1' else 'h1',
                    dest_compute=dest,
                    migration_type='resize', new_instance_type_id=2)]
            if moved else [])).mock
        self.tracker = mock.Mock()
        self.tracker.host = dest
        self.tracker.assigned.return_value = assigned
        self.instance = types.SimpleNamespace(
            uuid='i1', host=dest, task_state=None, vm_state='error',
            deleted=False, hidden=False,
            flavor=types.SimpleNamespace(id=flavor))


class CurrentTest(LocatedTestCase):

    def roles(self, without=None, **kwargs):
        """Return the roles of the assignments that are selected."""
        self.locate(**kwargs)
        selector = assignment_selector.current(
            self.instance, self.tracker, without)
        return [str(assignment.role) for assignment
                in self.tracker.assigned()
                if selector(assignment)]

    def test_instance_without_moves_asks_nothing_of_nova(self):
        self.assertEqual(['instance'], self.roles(assigned=(INSTANCE,)))
        self.assertEqual([], self.roles(assigned=()))
        self.assertFalse(self.find.called)

    def test_destination_of_two_hosts_has_what_was_claimed_for_it(self):
        for status in ('post-migrating', 'finished', 'error', 'confirmed'):
            # Beside what an earlier move left there.
            self.assertEqual(['destination'], self.roles(
                dest='h2', status=status))
            self.assertEqual(['destination'], self.roles(
                dest='h2', status=status, assigned=(DESTINATION,)))

    def test_one_host_has_what_the_flavor_says(self):
        for status in ('error', 'finished'):
            self.assertEqual(['instance'], self.roles(
                flavor=1, status=status))
            self.assertEqual(['destination'], self.roles(
                flavor=2, status=status))

    def test_instance_without_gpus_has_none_after_a_failed_resize(self):
        self.assertEqual([], self.roles(flavor=1, assigned=(DESTINATION,)))

    def test_unshelved_instance_has_what_was_claimed_last(self):
        # A failed migration to this host left its devices here before.
        left, build = (
            types.SimpleNamespace(**{**vars(assignment),
                                     'host_generation': order})
            for assignment, order in ((DESTINATION, 7), (INSTANCE, 8)))
        self.assertEqual(['instance'], self.roles(
            dest='h2', assigned=(left, build)))

    def test_revert_takes_the_destination_s_away(self):
        self.assertEqual(['instance'], self.roles(
            types.SimpleNamespace(uuid='m1'), flavor=2, status='reverting'))

    def test_spawned_guest_has_the_role_instance(self):
        for keeps, assigned in ((False, (INSTANCE, DESTINATION)), (True, ())):
            self.locate(dest='h2', assigned=assigned)
            selector = assignment_selector.spawned(
                self.instance, self.tracker, keeps)
            self.assertTrue(selector(INSTANCE))
            self.assertFalse(selector(DESTINATION))

    def test_rebuilt_guest_keeps_what_it_has(self):
        self.locate(dest='h2')
        selector = assignment_selector.spawned(self.instance,
                                               self.tracker, True)
        self.assertFalse(selector(INSTANCE))
        self.assertTrue(selector(DESTINATION))


class UndecidedTest(base.BaseTestCase):
    """Tests of an instance that is moved to h1 from another cell, again."""

    def setUp(self):
        super().setUp()
        self.migrations = []
        self.useFixture(fixtures.MockPatchObject(
            objects.MigrationList, 'get_by_filters',
            side_effect=lambda context, filters: self.migrations))
        self.instance = types.SimpleNamespace(
            uuid='i1', host='h9', task_state=task_states.RESIZE_FINISH,
            vm_state='active', hidden=True, deleted=False,
            flavor=types.SimpleNamespace(id=1))

    def migrate(self, uuid, status, created_at, number):
        self.migrations.append(types.SimpleNamespace(
            id=number, created_at=created_at, uuid=uuid, status=status,
            source_compute='h9', dest_compute='h1',
            migration_type='resize', new_instance_type_id=2))

    def found(self):
        found = {
            assignment_selector.migration_at(self.instance, 'h1').uuid,
            assignment_selector.migration_at(self.instance, 'h9').uuid}
        self.assertEqual(1, len(found))
        return found.pop()

    def test_newest_migration_counts_whatever_the_order_of_ids(self):
        for status in ('reverted', 'migrating'):
            self.migrations.clear()
            self.migrate('new', 'post-migrating', created_at=2, number=1)
            self.migrate('old', status, created_at=1, number=2)
            self.assertEqual('new', self.found())

    def test_older_migration_left_migrating_does_not_count(self):
        self.migrate('old', 'migrating', created_at=1, number=1)
        self.migrate('new', 'error', created_at=2, number=2)
        self.assertRaises(exception.NotFound, self.found)

    def test_migration_left_migrating_does_not_count(self):
        self.migrate('old', 'migrating', created_at=1, number=1)
        self.assertEqual('old', self.found())
        self.instance.task_state = None
        self.assertRaises(exception.NotFound, self.found)

    def test_migration_of_other_hosts_does_not_count(self):
        self.migrate('new', 'post-migrating', created_at=2, number=1)
        self.assertRaises(
            exception.NotFound, assignment_selector.migration_at,
            self.instance, 'h2')
