# SPDX-License-Identifier: Apache-2.0
"""Tests of migrations on both hosts."""

import dataclasses
import functools
import types

import fixtures
import oslo_messaging
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import history
from gpgpu_plugin.virt import assignment_selector
from gpgpu_plugin.virt import exception as virt_exception
from gpgpu_plugin.virt import numa
from tests.unit.compute import make
from tests.unit.virt import base


class MigrationCase(base.DriverTestCase):
    """Base class of tests of a resize on one host: both roles are there."""

    def setUp(self):
        super().setUp()
        self.instance = self.spawn(2)
        self.instance.migration_context = types.SimpleNamespace(
            migration_id=1, new_numa_topology=None, new_pci_requests=None)
        self.migration = types.SimpleNamespace(
            uuid='m1', source_compute='h1', dest_compute='h1', id=1,
            created_at=1, status='confirming', migration_type='resize',
            new_instance_type_id=2)
        self.useFixture(fixtures.MockPatchObject(
            objects.MigrationList, 'get_by_filters',
            return_value=[self.migration]))

    def begin(self, gpus=3, image=None):
        """Begin a resize: the destination's call, then the source's.

        :returns: what ends the destination's claim
        """
        flavor = self.make_instance(gpus).flavor
        end = self.driver._gpu_claim_move(
            None, self.instance, flavor, self.migration, {
                provider: {'resources': resources} for provider, resources
                in self.request(gpus).allocated.items()}, image, 'h1')
        self.driver.migrate_disk_and_power_off(
            None, self.instance, 'ip', flavor, None)
        return end

    def of_destination(self):
        return [assignment.state for assignment in
                self.api.instance_assignments(context.admin(), 'i1')
                if assignment_selector.destination_of(
                        self.migration)(assignment)]

    def finish(self):
        self.driver.finish_migration(
            None, self.migration, self.instance, None, None, None, False,
            {self.provider: {'resources': {}}})

    def revert(self):
        self.driver.finish_revert_migration(
            None, self.instance, None, self.migration)


class MigrationTest(MigrationCase):

    def test_destination_claims_for_itself(self):
        self.begin(3)
        self.assertEqual(['provisioning'] * 3, self.of_destination())
        self.assertEqual(
            5, len(self.tracker.assignments.of_instance('i1')))

    def test_claim_of_move_that_does_not_come_is_ended_untouched(self):
        end = self.begin(3)
        end()
        self.assertEqual([], self.of_destination())
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        self.assertEqual(
            2, len(self.tracker.assignments.of_instance('i1')))

    def leave(self, count, migration_uuid='m0'):
        """Leave devices of an earlier move here and report them as unused."""
        left = self.tracker.session.call(self.api.claim, dataclasses.replace(
            self.request(count), role=claim_obj.ClaimRole.DESTINATION,
            migration_uuid=migration_uuid)).assignments
        self.tracker.assignments.add('i1', left)
        uuids = [assignment.uuid for assignment in left]
        find = self.useFixture(fixtures.MockPatchObject(
            self.tracker, 'find_orphans', return_value=set(uuids))).mock
        return uuids, find

    def test_claim_ends_what_an_earlier_move_left_here(self):
        left, find = self.leave(4)
        self.begin(2)
        self.assertEqual(
            assignment_use.Operation(assignment_use.OperationKind.PREPARE,
                                     'm1'),
            find.call_args.kwargs['operation'])
        book = self.tracker.assignments.of_instance('i1')
        self.assertEqual(4, len(book))
        self.assertEqual([], [assignment.uuid for assignment in book
                              if assignment.uuid in left])
        self.assertEqual({'assigned': 2, 'provisioning': 2, 'dirty': 4},
                         self.states())

    def test_denied_claim_ends_what_an_earlier_move_left_here(self):
        self.leave(4)
        self.assertRaises(exception.ClaimDenied, self.begin, 6)
        self.tracker.run_once()
        self.begin(6)
        self.assertEqual(['provisioning'] * 6, self.of_destination())

    def test_move_whose_past_is_unknown_ends_nothing(self):
        _, find = self.leave(4)
        find.side_effect = RuntimeError('Nova does not answer')
        self.begin(2)
        self.assertEqual(
            8, len(self.tracker.assignments.of_instance('i1')))

    def test_claim_that_the_book_cannot_keep_is_ended(self):
        self.useFixture(fixtures.MockPatchObject(
            self.tracker.assignments, 'add', side_effect=OSError('full')))
        self.assertRaises(OSError, self.begin, 3)
        self.assertEqual([], self.of_destination())

    def test_denied_claim_changes_nothing(self):
        exc = self.assertRaises(exception.ClaimDenied, self.begin, 7)
        self.assertEqual('not_enough_available', exc.reason)
        self.assertEqual([], self.of_destination())
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())

    def test_guest_that_cannot_be_stopped_ends_the_claim(self):
        self.useFixture(fixtures.MockPatch(
            'nova.virt.fake.FakeDriver.migrate_disk_and_power_off',
            side_effect=RuntimeError('no space')))
        self.assertRaises(RuntimeError, self.begin, 3)
        self.assertEqual([], self.of_destination())
        self.assertEqual(
            2, len(self.tracker.assignments.of_instance('i1')))

    def test_error_of_nova_is_raised_though_its_database_is_away(self):
        self.useFixture(fixtures.MockPatch(
            'nova.virt.fake.FakeDriver.migrate_disk_and_power_off',
            side_effect=RuntimeError('no space')))
        objects.MigrationList.get_by_filters.side_effect = LookupError(
            'no database')
        self.assertRaises(RuntimeError, self.begin, 3)

    def test_flavor_without_gpus_claims_nothing(self):
        self.driver._gpu_claim_move(
            None, self.instance, self.make_instance(0).flavor, self.migration,
            {}, None, 'h1')()
        self.assertEqual([], self.of_destination())

    def begin_suffixed(self, allocated=True):
        flavor = self.make_instance(0).flavor
        flavor.extra_specs['resources1:CUSTOM_GPU_H100'] = '1'
        return self.driver._gpu_claim_move(
            None, self.instance, flavor, self.migration,
            {self.provider: {'resources': {'CUSTOM_GPU_H100': 1}}}
            if allocated else {}, None, 'h1')

    def test_allocation_that_the_flavor_does_not_request_is_denied(self):
        self.client.allocations['i1'] = {
            self.provider: {'resources': {'CUSTOM_GPU_H100': 1}}}
        exc = self.assertRaises(exception.ClaimDenied, self.begin_suffixed)
        self.assertEqual('allocation_not_requested', exc.reason)

    def test_suffixed_group_of_others_claims_nothing(self):
        self.client.allocations['i1'] = {}
        self.begin_suffixed(allocated=False)
        self.assertEqual([], self.of_destination())

    def test_destination_gets_what_was_claimed_for_it(self):
        self.begin(3)
        self.finish()
        self.assertEqual(['assigned'] * 3, self.of_destination())
        self.assertEqual(
            5, len(self.tracker.assignments.of_instance('i1')))

    def test_destination_without_a_claim_makes_no_guest(self):
        self.useFixture(fixtures.MockPatchObject(
            leftovers, 'location',
            return_value=assignment_use.Location(host='h1')))
        self.assertRaises(virt_exception.GPUOperationFailed, self.finish)

    def test_revert_prepares_the_devices_of_the_source(self):
        self.begin(3)
        prepare = self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'prepare'))
        self.revert()
        self.assertEqual(2, prepare.mock.call_count)

    def test_live_migration_of_a_guest_with_gpus_is_refused(self):
        self.assertRaises(
            nova_exception.MigrationPreCheckError,
            self.driver.check_can_live_migrate_source, None, self.instance,
            None)
        self.assertEqual('x', self.driver.check_can_live_migrate_source(
            None, self.make_instance(0, uuid='i2'), 'x'))

    def test_unclaim_never_raises(self):
        self.begin(3)
        self.migration.dest_compute = 'h2'
        self.useFixture(fixtures.MockPatchObject(
            self.api, 'instance_assignments',
            side_effect=oslo_messaging.RemoteError()))
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.virt.migration'))
        self.driver._gpu_unclaim(self.instance)
        self.assertIn('the destination releases it', log.output)

    def test_unclaim_leaves_other_hosts_and_roles_as_they_are(self):
        self.begin(3)
        for uuid, host in (('m1', 'h2'), ('m2', 'h1')):
            self.tracker.release_instance(
                'i1', assignment_selector.destination_of(
                    types.SimpleNamespace(uuid=uuid)),
                host=host)
        self.assertEqual({'assigned': 2, 'provisioning': 3, 'available': 3},
                         self.states())

    def test_policy_of_the_image_is_obeyed(self):
        claim = self.useFixture(fixtures.MockPatchObject(
            self.api, 'claim', wraps=self.api.claim)).mock
        image = {'properties': {'hw_pci_numa_affinity_policy': 'required'}}
        for given, policy in (
                (image, 'required'), (None, None),
                (objects.ImageMeta.from_dict(image), 'required')):
            end = self.begin(1, given)
            self.assertEqual(
                policy, claim.call_args.args[2].request.pci_numa_policy)
            end()

    def test_claim_whose_guest_cannot_follow_is_ended(self):
        self.useFixture(fixtures.MockPatchObject(
            numa.MoveFit, 'follow', side_effect=exception.ClaimDenied(
                instance='i1', host='h1', reason='numa_policy_required',
                detail='x')))
        self.assertRaises(exception.ClaimDenied, self.begin, 1)
        self.assertEqual([], self.of_destination())

    def test_claim_is_for_the_numa_nodes_of_the_new_topology(self):
        self.instance.numa_topology = types.SimpleNamespace(
            cells=[types.SimpleNamespace(id=0)])
        self.instance.migration_context.new_numa_topology = (
            types.SimpleNamespace(
                cells=[types.SimpleNamespace(id=1)] * 2))
        claim = self.useFixture(fixtures.MockPatchObject(
            self.api, 'claim', wraps=self.api.claim)).mock
        self.begin(1)
        request = claim.call_args.args[2]
        self.assertEqual(
            ((1,), 'h1', claim_obj.ClaimRole.DESTINATION, 'm1'),
            (request.numa_nodes, request.host, request.role,
             request.migration_uuid))

    def during(self, method):
        """Watch a method of Nova's driver.

        :returns: roles whose devices the guest gets, and states of the
            destination's claim, while it runs
        """
        seen = []

        def watch(*args, **kwargs):
            selector = self.driver._gpu_at_work.selectors['i1']
            seen.extend([
                {str(assignment.role) for assignment
                 in self.tracker.assignments.of_instance('i1')
                 if selector(assignment)}, set(self.of_destination())])
        self.useFixture(fixtures.MockPatch(
            f'nova.virt.fake.FakeDriver.{method}', watch))
        return seen

    def test_guest_of_the_destination_is_made_of_active_devices(self):
        self.begin(3)
        seen = self.during('finish_migration')
        self.finish()
        self.assertEqual([{'destination'}, {'assigned'}], seen)

    def test_guest_of_a_revert_gets_the_devices_of_the_source(self):
        self.begin(3)
        self.finish()
        seen = self.during('finish_revert_migration')
        self.revert()
        self.assertEqual({'instance'}, seen[0])

    def test_devices_of_the_destination_are_ready_before_the_guest(self):
        self.begin(3)
        ready = []

        def watch(*args, **kwargs):
            bound = {function.address for function
                     in self.tracker.backend.scan().functions
                     if function.driver == 'vfio-pci'}
            ready.extend(
                assignment.address in bound for assignment
                in self.tracker.assignments.of_instance('i1'))
        self.useFixture(fixtures.MockPatch(
            'nova.virt.fake.FakeDriver.finish_migration', watch))
        self.finish()
        self.assertEqual([True] * 5, ready)

    def test_confirmation_names_the_devices_of_the_source_alone(self):
        source = make.uuids(self.tracker.assignments.of_instance('i1'))
        self.begin(3)
        self.finish()
        confirm = self.useFixture(fixtures.MockPatchObject(
            self.tracker, 'confirm_migration')).mock
        self.confirm()
        [(confirmation,)] = [call.args for call in confirm.call_args_list]
        self.assertEqual(source, set(confirmation.source_assignments))

    def test_claim_is_active_and_placement_knows_before_the_guest(self):
        self.begin(3)
        calls = []
        self.useFixture(fixtures.MockPatch(
            'nova.virt.fake.FakeDriver.finish_migration',
            lambda *args, **kwargs: calls.append('guest')))
        self.useFixture(fixtures.MockPatchObject(
            self.tracker.inventory, 'push', lambda: calls.append('push')))
        self.finish()
        self.assertEqual(['push', 'guest'], calls)

    def confirm(self):
        self.driver.confirm_migration(
            None, self.migration, self.instance, None)

    def test_confirmed_instance_has_the_destination_s_devices_alone(self):
        self.begin(3)
        self.finish()
        self.confirm()
        self.assertEqual(
            [('instance', None)] * 3,
            [(str(assignment.role), assignment.migration_uuid)
             for assignment in self.api.instance_assignments(
                context.admin(), 'i1')])

    def test_source_without_devices_confirms_gpus_of_the_destination(self):
        self.tracker.release_instance('i1')
        for gpus, confirmed in ((1, True), (0, False)):
            confirm = self.useFixture(fixtures.MockPatchObject(
                self.tracker, 'confirm_migration')).mock
            self.instance.flavor = self.make_instance(gpus).flavor
            self.confirm()
            self.assertIs(confirmed, confirm.called)

    def test_confirmation_that_nova_fails_reconciles_later(self):
        self.useFixture(fixtures.MockPatch(
            'nova.virt.fake.FakeDriver.confirm_migration',
            side_effect=RuntimeError('x')))
        confirm = self.useFixture(fixtures.MockPatchObject(
            self.tracker, 'confirm_migration')).mock
        self.assertRaises(RuntimeError, self.confirm)
        self.assertFalse(confirm.called)
        # Nova removes the migration's allocation all the same.
        self.assertTrue(self.tracker.allocation_removal)


class LateActivationTest(MigrationCase):
    """The guest arrives while no conductor answers, and is created later."""

    def setUp(self):
        super().setUp()
        self.driver.destroy(None, self.make_instance(
            2, task_state=task_states.DELETING), None)
        self.migration.source_compute = self.instance.host = 'h2'
        self.begin(2)
        with self.away():
            self.assertRaises(
                virt_exception.GPUOperationFailed, self.finish)
        # As Nova leaves it.
        self.instance.host = 'h1'
        self.useFixture(fixtures.MockPatchObject(
            leftovers, 'location', return_value=assignment_use.Location(
                host='h1', flavor=1, migrations=(assignment_use.Migration(
                    uuid='m1', status='error', source='h2', dest='h1',
                    new_flavor=1),))))
        for method in ('reboot', 'power_on', 'spawn'):
            self.useFixture(fixtures.MockPatch(
                f'nova.virt.fake.FakeDriver.{method}',
                lambda *args, **kwargs: self.seen.append(self.activated())))
        self.seen = []

    def away(self):
        return fixtures.MockPatchObject(
            self.api, 'activate', side_effect=exception.ConductorUnavailable(
                method='activate', timeout=1))

    def activated(self):
        """Return how many are activated in the conductor and in the book."""
        return tuple(
            [assignment.state for assignment in assigned].count('assigned')
            for assigned in (
                self.api.instance_assignments(context.admin(), 'i1'),
                self.tracker.assignments.of_instance('i1')))

    def rebuild(self):
        self.instance.task_state = task_states.REBUILD_SPAWNING
        self.driver.spawn(None, self.instance, None, [], None, {})

    def reboot(self):
        self.driver.reboot(None, self.instance, None, 'HARD')

    def start(self):
        self.driver.power_on(None, self.instance, None)

    def test_claim_is_activated_before_the_guest_is_started(self):
        for start in (self.reboot, self.start):
            start()
        self.assertEqual([(2, 2)] * 2, self.seen)

    def test_rebuild_in_place_activates_the_claim(self):
        self.rebuild()
        self.assertEqual((2, 2), self.activated())

    def test_usage_begins_with_a_hard_reboot(self):
        self.reboot()
        self.assert_used()

    def test_usage_begins_with_a_rebuild(self):
        self.rebuild()
        self.assert_used()

    def test_usage_begins_with_a_start(self):
        self.start()
        self.assert_used()

    def assert_used(self):
        self.tracker.arrived_with = lambda instance_uuid: 'm1'
        self.tracker.run_once()
        self.assertEqual((2, 2), self.activated())
        self.assertEqual({(claim_obj.ClaimRole.INSTANCE, None)}, {
            (assignment.role, assignment.migration_uuid) for assignment
            in self.tracker.assignments.of_instance('i1')})
        self.assertEqual(2, len([
            usage for usage in self.api.usage_list(
                context.admin(), history.UsageQuery())
            if usage.ended_at is None]))

    def test_guest_is_started_though_no_conductor_answers(self):
        reconcile = self.useFixture(fixtures.MockPatchObject(
            self.tracker, 'request_reconcile')).mock
        with self.away(), fixtures.MockPatchObject(
                self.api, 'confirm_migration',
                side_effect=exception.ConductorUnavailable(
                    method='confirm_migration', timeout=1)):
            self.rebuild()
            self.reboot()
        self.assertEqual([(0, 0)] * 2, self.seen)
        self.assertTrue(reconcile.called)

    def test_start_that_lacks_a_device_activates_nothing(self):
        [assignment, _] = self.tracker.assignments.of_instance('i1')
        self.tracker.backend.kernel.write(
            f'bus/pci/devices/{assignment.address}/remove', '1')
        self.assertRaises(virt_exception.GPUOperationFailed, self.reboot)
        self.assertEqual((0, 0), self.activated())


class DeleteMeetsMigrationTest(base.MeetingCase, MigrationCase):

    def freed(self):
        self.tracker.run_once()
        return self.states() == {'available': 8}

    def test_delete_waits_for_the_guest_of_the_destination(self):
        self.begin(3)
        self.calls.clear()
        self.assertTrue(self.delete_during('finish_migration', self.finish))
        self.assertEqual(['finish_migration', 'destroy'], self.calls)
        self.assertTrue(self.freed())

    def test_guest_of_the_destination_is_not_made_after_a_delete(self):
        self.begin(3)
        self.calls.clear()
        [error] = self.call_during_delete(self.finish)
        self.assertIsInstance(error, virt_exception.GPUAssignmentsEnded)
        self.assertEqual(['destroy'], self.calls)
        self.assertTrue(self.freed())

    def test_delete_waits_for_the_guest_of_a_revert(self):
        self.begin(3)
        self.calls.clear()
        self.assertTrue(
            self.delete_during('finish_revert_migration', self.revert))
        self.assertEqual(['finish_revert_migration', 'destroy'], self.calls)
        self.assertTrue(self.freed())

    def test_guest_of_a_revert_is_not_made_after_a_delete(self):
        self.begin(3)
        self.calls.clear()
        [error] = self.call_during_delete(self.revert)
        self.assertIsInstance(error, virt_exception.GPUAssignmentsEnded)
        self.assertEqual(['destroy'], self.calls)

    def test_delete_ends_a_copy_of_disks_at_once(self):
        self.assertFalse(self.delete_during(
            'migrate_disk_and_power_off', functools.partial(self.begin, 3)))
        self.assertEqual(
            ['destroy', 'migrate_disk_and_power_off'], self.calls)
        self.assertTrue(self.freed())

    def test_confirmation_after_a_delete_is_not_refused(self):
        self.begin(3)
        self.assertEqual([], self.call_during_delete(
            lambda: self.driver.confirm_migration(
                None, self.migration, self.instance, None)))
