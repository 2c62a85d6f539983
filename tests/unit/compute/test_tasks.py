# SPDX-License-Identifier: Apache-2.0
"""Tests of the tasks of an iteration, alone and in the tracker."""

import contextlib
import dataclasses
import threading
import time
from unittest import mock

import fixtures
import oslo_messaging
from oslotest import base as test_base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.compute import host as host_mod
from gpgpu_plugin.compute import tasks
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_client
from tests.fixtures import hosts
from tests.fixtures import patience
from tests.unit.compute import base
from tests.unit.compute import make

GPU = pci.PCIFunction(id='/devices/x', address='0000:3b:00.0', vendor='10de',
                      device='2330')
CAPACITY = vgpu.DriverCapacity(available={'X-4Q': 1})


class TasksTestCase(test_base.BaseTestCase):
    """Base class: conductor, hardware and Placement are mocks."""

    def setUp(self):
        super().setUp()
        folder = self.useFixture(fixtures.TempDir()).path
        self.book = assignment_file.AssignmentFile(f'{folder}/h1.json')
        self.api = mock.create_autospec(
            conductor_client.ConductorAPI, instance=True)
        self.backend = mock.create_autospec(host_base.ComputeHost,
                                            instance=True)
        self.client = base.FakeReportClient()
        self.host = host_mod.HostParts(
            name='h1', backend=self.backend, api=self.api,
            client=self.client, assignments=self.book,
            session=make.session(self.api, self.book))


class ReportTest(TasksTestCase):

    def setUp(self):
        super().setUp()
        self.scan = scanner.Scan(
            functions=(GPU,), problems=('x cannot be read',),
            driver_capacities={GPU.id: CAPACITY})
        self.backend.scan.return_value = self.scan
        self.backend.discover.return_value = self.scan.functions

    def report(self, owners=None):
        outcome = tasks.report(
            self.host, tasks.NodeUUIDs(name='n1', uuid=make.NODE),
            lambda scan: owners or {})
        [((_, _, report), _)] = self.api.report.call_args_list
        return outcome, report

    def test_scan_is_reported_with_capacities_and_problems(self):
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.compute.tasks'))
        outcome, report = self.report()
        self.assertIs(self.api.report.return_value, outcome.inventory)
        self.assertEqual(
            ('h1', 'n1', make.NODE, (GPU,), {GPU.id: CAPACITY},
             ('x cannot be read',)),
            (report.host, report.node, report.node_uuid, report.functions,
             report.driver_capacities, report.problems))
        self.assertIn('x cannot be read', log.output)

    def test_function_of_somebody_else_is_reported_with_its_owner(self):
        _, report = self.report({GPU.address: 'Cyborg'})
        self.assertEqual(['Cyborg'], [
            function.owner for function in report.functions])

    def owner_of_open_gpu(self, **facts):
        """Return the reported owner of a GPU that a process has open."""
        self.api.reset_mock()
        self.backend.scan.return_value = dataclasses.replace(
            self.scan, functions=(dataclasses.replace(GPU, **{
                'used_by': device_rules.DeviceUser.VFIO, **facts}),))
        self.backend.discover.return_value = (
            self.backend.scan.return_value.functions)
        outcome, report = self.report()
        [function] = report.functions
        self.assertIs(function.owner is not None, outcome.in_use)
        return function.owner

    def test_open_gpu_without_an_assignment_has_an_owner(self):
        self.assertIn('a process that has it open', self.owner_of_open_gpu())
        self.assertIsNone(self.owner_of_open_gpu(used_by=None))

    def test_open_gpu_that_is_assigned_has_no_owner(self):
        self.book.add('i1', [make.assignment(stable_id=GPU.id)])
        self.assertIsNone(self.owner_of_open_gpu())

    def test_gpu_assigned_during_the_scan_has_no_owner(self):
        def scan():
            self.book.add('i1', [make.assignment(stable_id=GPU.id)])
            return mock.DEFAULT
        self.backend.scan.side_effect = scan
        self.assertIsNone(self.owner_of_open_gpu())

    def test_gpu_released_during_the_scan_has_no_owner(self):
        def scan():
            self.book.remove('i1', ['a1'])
            return mock.DEFAULT
        self.book.add('i1', [make.assignment(stable_id=GPU.id)])
        self.backend.scan.side_effect = scan
        self.assertIsNone(self.owner_of_open_gpu())

    def test_gpu_whose_companion_is_open_has_an_owner(self):
        audio = dataclasses.replace(
            GPU, id='/devices/audio', address='0000:3b:00.1',
            part_of=GPU.address, used_by=device_rules.DeviceUser.VFIO)
        self.scan = dataclasses.replace(self.scan, functions=(
            dataclasses.replace(GPU, companions=(audio.address,)), audio))
        self.backend.scan.return_value = self.scan
        self.backend.discover.return_value = self.scan.functions
        _, report = self.report()
        self.assertEqual([True, False], [
            function.owner is not None for function in report.functions])

    def test_vfs_are_made_but_not_on_assigned_gpus(self):
        self.book.add('i1', [make.assignment(stable_id=GPU.id)])
        self.report()
        self.backend.make_vfs.assert_called_once_with({GPU.id}, mock.ANY)

    def test_conductor_is_asked_which_gpus_must_not_get_vfs(self):
        self.report()
        [_, refused] = self.backend.make_vfs.call_args.args
        self.assertIs(self.api.vfs_refused.return_value, refused([GPU.id]))
        self.api.vfs_refused.assert_called_once_with(
            mock.ANY, self.host.session.origin(), [GPU.id])

    def test_vfs_are_not_made_on_dirty_gpus(self):
        assignment = make.assignment(stable_id=GPU.id)
        self.book.add('i1', [assignment])
        self.book.remove('i1', [assignment.uuid])
        self.assertEqual([], self.book.all())
        self.report()
        self.backend.make_vfs.assert_called_once_with({GPU.id}, mock.ANY)

    def test_assigned_device_at_another_address_has_moved(self):
        for address, moved in ((GPU.address, False), ('0000:3c:00.0', True)):
            self.api.reset_mock()
            self.book.add('i1', [make.assignment(
                stable_id=GPU.id, address=address)])
            outcome, _ = self.report()
            self.assertIs(moved, outcome.moved)

    def test_mdev_moves_with_its_gpu_and_a_missing_device_does_not(self):
        for stable_id, moved in ((f'{GPU.id}/mdev0', True),
                                 ('/devices/y', False)):
            self.api.reset_mock()
            self.book.add('i1', [make.assignment(
                stable_id=stable_id, address='0000:3c:00.0')])
            outcome, _ = self.report()
            self.assertIs(moved, outcome.moved)


class ReleaseTest(TasksTestCase):

    def setUp(self):
        super().setUp()
        self.accepted = []
        self.confirmation = claim_obj.MigrationConfirmation(
            instance_uuid='i1', migration_uuid='m1')
        self.book.add_pending(['a1'])
        self.book.add_confirmation(self.confirmation)
        self.api.release.return_value = 'after the release'
        self.api.confirm_migration.return_value = ['of h1', 'of h2']

    def release(self):
        return tasks.release(self.host, self.accepted.append)

    def test_every_answer_is_accepted_and_nothing_stays_pending(self):
        self.assertTrue(self.release())
        self.assertEqual(['after the release', 'of h1', 'of h2'],
                         self.accepted)
        self.assertEqual(([], []), (
            self.book.pending(), self.book.confirmations()))

    def test_what_was_not_sent_stays_pending(self):
        self.api.confirm_migration.side_effect = (
            exception.ConductorUnavailable(method='x', timeout=1))
        self.assertRaises(exception.ConductorUnavailable, self.release)
        self.assertEqual(([], [self.confirmation]), (
            self.book.pending(), self.book.confirmations()))

    def test_confirmation_that_is_refused_does_not_stop_the_others(self):
        other = dataclasses.replace(self.confirmation, migration_uuid='m2')
        self.book.add_confirmation(other)
        self.api.confirm_migration.side_effect = [
            exception.NotOwner(change='to confirm migration m1', host='h1'),
            ['of h1']]
        self.assertFalse(self.release())
        self.assertEqual(['after the release', 'of h1'], self.accepted)
        self.assertEqual([], self.book.confirmations())

    def test_conductor_that_is_away_keeps_releases_pending(self):
        self.api.release.side_effect = exception.ConductorUnavailable(
            method='x', timeout=1)
        self.assertRaises(exception.ConductorUnavailable, self.release)
        self.assertEqual(['a1'], self.book.pending())

    def test_conductor_learns_how_long_releases_were_pending(self):
        later = time.time() + 3600
        self.useFixture(fixtures.MonkeyPatch('time.time', lambda: later))
        self.book.add_pending(['a2'])
        self.release()
        [call] = self.api.release.call_args_list
        self.assertEqual(['a1', 'a2'], call.args[2])
        self.assertEqual(0, call.args[3]['a2'])
        self.assertAlmostEqual(3600, call.args[3]['a1'], delta=60)

    def test_nothing_pending_makes_no_call(self):
        self.book.remove_pending(['a1'])
        self.book.remove_confirmation(self.confirmation)
        self.release()
        self.assertEqual([], self.api.mock_calls)


class ReconcileTaskTest(TasksTestCase):

    def setUp(self):
        super().setUp()
        self.builds = host_mod.Builds(lambda instance_uuid: None)

    def reconcile(self, *listed, builds=(), gone=(), meanwhile=None,
                  elsewhere=()):
        """Compare with a list.

        :param elsewhere: instances that Nova does not have here
        :param meanwhile: called while Nova is asked
        """
        self.api.host_assignments.return_value = listed

        def find_orphans(assignments):
            if meanwhile is not None:
                meanwhile()
            return {assignment.uuid for assignment in assignments
                    if assignment.instance_uuid in gone}
        with contextlib.ExitStack() as running:
            for instance_uuid in builds:
                running.enter_context(self.builds.running(instance_uuid))
            return tasks.reconcile(
                self.host, self.builds, find_orphans,
                lambda instance_uuid: instance_uuid not in elsewhere)

    def test_used_is_what_instances_have_that_are_here(self):
        """An evacuated one has a guest until Nova destroys it."""
        stays, orphan, evacuated, pending, built = listed = [
            make.assignment(uuid=f'a{number}', instance_uuid=f'i{number}')
            for number in range(1, 6)]
        self.book.add_pending([pending.uuid])
        done = self.reconcile(*listed, gone=[orphan.instance_uuid],
                              elsewhere=[evacuated.instance_uuid],
                              builds=[built.instance_uuid])
        self.assertEqual((stays,), done.used)

    def test_book_becomes_the_list_without_orphans(self):
        self.book.add('i9', [make.assignment(instance_uuid='i9')])
        stays = make.assignment()
        orphan = make.assignment(uuid='a2', instance_uuid='i2')
        done = self.reconcile(stays, orphan, gone=['i2'])
        self.assertEqual(((stays, orphan), (orphan,)),
                         (done.listed, done.orphans))
        self.assertEqual([stays], self.book.all())
        self.assertEqual(['a2'], self.book.pending())
        self.assertFalse(done.repeat)

    def check_stays(self, assigned, meanwhile):
        done = self.reconcile(assigned, gone=['i1'], meanwhile=meanwhile)
        self.assertEqual(((), True), (done.orphans, done.repeat))
        self.assertEqual(([assigned], []), (
            self.book.all(), self.book.pending()))

    def test_build_that_begins_while_nova_is_asked_keeps_its_devices(self):
        # Such as an unshelve, whose claim returns what an earlier stay left.
        assigned = make.assignment()
        self.book.add('i1', [assigned])
        running = contextlib.ExitStack()
        self.addCleanup(running.close)
        self.check_stays(assigned, lambda: running.enter_context(
            self.builds.running('i1')))

    def test_build_that_ends_while_nova_is_asked_keeps_its_devices(self):
        assigned = make.assignment()
        self.book.add('i1', [assigned])

        def build():
            with self.builds.running('i1'):
                pass
        self.check_stays(assigned, build)

    def test_claim_of_a_move_while_nova_is_asked_keeps_its_devices(self):
        assigned = make.assignment()
        self.book.add('i1', [assigned])
        self.check_stays(
            assigned, lambda: self.book.add('i1', [assigned]))

    def test_no_build_begins_while_a_comparison_ends_assignments(self):
        replace = self.book.replace
        began = threading.Event()

        def build():
            with self.builds.running('i1'):
                began.set()
        other = threading.Thread(target=build)

        def slow(*args):
            other.start()
            self.assertFalse(began.wait(0.05))
            replace(*args)
        with fixtures.MockPatchObject(self.book, 'replace', slow):
            self.reconcile(make.assignment(), gone=['i1'])
        other.join(patience.LONG)
        self.assertTrue(began.is_set())
        self.assertEqual(['a1'], self.book.pending())

    def test_comparison_that_ends_nothing_writes_nothing(self):
        self.book.add('i1', [make.assignment()])
        write = self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.versioned_file.write_versioned')).mock
        self.reconcile(make.assignment())
        self.assertFalse(write.called)

    def test_pending_release_is_no_orphan(self):
        self.book.add_pending(['a1'])
        done = self.reconcile(make.assignment(), gone=['i1'])
        self.assertEqual((), done.orphans)

    def test_build_keeps_its_own_claim(self):
        own = make.assignment(uuid='new')
        self.book.add('i1', [own])
        done = self.reconcile(make.assignment(uuid='old'),
                              builds=['i1', 'i2'], gone=['i1'])
        self.assertEqual((), done.orphans)
        self.assertEqual([own], self.book.all())

    def test_build_without_a_claim_has_no_entry(self):
        self.reconcile(make.assignment(), builds=['i1'])
        self.assertEqual([], self.book.all())

    def test_builds_are_read_after_the_list(self):
        running = contextlib.ExitStack()
        self.addCleanup(running.close)

        def listed(*args):
            running.enter_context(self.builds.running('i1'))
            return (make.assignment(),)
        self.api.host_assignments.side_effect = listed
        done = tasks.reconcile(
            self.host, self.builds, lambda assignments: self.fail())
        self.assertEqual((), done.orphans)

    def test_user_that_is_unknown_changes_nothing(self):
        before = make.assignment()
        self.book.add('i1', [before])
        self.api.host_assignments.return_value = (before,)

        def away(assignment):
            raise RuntimeError('Nova does not answer')
        self.assertRaises(RuntimeError, tasks.reconcile, self.host,
                          self.builds, away)
        self.assertEqual([before], self.book.all())


class CompareAllocationsTest(TasksTestCase):

    def setUp(self):
        super().setUp()
        self.asked = self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.compute.placement.allocations',
            return_value={'provider-H100': {}})).mock
        self.inventory = make.host_inventory(make.group(), make.group('T4'))

    def compare(self, inventory, *listed):
        return tasks.compare_allocations(
            self.host, inventory, listed, listed[:1])

    def test_groups_with_assigned_devices_alone_are_asked_about(self):
        self.assertIs(self.api.compare_allocations.return_value, self.compare(
            self.inventory, make.assignment(), make.assignment(uuid='a2')))
        self.assertEqual(['provider-H100'], self.asked.call_args.args[2])
        self.assertEqual(
            (1, {'provider-H100': {}}, ['a1', 'a2'], ['a1']),
            self.api.compare_allocations.call_args.args[2:])

    def test_host_without_assignments_or_inventory_asks_nobody(self):
        self.assertIsNone(self.compare(self.inventory))
        self.assertIsNone(self.compare(None, make.assignment()))
        self.assertFalse(self.asked.called)
        self.assertEqual([], self.api.mock_calls)


class AllocationsTest(base.ComputeTestCase):
    """Tests of an allocation that Nova removed from assigned devices."""

    def compare(self):
        self.tracker.request_reconcile()
        self.tracker.run_once()

    def test_device_without_an_allocation_is_reserved(self):
        self.boot(2, 'i1')
        self.boot(3, 'i2')
        self.compare()
        self.assertEqual((8, 0), self.placement())
        del self.client.allocations['i1']
        self.compare()
        self.assertEqual((8, 2), self.placement())
        # Found again, as after a heal.
        self.client.allocations['i1'] = {
            self.provider: {'CUSTOM_GPU_H100': 2}}
        self.compare()
        self.assertEqual((8, 0), self.placement())

    def test_migration_has_the_allocation_of_the_source(self):
        self.boot(2, 'i1')
        self.client.allocations['m1'] = self.client.allocations.pop('i1')
        self.compare()
        self.assertEqual((8, 0), self.placement())
        # Of it half is left.
        self.client.allocations['m1'][self.provider]['CUSTOM_GPU_H100'] = 1
        self.compare()
        self.assertEqual((8, 1), self.placement())

    def test_compared_when_nova_is_done(self):
        self.boot(2, 'i1')
        self.tracker.request_reconcile('i1')
        self.tracker.run_once()
        self.tracker.inventory.accept(
            self.api.host_inventory(context.admin(), 'h1')
        )
        self.assertEqual((8, 0), self.placement())
        del self.client.allocations['i1']
        self.assertIsNone(self.tracker.run_once())
        self.assertEqual((8, 2), self.placement())

    def test_host_without_assignments_asks_nobody(self):
        self.client.get_allocations_for_resource_provider = (
            lambda *args: self.fail('asked'))
        self.compare()

    def test_provider_that_placement_does_not_have(self):
        self.boot(2, 'i1')
        self.client.tree.remove(self.provider)
        self.compare()
        self.update_tree()
        self.assertEqual((8, 0), self.placement())

    def test_comparison_of_a_host_that_never_reported_is_refused(self):
        self.assertRaises(
            exception.NotFound, self.api.compare_allocations,
            context.admin(), hosts.origin('h9', 'n9'), 1, {}, [])

    def test_claim_that_was_granted_after_placement_answered(self):
        self.boot(1, 'i1')
        ask = self.client.get_allocations_for_resource_provider

        def late(*args):
            answer = ask(*args)
            self.boot(2, 'i2')
            return answer
        self.client.get_allocations_for_resource_provider = late
        self.compare()
        self.assertEqual((8, 0), self.placement())


class ReconcileTest(base.ComputeTestCase):
    """Tests of Nova's threads that run while the worker compares."""

    def setUp(self):
        super().setUp()
        self.meanwhile = []

    def is_orphaned(self, assignment):
        while self.meanwhile:
            self.meanwhile.pop()()
        return super().is_orphaned(assignment)

    def compare(self, *meanwhile):
        self.meanwhile = list(meanwhile)
        self.tracker.request_reconcile()
        self.tracker.run_once()
        self.assertEqual([], self.meanwhile)

    def book(self, instance):
        return make.uuids(self.tracker.assignments.of_instance(instance))

    def _fails(self, *args):
        raise oslo_messaging.RemoteError('DBConnectionError', 'away')

    def test_claim_of_a_build_that_began_meanwhile_stays_in_the_book(self):
        first, built = self.boot(2), []

        def build():
            # It goes on when the comparison ends.
            building.__enter__()
            built.extend(self.boot(2, 'i2'))
        building = self.tracker.builds.running('i2')
        self.compare(build)
        self.assertEqual(set(built), self.book('i2'))
        self.assertEqual(set(first), self.book('i1'))
        building.__exit__(None, None, None)

    def test_release_of_an_instance_meanwhile_stays_out_of_the_book(self):
        self.boot(2)
        self.compare(lambda: self.tracker.release_instance('i1'))
        self.assertEqual(set(), self.book('i1'))
        # Another instance may have the devices by now.
        self.assertEqual({'available': 8}, self.states())

    def test_change_before_a_comparison_does_not_outlast_it(self):
        [first, second] = self.boot(2)
        self.tracker.session.call(
            self.api.release, [first])
        self.compare()
        self.assertEqual({second}, self.book('i1'))

    def test_release_that_the_conductor_failed_stays_out_of_the_book(self):
        uuids = self.boot(2)
        release, self.api.release = self.api.release, self._fails
        self.tracker.release_instance('i1')
        self.compare()
        self.assertEqual(uuids, self.tracker.assignments.pending())
        self.assertEqual(set(), self.book('i1'))
        self.api.release = release

    def test_confirmation_that_the_conductor_failed_stays_in_the_book(self):
        source = self.boot(2)
        granted = self.tracker.session.call(
            self.api.claim, dataclasses.replace(
                self.request(3), role=claim_obj.ClaimRole.DESTINATION,
                migration_uuid='m1'))
        destination = {
            assignment.uuid for assignment in granted.assignments}
        self.tracker.session.call(
            self.api.activate, list(destination))
        self.tracker.assignments.add('i1', granted.assignments)
        self.api.confirm_migration = self._fails
        self.tracker.confirm_migration(claim_obj.MigrationConfirmation(
            instance_uuid='i1', migration_uuid='m1',
            source_assignments=tuple(source)))
        self.seconds += 100
        self.compare()
        self.assertEqual(
            {(uuid, claim_obj.ClaimRole.INSTANCE, None)
             for uuid in destination},
            {(assignment.uuid, assignment.role, assignment.migration_uuid)
             for assignment in self.tracker.assignments.of_instance('i1')})


class CleanTest(base.ComputeTestCase):

    def test_device_in_the_book_is_cleaned_after_the_comparison(self):
        uuids = self.boot(2)
        session = self.tracker.assignments.session()
        # The conductor ends them, while comparisons wait for Nova.
        self.tracker.allocation_removal.add('i9')
        self.client.allocations['i9'] = {
            self.provider: {'CUSTOM_GPU_H100': 1}}
        self.tracker.session.call(self.api.release, uuids)
        self.gone.add('i1')
        self.tracker.assignments_changed()
        self.tracker.run_once()
        self.assertEqual({'dirty': 2, 'available': 6}, self.states())

        del self.client.allocations['i9']
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())
        # The book does not take what was cleaned for unclean.
        self.assertEqual(8, len(self.tracker.claim(
            self.request(8, 'i2')).assignments))
        self.assertEqual(session, self.tracker.assignments.session())
