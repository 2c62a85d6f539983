# SPDX-License-Identifier: Apache-2.0
"""Tests of spawns in which each step fails once.

After a failure everything is undone. A step without a case here fails the
suite.
"""

import errno
import sys
from unittest import mock

import fixtures
import oslo_messaging

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin import privsep
from gpgpu_plugin.virt import steps
from tests.fixtures import disk
from tests.unit.compute import base


class StepsTest(base.ComputeTestCase):

    def setUp(self):
        super().setUp()
        self.guests = []
        self.before = (self.states(), self.placement(), self.drivers())

    def run_steps(self, table=steps.STEPS, count=2, keeps=False):
        run = steps.Spawn(
            tracker=self.tracker, request=self.request(count),
            spawn=lambda: self.guests.append('guest'),
            destroy=self.guests.clear, keeps=keeps)
        with self.tracker.builds.running('i1'):
            steps.execute(run, table)
        return run

    def settled(self):
        self.tracker.run_once()
        return (self.states(), self.placement(), self.drivers())

    # -- one case a step: what fails, and what is different afterwards ------

    def fail_claim(self):
        self.tracker.session.call(
            self.api.claim, self.request(8, 'other'))
        exc = self.assertRaises(exception.ClaimDenied, self.run_steps)
        self.assertEqual('not_enough_available', exc.reason)
        self.assertEqual([], self.guests)
        self.assertEqual((), self.api.instance_assignments(
            context.admin(), 'i1'))
        self.tracker.request_reconcile()
        self.assertEqual(self.before, self.settled())

    def fail_allocate(self):
        self._fail_after('allocate')

    def fail_prepare(self):
        second = sorted(device.address for device in self.api.device_list(
            context.admin(), variant='H100'))[1]
        faults = self.tracker.backend.kernel.faults
        faults[f'{second}/driver_override'] = errno.EBUSY
        cleaned = self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'clean', wraps=self.tracker.backend.clean))
        self.assertRaises(exception.HostError, self.run_steps, count=3)
        faults.clear()
        states, placement, drivers = self.settled()
        # Hardware that does not do what it is asked is nobody's; the one
        # before it is cleaned, the one after it was not touched.
        self.assertEqual({'available': 7, 'quarantined': 1}, states)
        self.assertEqual(((8, 1), {None}), (placement, drivers))
        self.assertEqual(1, cleaned.mock.call_count)

    def fail_spawn(self):
        self._fail_after('spawn')

    def fail_activate(self):
        self._fail_after('activate')

    def _fail_after(self, name):
        """Let a step fail after it has done its work."""
        def broken(run):
            [step] = [step for step in steps.STEPS if step.name == name]
            step.do(run)
            raise RuntimeError(name)
        self.assertRaises(RuntimeError, self.run_steps, tuple(
            step if step.name != name
            else steps.SpawnStep(name, broken, step.undo)
            for step in steps.STEPS))
        self.assertEqual([], self.guests)
        self.assertEqual(self.before, self.settled())

    def test_every_step_has_its_fault_case(self):
        for step in steps.STEPS:
            with self.subTest(step.name):
                getattr(self, f'fail_{step.name}')()
                if step.name == 'prepare':
                    for device in self.api.device_list(
                            context.admin(), state='quarantined'):
                        self.api.hold_remove(
                            context.admin(), device.uuid, ['failed'])
                    self.tracker.refresh()
                self.assertEqual(self.before, self.settled())
                self.assertEqual(
                    (), self.tracker.assignments.of_instance('i1'))

    # -- the rest -----------------------------------------------------------

    def test_spawn_without_failure_assigns_devices(self):
        run = self.run_steps()
        self.assertEqual(['guest'], self.guests)
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        self.assertEqual((8, 0), self.placement())
        self.assertEqual({'vfio-pci', None}, self.drivers())
        self.assertEqual(
            [(uuid, 'assigned', None) for uuid in run.uuids],
            [(assignment.uuid, assignment.state, assignment.lease_expires_at)
             for assignment in self.tracker.assignments.of_instance('i1')])

    def test_spawn_again_releases_the_devices_of_the_earlier_stay(self):
        first = self.run_steps().uuids
        self.assertEqual(set(), set(first) & set(self.run_steps().uuids))
        self.assertEqual({'assigned': 2, 'dirty': 2, 'available': 4},
                         self.states())

    def test_spawn_ends_what_another_request_left_here(self):
        first = self.run_steps().uuids
        self.assertEqual(1, len(self.run_steps(count=1).uuids))
        self.assertEqual({'assigned': 1, 'dirty': 2, 'available': 5},
                         self.states())
        self.assertEqual([], [
            assignment.uuid for assignment
            in self.tracker.assignments.of_instance('i1')
            if assignment.uuid in first])
        self.tracker.run_once()
        self.assertEqual({'assigned': 1, 'available': 7}, self.states())

    def test_denied_claim_releases_what_was_left_here(self):
        self.run_steps()
        self.assertRaises(exception.ClaimDenied, self.run_steps, count=8)
        self.assertEqual((), self.tracker.assignments.of_instance('i1'))
        self.assertEqual({'dirty': 2, 'available': 6}, self.states())

    def test_denied_claim_that_the_book_cannot_explain_is_compared(self):
        first = self.run_steps().uuids
        self.tracker.assignments.remove('i1', first, first)
        self.gone.add('i1')
        self.assertRaises(exception.ClaimDenied, self.run_steps, count=1)
        self.tracker.run_once()
        self.assertEqual({'available': 8}, self.states())

    def test_claim_that_the_book_cannot_store_is_ended_untouched(self):
        with disk.full_disk():
            self.assertRaises(exception.HostNotReady, self.run_steps)
            self.assertEqual([], self.guests)
            self.assertEqual(self.before[0], self.states())
            self.assertEqual(self.before, self.settled())
        self.assertEqual(2, len(self.run_steps().uuids))

    def test_rebuild_in_place_needs_no_conductor(self):
        first = self.run_steps().uuids
        self.conductor.stop()
        self.assertEqual(first, self.run_steps(keeps=True).uuids)
        self.assertEqual(['guest', 'guest'], self.guests)

    def test_rebuild_prepares_what_a_guest_had(self):
        prepared = []
        for keeps in (False, True):
            with mock.patch.object(
                    self.tracker.backend, 'prepare', prepared.append):
                self.run_steps(count=1, keeps=keeps)
        self.assertEqual([False, True],
                         [device.restored for device in prepared])

    def test_guest_that_nobody_heard_of_was_prepared(self):
        """nova-compute is killed between the guest and its activation."""
        self.assertRaises(SystemExit, self.run_steps, (
            *steps.STEPS[:3],
            steps.SpawnStep('die', sys.exit, lambda run: None)))
        [assignment, _] = self.tracker.assignments.of_instance('i1')
        self.assertTrue(self.tracker.assignments.is_prepared(
            assignment.stable_id))

    def test_rebuild_whose_host_forgot_asks_the_conductor(self):
        first = self.run_steps().uuids
        self.tracker.assignments.remove('i1', first, first)
        self.assertEqual(first, self.run_steps(keeps=True).uuids)

    def test_spawn_again_that_fails_keeps_no_devices(self):
        self.run_steps()

        def broken(run):
            raise RuntimeError('spawn')
        self.assertRaises(RuntimeError, self.run_steps, tuple(
            step if step.name != 'spawn'
            else steps.SpawnStep('spawn', broken, step.undo)
            for step in steps.STEPS))
        self.assertEqual({'dirty': 4, 'available': 4}, self.states())
        self.assertEqual([], list(self.api.instance_assignments(
            context.admin(), 'i1')))

    def test_conductor_goes_away_before_activation(self):
        def away(run):
            self.conductor.stop()
            raise exception.ConductorUnavailable(method='x', timeout=1)
        self.assertRaises(
            exception.ConductorUnavailable, self.run_steps, tuple(
                step if step.name != 'activate'
                else steps.SpawnStep('activate', away, step.undo)
                for step in steps.STEPS))
        self.assertEqual([], self.guests)
        self.conductor.start()
        self.assertEqual(self.before, self.settled())

    def test_claim_whose_answer_is_lost(self):
        def lost(run):
            self.tracker.session.call(
            self.api.claim, run.request)
            self.tracker.request_reconcile()
            raise exception.ConductorUnavailable(method='claim', timeout=1)
        self.assertRaises(
            exception.ConductorUnavailable, self.run_steps,
            (steps.SpawnStep('claim', lost, steps.STEPS[0].undo),
             *steps.STEPS[1:]))
        self.assertEqual({'provisioning': 2, 'available': 6}, self.states())
        self.assertEqual(self.before, self.settled())

    def test_pending_release_does_not_end_the_new_claim(self):
        # As for an instance that was shelved while no conductor answered,
        # and is unshelved here.
        first = self.run_steps().uuids
        self.tracker.assignments.add_pending(first)
        second = self.run_steps().uuids
        self.assertEqual(set(), set(first) & set(second))
        self.settled()
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())

    def test_claim_that_fails_in_the_conductor_is_reconciled(self):
        claim = self.api.claim

        def breaks(*args):
            claim(*args)
            raise oslo_messaging.RemoteError('DBConnectionError', 'away')
        self.api.claim = breaks
        self.assertRaises(oslo_messaging.RemoteError, self.run_steps)
        self.assertEqual({'provisioning': 2, 'available': 6}, self.states())
        self.assertEqual(self.before, self.settled())

    def test_machine_that_is_not_set_up_blames_no_device(self):
        def write(path, value):
            raise privsep.HelperUnavailable(1, 'the helper does not start')
        binder = self.tracker.backend.binder
        works, binder._write_attribute = binder._write_attribute, write
        with fixtures.MockPatchObject(
                binder, '_read_file', lambda path: write(path, '')):
            exc = self.assertRaises(exception.HostNotReady, self.run_steps)
        self.assertIn('the helper does not start', str(exc))
        self.assertEqual(self.before, self.settled())
        # What was to be cleaned waits.
        binder._write_attribute = works
        self.run_steps()
        binder._write_attribute = write
        self.tracker.release_instance('i1')
        states, placement, _ = self.settled()
        self.assertEqual({'available': 6, 'dirty': 2}, states)
        self.assertEqual((8, 2), placement)
        binder._write_attribute = works
        self.seconds += 30
        self.assertEqual(self.before, self.settled())

    def test_evacuation_that_fails_leaves_placement_to_nova(self):
        for allocation_removal in (False, True):
            run = steps.Spawn(
                tracker=self.tracker,
                request=self.request(2),
                spawn=self.fail,
                destroy=self.guests.clear,
                allocation_removal=allocation_removal,
            )
            self.assertRaises(self.failureException, steps.execute, run)
            self.assertEqual(
                allocation_removal, bool(self.tracker.allocation_removal)
            )

    def test_undo_that_fails_does_not_stop_the_others(self):
        def broken(run):
            raise ValueError('undo')

        def fails(run):
            raise RuntimeError('spawn')
        reconcile = self.useFixture(fixtures.MockPatchObject(
            self.tracker, 'request_reconcile')).mock
        self.assertRaises(RuntimeError, self.run_steps, (
            *steps.STEPS[:2], steps.SpawnStep('spawn', fails, broken)))
        self.assertTrue(reconcile.called)
        self.assertEqual(self.before, self.settled())

    def test_end_of_the_process_undoes_nothing(self):
        def killed(run):
            raise SystemExit
        self.assertRaises(SystemExit, self.run_steps, (
            *steps.STEPS[:2], steps.SpawnStep('spawn', killed, killed)))
        self.assertEqual({'provisioning': 2, 'available': 6}, self.states())
        self.tracker = self.make_tracker()
        self.tracker.run_once()
        self.update_tree()
        self.assertEqual(self.before, self.settled())

    def test_failed_spawn_with_devices_that_the_host_forgot_is_compared(self):
        first = self.run_steps().uuids
        reconcile = self.useFixture(fixtures.MockPatchObject(
            self.tracker, 'request_reconcile')).mock
        for keeps in (True, False):
            self.tracker.assignments.remove('i1', first, first)
            self.guests = mock.Mock(**{'append.side_effect': RuntimeError()})
            self.assertRaises(RuntimeError, self.run_steps, keeps=keeps)
            self.assertIs(not keeps, reconcile.called)

    def test_denied_claim_needs_no_comparison(self):
        self.tracker.session.call(
            self.api.claim, self.request(8, 'other'))
        reconcile = self.useFixture(fixtures.MockPatchObject(
            self.tracker, 'request_reconcile')).mock
        self.assertRaises(exception.ClaimDenied, self.run_steps)
        self.assertFalse(reconcile.called)

    def aborts(self, error):
        """Let the second device fail, and return the calls that undo it."""
        prepare = self.tracker.backend.prepare
        calls = []

        def fail_second(device):
            calls.append(device)
            if len(calls) == 2:
                raise error
            prepare(device)
        self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'prepare', fail_second))
        abort = self.useFixture(fixtures.MockPatchObject(
            self.api, 'abort', wraps=self.api.abort)).mock
        self.assertRaises(type(error), self.run_steps, count=3)
        return [call.kwargs for call in abort.call_args_list]

    def test_device_that_failed_is_named_and_the_untouched_one_is_not(self):
        calls = self.aborts(exception.HostError(path='x', reason='broken'))
        self.assertEqual(
            [(False, None), (True, 'x: broken'), (True, None)],
            sorted(((call['touched'], call['fault']) for call in calls),
                   key=str))

    def test_device_without_driver_capacity_is_reported_before_the_undo(self):
        order = []
        self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'driver_capacity',
            lambda devices: order.append('read') or {}))
        release = self.tracker.backend.release
        self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'release',
            lambda device: (order.append('undo'), release(device))))
        calls = self.aborts(
            exception.NoDriverCapacity(path='x', reason='none left'))
        self.assertEqual(['read', 'undo'], order[:2])
        self.assertEqual({None}, {call['fault'] for call in calls})

    def test_host_that_is_not_ready_is_no_fault_of_a_device(self):
        calls = self.aborts(
            exception.HostNotReady(path='x', reason='no helper'))
        self.assertEqual({(False, None), (True, None)}, {
            (call['touched'], call['fault']) for call in calls})

    def test_device_that_is_half_prepared_is_cleaned_without_a_fault(self):
        with fixtures.MockPatchObject(
                self.tracker.backend.access.baselines, 'record_firmware',
                side_effect=exception.HostNotReady(
                    path='x', reason='the disk is full')):
            self.assertRaises(exception.HalfPrepared, self.run_steps)
        self.assertEqual(({'dirty': 1, 'available': 7}, {'vfio-pci', None}),
                         (self.states(), self.drivers()))
        self.assertEqual(self.before, self.settled())

    def test_device_that_was_not_touched_is_not_taken_back(self):
        released = self.useFixture(fixtures.MockPatchObject(
            self.tracker.backend, 'release')).mock
        self.aborts(exception.HostError(path='x', reason='broken'))
        self.assertEqual(2, released.call_count)

    def test_spawn_again_that_fails_leaves_the_devices_bound(self):
        self.run_steps()
        before = self.tracker.backend.scan().functions

        def broken(run):
            raise RuntimeError('spawn')
        self.assertRaises(RuntimeError, self.run_steps, (
            *steps.STEPS[:2],
            steps.SpawnStep('spawn', broken, steps._unspawn)))
        self.assertEqual(before, self.tracker.backend.scan().functions)
        self.assertIn('vfio-pci', self.drivers())

    def test_claim_that_no_conductor_ends_is_released_later(self):
        granted = []

        def away(run):
            granted.extend(run.uuids)
            self.conductor.stop()
            raise RuntimeError('spawn')
        self.assertRaises(RuntimeError, self.run_steps, (
            *steps.STEPS[:2], steps.SpawnStep('spawn', away, steps._unspawn)))
        self.assertEqual(granted, self.tracker.assignments.pending())
        self.assertEqual((), self.tracker.assignments.of_instance('i1'))
        self.conductor.start()
        self.assertEqual(self.before, self.settled())
