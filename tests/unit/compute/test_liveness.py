# SPDX-License-Identifier: Apache-2.0
"""Tests of each row of the table of live assignments."""

import itertools

from nova.compute import task_states
from nova.compute import vm_states
from oslotest import base

from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.objects import claim
from tests.unit.compute import make

HERE, ELSEWHERE = 'h1', 'h2'
ON_SOURCE = ('pre-migrating', 'migrating', 'post-migrating')
OVER = ('error', 'failed', 'confirmed', 'reverted')
MOVING = (task_states.RESIZE_PREP, task_states.RESIZE_MIGRATING,
          task_states.RESIZE_MIGRATED, task_states.RESIZE_FINISH)
RELEASING_TASKS = {
    'deleting', 'soft-deleting', 'shelving', 'shelving_image_pending_upload',
    'shelving_image_uploading', 'shelving_offloading'}
STOPPED = (None, task_states.REBOOT_STARTED_HARD)
"""Tasks after nova-compute was killed in a migration."""

OWN = make.assignment(uuid='own')
OTHER = make.assignment(uuid='other')
"""Same claim as ``OWN``."""


def claimed(migration_uuid='m1', **kwargs):
    """Return an assignment for the destination of a migration."""
    return make.assignment(
        uuid=f'of-{migration_uuid}', role=claim.ClaimRole.DESTINATION,
        migration_uuid=migration_uuid, **kwargs)


def away(status, uuid='m1', **kwargs):
    """Return a migration from here to the other host."""
    return assignment_use.Migration(
        uuid=uuid, status=status, source=HERE, dest=ELSEWHERE, **kwargs)


def home(status, uuid='m1', **kwargs):
    """Return a migration from the other host to here."""
    return assignment_use.Migration(
        uuid=uuid, status=status, source=ELSEWHERE, dest=HERE, **kwargs)


def on_host(status, uuid='m1'):
    """Return a resize on this host to the flavor 2."""
    return assignment_use.Migration(
        uuid=uuid, status=status, source=HERE, dest=HERE, new_flavor=2)


def names(module):
    """Return the values that a module of Nova defines, and None."""
    return {None} | {
        value for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)}


class TableTestCase(base.BaseTestCase):

    def dead(self, *assignments, host=HERE, migrations=(), task=None,
             flavor=1, domain='inactive', deleting=False, hidden=False,
             vm_state=None, operation=None):
        """Return the UUIDs of the assignments that nobody uses."""
        return sorted(assignment_use.unused(
            assignments, assignment_use.Location(
                host=host, task=task, flavor=flavor, is_hidden=hidden,
                vm_state='deleted' if deleting else vm_state,
                migrations=tuple(migrations)),
            HERE, assignment_use.Domain(domain), operation))


class NowhereTest(TableTestCase):

    def test_deleted_instance_uses_nothing(self):
        self.assertEqual({'own', 'of-m1'}, assignment_use.unused(
            [OWN, claimed()], None, HERE, assignment_use.Domain.INACTIVE))

    def test_instance_without_host_uses_nothing(self):
        self.assertEqual(
            ['of-m1', 'own'], self.dead(OWN, claimed(), host=None))

    def test_instance_that_is_spawned_or_unshelved_uses_all(self):
        for task in (task_states.SPAWNING, task_states.UNSHELVING):
            self.assertEqual([], self.dead(OWN, host=None, task=task))

    def test_claim_of_a_build_that_is_over_is_dead(self):
        build = make.assignment(uuid='build', state='provisioning')
        for host in (HERE, ELSEWHERE):
            self.assertEqual(['build'], self.dead(
                build, host=host, domain='absent'))
        # Killed before the guest that exists was recorded as such.
        self.assertEqual([], self.dead(build, domain='inactive'))


class PrepareTest(TableTestCase):
    """Tests of assignments on the host to which Nova prepares a move."""

    def dead(self, *assignments, host=ELSEWHERE, migrations=(), **kwargs):
        return super().dead(
            *assignments, host=host, task=task_states.RESIZE_PREP,
            migrations=(assignment_use.Migration(
                uuid='new', status='pre-migrating', source=host, dest=HERE),
                *migrations), operation=assignment_use.Operation(
                assignment_use.OperationKind.PREPARE, 'new'), **kwargs)

    def test_what_earlier_moves_left_is_dead(self):
        for migration in (home('error'), home('failed'), away('error'),
                          away('confirmed'), home('pre-migrating')):
            for domain in ('absent', 'inactive'):
                self.assertEqual(['of-m1', 'own'], self.dead(
                    OWN, claimed(), migrations=[migration], domain=domain))

    def test_claim_of_the_move_itself_lives(self):
        self.assertEqual(['own'], self.dead(OWN, claimed('new')))

    def test_move_that_nova_has_not_decided_keeps_all(self):
        for migration in (away('finished'), away('reverting'),
                          away('post-migrating')):
            self.assertEqual([], self.dead(
                OWN, claimed(), migrations=[migration]))

    def test_instance_that_stays_on_the_host_keeps_its_own_set(self):
        # The book does not know that its build is over.
        mine = make.assignment(uuid='own', state='provisioning')
        for domain in ('absent', 'inactive'):
            self.assertEqual([], self.dead(mine, host=HERE, domain=domain))
            self.assertEqual(['of-m1'], self.dead(
                mine, claimed(), host=HERE, migrations=[away('error')],
                domain=domain))
            self.assertEqual(['own'], self.dead(
                mine, claimed(), host=HERE, migrations=[home('error')],
                domain=domain))


class DestroyTest(TableTestCase):
    """Tests of what is dead once Nova has destroyed the guest here.

    By the rules at rest both claims live.
    """

    def dead(self, *assignments, migrations=None, **kwargs):
        if migrations is None:
            migrations = [on_host('reverting')]
        return super().dead(
            *(assignments or (OWN, claimed())), migrations=migrations,
            domain='absent', operation=assignment_use.DESTROY, **kwargs)

    def test_every_state(self):
        for vm_state, task in itertools.product(
                names(vm_states), names(task_states)):
            expected = []
            if vm_state in ('building', 'soft-delete', 'deleted') or (
                    task is None and vm_state != 'resized') or (
                    task in RELEASING_TASKS):
                expected = ['of-m1', 'own']
            elif task == 'resize_reverting':
                expected = ['of-m1']
            self.assertEqual(expected, self.dead(
                vm_state=vm_state, task=task), (vm_state, task))

    def test_instance_that_lives_elsewhere_uses_nothing_here(self):
        for status in ('accepted', 'pre-migrating', 'done'):
            self.assertEqual(['of-m0', 'own'], self.dead(
                OWN, claimed('m0'), host=ELSEWHERE, migrations=[
                    away(status, is_evacuation=True),
                    home('finished', 'm0')]))

    def test_source_of_an_evacuation_keeps_what_it_may_need(self):
        for status in ('accepted', 'pre-migrating'):
            self.assertEqual([], self.dead(
                OWN, migrations=[away(status, is_evacuation=True)]))
        for migration in (
                away('failed', is_evacuation=True), away('accepted'),
                home('accepted', is_evacuation=True)):
            self.assertEqual(['own'], self.dead(OWN, migrations=[migration]))
        self.assertEqual(['own'], self.dead(
            OWN, migrations=[away('accepted', is_evacuation=True)],
            task='deleting'))

    def test_source_waits_for_the_decision(self):
        self.assertEqual([], self.dead(
            OWN, host=ELSEWHERE, vm_state='resized',
            migrations=[away('finished')]))

    def test_destination_goes_when_it_is_reverted(self):
        for task, dead in (('resize_reverting', ['of-m1', 'own']),
                           ('resize_finish', [])):
            self.assertEqual(dead, self.dead(
                OWN, claimed(), vm_state='resized', task=task,
                migrations=[home('reverting'), away('error', 'm0')]))

    def test_revert_of_an_older_migration_keeps_what_is_undecided(self):
        # The guest came here, was reset to active and went back.
        self.assertEqual([], self.dead(
            claimed(), host=ELSEWHERE, vm_state='resized',
            task='resize_reverting',
            migrations=[away('finished', 'm2'), home('reverting')]))

    def test_build_that_is_unknown_to_the_book_lives(self):
        self.assertEqual([], self.dead(
            make.assignment(uuid='own', state='provisioning'),
            task='rebuilding', migrations=()))


class DecideTest(TableTestCase):
    """Tests of what is dead once Nova has decided a migration."""

    def confirmed(self, *assignments, uuid='m1', **kwargs):
        return self.dead(*assignments, operation=assignment_use.Operation(
            assignment_use.OperationKind.CONFIRM, uuid), **kwargs)

    def test_source_is_dead_when_it_is_confirmed(self):
        for domain in ('absent', 'inactive'):
            self.assertEqual(['of-m0', 'own'], self.confirmed(
                OWN, claimed('m0'), host=ELSEWHERE, domain=domain,
                migrations=[away('confirming'), home('error', 'm0')]))

    def test_resize_on_one_host_leaves_its_claim(self):
        self.assertEqual(['own'], self.confirmed(
            OWN, claimed(), migrations=[on_host('confirming')], flavor=2))
        # An instance that named its device claims none for it.
        self.assertEqual([], self.confirmed(
            OWN, migrations=[on_host('confirming')], flavor=2))

    def test_source_in_another_cell_is_dead(self):
        self.assertEqual(['own'], self.confirmed(
            OWN, migrations=[away('finished')], hidden=True,
            task=task_states.RESIZE_MIGRATED))

    def test_older_migration_leaves_what_the_newer_one_brought(self):
        # The guest went away, was reset to active and came home.
        both = [home('finished', 'm2'), away('confirming')]
        self.assertEqual(['own'], self.confirmed(
            OWN, claimed('m2'), migrations=both))
        self.assertEqual([], self.confirmed(
            OWN, claimed('m2'), migrations=[on_host('finished', 'm2'),
                                            away('confirming')]))

    def test_newer_migration_ends_what_the_older_one_claimed(self):
        self.assertEqual(['of-m1'], self.confirmed(
            claimed(), uuid='m2', host=ELSEWHERE,
            migrations=[away('confirming', 'm2'), home('finished')]))

    def test_destination_that_failed_is_dead(self):
        migrations = [home('post-migrating'), home('confirmed', 'm0')]
        for operation, dead in (
                (None, []),
                (assignment_use.Operation(assignment_use.OperationKind.FAIL,
                                          'm1'),
                 ['of-m1'])):
            self.assertEqual(dead, self.dead(
                claimed(), host=ELSEWHERE, migrations=migrations,
                task=task_states.RESIZE_FINISH, operation=operation))


class MayRunWithTest(base.BaseTestCase):
    """Tests of a guest here and assignments that Nova does not need."""

    def found(self, domain, kind=None):
        others = [make.assignment(uuid='own', address='0000:01:00.0'),
                  make.assignment(uuid='left', address='0000:02:00.0')]
        return assignment_use.may_run_with(
            {'left'}, others, domain,
            None if kind is None else assignment_use.Operation(kind, 'm1'))

    def test_guest_that_is_off_runs_with_nothing(self):
        for domain in (assignment_use.Domain.ABSENT,
                       assignment_use.Domain.INACTIVE):
            self.assertFalse(self.found(domain))

    def test_guest_with_all_others_does_not_run_with_it(self):
        for names, may in (
                (('0000:01:00.0', '0000:99:00.0'), False), (('own',), False),
                (('0000:01:00.0', '0000:02:00.0'), True),
                (('0000:01:00.0', 'left'), True), ((), True),
                # Its buses may have other numbers than before.
                (('0000:03:00.0',), True)):
            self.assertIs(may, self.found(assignment_use.Domain(
                'active', frozenset(names))), names)

    def test_guest_whose_devices_are_unknown_may_run_with_all(self):
        for kind, may in (
                (None, True), (assignment_use.OperationKind.BUILD, True),
                (assignment_use.OperationKind.PREPARE, True),
                (assignment_use.OperationKind.DESTROY, True),
                (assignment_use.OperationKind.CONFIRM, False)):
            self.assertIs(may, self.found(assignment_use.Domain.ACTIVE, kind))


class HereTest(TableTestCase):

    def test_instance_that_is_deleted_is_left_to_the_delete(self):
        self.assertEqual([], self.dead(OWN, deleting=True))
        for migration in (home('migrating'), on_host('migrating')):
            self.assertEqual([], self.dead(
                OWN, claimed(), migrations=[migration], deleting=True,
                task=task_states.DELETING))

    def test_one_claim_lives_whatever_happened(self):
        for migrations in (
                [], [away('error')], [away('reverted')], [home('confirmed')],
                [home('error')], [away('finished')]):
            self.assertEqual([], self.dead(OWN, OTHER, migrations=migrations))
        self.assertEqual([], self.dead(claimed(), migrations=[home('error')]))

    def test_migration_that_brought_it_here_has_the_living_claim(self):
        for status in ('finished', 'confirmed', 'error'):
            self.assertEqual(['own'], self.dead(
                OWN, claimed(), migrations=[home(status)]))

    def test_confirmed_claim_has_the_role_instance(self):
        self.assertEqual(['of-m0'], self.dead(
            OWN, claimed('m0'),
            migrations=[home('confirmed'), home('error', 'm0')]))

    def test_migration_that_came_back_leaves_the_older_claim(self):
        for status in ('reverted', 'error', 'failed'):
            self.assertEqual(['own'], self.dead(
                OWN, claimed('m0'),
                migrations=[away(status), home('error', 'm0')]))

    def test_newest_migration_here_decides(self):
        self.assertEqual(['of-m0'], self.dead(
            claimed(), claimed('m0'),
            migrations=[home('error'), home('error', 'm0')]))

    def test_claim_of_a_build_after_the_migration_lives(self):
        # Such as unshelve; the failed migration left its devices here.
        build = make.assignment(uuid='build', host_generation=8)
        for status in (*OVER, 'finished'):
            for order, dead in ((7, 'of-m1'), (9, 'build')):
                if status in ('failed', 'reverted'):
                    dead = 'of-m1'
                self.assertEqual([dead], self.dead(
                    build, claimed(host_generation=order),
                    migrations=[home(status)]), (status, order))

    def test_newer_build_replaces_the_migration_that_brought_it_alone(self):
        # Built after m0; then m1 brought it here again.
        self.assertEqual(['build', 'of-m0'], self.dead(
            make.assignment(uuid='build', host_generation=8),
            claimed('m0', host_generation=7),
            claimed('m1', host_generation=9),
            migrations=[home('error'), home('error', 'm0')]))

    def test_undecided_migration_keeps_all(self):
        for status in ('reverting', 'confirming'):
            for migration in (home(status), away(status)):
                self.assertEqual([], self.dead(
                    OWN, claimed(), migrations=[migration]))

    def test_migration_on_its_way_keeps_all_while_it_moves(self):
        for status in ON_SOURCE:
            for migration in (home(status), away(status)):
                for task in (*MOVING, task_states.MIGRATING):
                    self.assertEqual([], self.dead(
                        OWN, claimed(), migrations=[migration], task=task))

    def test_migration_that_stopped_decides_like_a_failed_one(self):
        for status in ON_SOURCE:
            for task in STOPPED:
                self.assertEqual(['of-m1'], self.dead(
                    OWN, claimed(), migrations=[away(status)], task=task))
                self.assertEqual(['own'], self.dead(
                    OWN, claimed(), migrations=[home(status)], task=task))

    def test_evacuation_that_is_not_done_keeps_all(self):
        for status in ('accepted', 'pre-migrating'):
            self.assertEqual([], self.dead(
                OWN, claimed('m0'), migrations=[
                    away(status, is_evacuation=True), home('error', 'm0')]))

    def test_evacuated_instance_has_the_claim_of_its_build(self):
        for status in ('done', 'completed'):
            self.assertEqual(['of-m0'], self.dead(
                OWN, claimed('m0'), migrations=[
                    home(status, is_evacuation=True), home('error', 'm0')]))


class HiddenTest(TableTestCase):
    """Tests of a record here that another cell's record replaces."""

    def dead(self, *assignments, **kwargs):
        return super().dead(*assignments, hidden=True, **kwargs)

    def test_source_lives_until_the_other_cell_has_decided(self):
        for status in ON_SOURCE:
            for task in (task_states.RESIZE_MIGRATED, None):
                self.assertEqual([], self.dead(
                    OWN, migrations=[away(status)], task=task))

    def test_source_is_dead_after_a_confirmation_that_failed(self):
        for task in (task_states.RESIZE_MIGRATED, None):
            for domain in ('inactive', 'absent'):
                self.assertEqual(['of-m0', 'own'], self.dead(
                    OWN, claimed('m0'), task=task, domain=domain,
                    migrations=[away('error'), home('error', 'm0')]))

    def test_destination_lives_while_the_move_is_reverted(self):
        self.assertEqual([], self.dead(
            claimed(), migrations=[home('reverting')],
            task=task_states.RESIZE_REVERTING))

    def test_destination_is_dead_after_a_revert_that_failed(self):
        self.assertEqual(['of-m1'], self.dead(
            claimed(), migrations=[home('error')]))

    def test_destination_lives_until_the_guest_has_come(self):
        for status in ON_SOURCE:
            for task in MOVING:
                self.assertEqual([], self.dead(
                    claimed(), host=ELSEWHERE, migrations=[home(status)],
                    task=task))
        self.assertEqual(['of-m1'], self.dead(
            claimed(), host=ELSEWHERE, migrations=[home('error')]))


class OneHostTest(TableTestCase):

    def test_undecided_resize_keeps_both(self):
        for status in ('finished', 'confirming', 'reverting'):
            for flavor in (1, 2):
                self.assertEqual([], self.dead(
                    OWN, claimed(), migrations=[on_host(status)],
                    flavor=flavor))

    def test_resize_on_its_way_keeps_both_while_it_moves(self):
        for status in ON_SOURCE:
            for task in MOVING:
                for flavor in (1, 2):
                    self.assertEqual([], self.dead(
                        OWN, claimed(), migrations=[on_host(status)],
                        flavor=flavor, task=task))

    def test_flavor_decides_after_a_resize_that_stopped(self):
        # Nova resets the task when nova-compute starts, not the status.
        for status in ON_SOURCE:
            for task in STOPPED:
                for flavor, dead in ((1, 'of-m1'), (2, 'own')):
                    self.assertEqual([dead], self.dead(
                        OWN, claimed(), migrations=[on_host(status)],
                        flavor=flavor, task=task))

    def test_flavor_decides_after_a_failed_resize(self):
        for flavor, dead in ((1, 'of-m1'), (2, 'own')):
            self.assertEqual([dead], self.dead(
                OWN, claimed(), migrations=[on_host('error')], flavor=flavor))

    def test_failed_resize_of_an_instance_without_gpus_leaves_nothing(self):
        self.assertEqual(['of-m1'], self.dead(
            claimed(), migrations=[on_host('error')], flavor=1))

    def test_claim_of_a_build_after_the_resize_lives(self):
        for status in ('error', 'confirmed'):
            self.assertEqual(['of-m1'], self.dead(
                make.assignment(uuid='build', host_generation=8),
                claimed(host_generation=7), migrations=[on_host(status)],
                flavor=2))

    def test_decided_resize_leaves_one(self):
        self.assertEqual(['own'], self.dead(
            OWN, claimed(), migrations=[on_host('confirmed')], flavor=2))
        self.assertEqual(['of-m1'], self.dead(
            OWN, claimed(), migrations=[on_host('reverted')], flavor=1))


class DescribeTest(base.BaseTestCase):

    def test_hidden_record_is_named(self):
        for hidden in (False, True):
            described = assignment_use.describe(
                'i1', assignment_use.Location(host=HERE, is_hidden=hidden),
                HERE, assignment_use.Domain.ABSENT)
            self.assertIs(hidden, 'hidden' in described)


class ElsewhereTest(TableTestCase):

    def dead(self, *assignments, **kwargs):
        return super().dead(*assignments, host=ELSEWHERE, **kwargs)

    def test_claim_of_a_migration_to_here_lives_while_it_moves(self):
        for state in ('provisioning', 'assigned'):
            for status in ON_SOURCE:
                for task in MOVING:
                    self.assertEqual([], self.dead(
                        claimed(state=state), migrations=[home(status)],
                        task=task))

    def test_claim_of_a_migration_that_stopped_is_dead(self):
        for status in ON_SOURCE:
            for task in (None, task_states.REBOOTING, task_states.DELETING):
                self.assertEqual(['of-m1'], self.dead(
                    claimed(), migrations=[home(status)], task=task))

    def test_claim_of_an_unknown_migration_lives_while_it_moves(self):
        self.assertEqual([], self.dead(
            claimed(), task=task_states.RESIZE_PREP))
        self.assertEqual(['of-m1'], self.dead(claimed()))

    def test_claim_of_an_undecided_migration_to_here_lives(self):
        for status in ('finished', 'reverting', 'confirming'):
            self.assertEqual([], self.dead(
                claimed(), migrations=[home(status)]))

    def test_claim_of_a_migration_that_is_over_is_dead(self):
        for status in OVER:
            self.assertEqual(['of-m1'], self.dead(
                claimed(), migrations=[home(status)]))

    def test_source_lives_until_it_is_decided(self):
        for status in ('post-migrating', 'finished', 'confirming',
                       'reverting'):
            for left in (OWN, claimed('m0')):
                self.assertEqual([], self.dead(
                    left, migrations=[away(status), home('error', 'm0')]))

    def test_no_assignment_lives_while_nova_deletes_the_instance(self):
        for migration, assignment in (
                (away('post-migrating'), OWN), (away('finished'), OWN),
                (away('reverting'), OWN), (home('migrating'), claimed())):
            for deleting, dead in ((True, [assignment.uuid]), (False, [])):
                self.assertEqual(dead, self.dead(
                    assignment, migrations=[migration], deleting=deleting,
                    task=task_states.RESIZE_MIGRATING))

    def test_source_is_dead_once_it_is_decided(self):
        for status in OVER:
            for domain in ('inactive', 'absent'):
                self.assertEqual(['own'], self.dead(
                    OWN, migrations=[away(status)], domain=domain))

    def test_source_lives_until_a_revert_has_brought_it_back(self):
        # Nova ends the migration on the destination, then the instance's
        # host changes on the source.
        self.assertEqual([], self.dead(
            OWN, migrations=[away('reverted')],
            task=task_states.RESIZE_REVERTING))

    def test_source_without_domain_is_dead_while_nova_confirms(self):
        self.assertEqual(['own'], self.dead(
            OWN, migrations=[away('confirming')], domain='absent'))

    def test_source_stays_dead_while_it_moves_home(self):
        self.assertEqual(['own'], self.dead(
            OWN, claimed('m2'), task=task_states.RESIZE_PREP,
            migrations=[home('pre-migrating', 'm2'), away('confirmed')]))

    def test_claim_of_before_the_instance_left_is_dead(self):
        self.assertEqual(['of-m1'], self.dead(claimed(), migrations=[
            away('confirmed', 'm2'), home('finished')]))
        self.assertEqual([], self.dead(claimed(), migrations=[
            away('finished', 'm2'), home('finished')]))

    def test_evacuated_source_without_domain_is_dead(self):
        done = away('done', is_evacuation=True)
        self.assertEqual(['own'], self.dead(
            OWN, migrations=[done], domain='absent'))
        # Nova destroys it when nova-compute starts.
        self.assertEqual([], self.dead(OWN, migrations=[done]))
        self.assertEqual(['own'], self.dead(
            OWN, migrations=[away('completed', is_evacuation=True)]))

    def test_evacuation_to_here_keeps_its_build(self):
        self.assertEqual([], self.dead(
            OWN, migrations=[home('pre-migrating', is_evacuation=True)]))
        for status in ('failed', 'done'):
            self.assertEqual(['own'], self.dead(
                OWN, migrations=[home(status, is_evacuation=True)]))

    def test_instance_that_nothing_moves_uses_nothing_here(self):
        self.assertEqual(['own'], self.dead(OWN))
