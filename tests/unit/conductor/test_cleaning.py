# SPDX-License-Identifier: Apache-2.0
"""Tests of cleaning: one attempt per device, identified by a token."""

import dataclasses
import datetime

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import report
from tests.fixtures import cleaned
from tests.fixtures import clocks
from tests.fixtures import hosts
from tests.fixtures import released
from tests.fixtures import rows
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


class CleaningCase(base.ConductorTestCase):

    def dirty(self, count=1):
        releases.release(self.db, base.uuids(self.boot(count)))
        return cleaning.tasks(self.db, 'h1')

    def start(self, task, token=None):
        token = token or task.token
        cleaning.started(self.db, task.device_uuid, token, token)

    def finish(self, task, token=None, results=None):
        return cleaning.finished(
            self.db, task.device_uuid, token or task.token, task.steps,
            cleaned.results(task.steps) if results is None else results)

    def set_variant(self, **fields):
        variant_admin.set_(self.db, dataclasses.replace(
            variant_admin.show(self.db, 'H100'), **fields))

    def row(self, task):
        with self.db.reader() as session:
            return session.execute(sa.select(tables.DEVICES).where(
                tables.DEVICES.c.uuid == task.device_uuid)).one()

    def kinds(self):
        with self.db.reader() as session:
            return session.scalars(sa.select(event_db.TABLE.c.kind).order_by(
                event_db.TABLE.c.id)).all()

    def generation(self):
        with self.db.reader() as session:
            return session.scalar(sa.select(tables.HOSTS.c.generation))


class VFsRefusedTest(CleaningCase):

    def setUp(self):
        super().setUp()
        self.origin = hosts.origin('h1', base.NODE)

    def refused(self, *gpus):
        return cleaning.vfs_refused(self.db, self.origin, gpus)

    def test_available_gpu_and_one_that_is_not_known_may_get_vfs(self):
        [assignment] = self.boot(1).assignments
        with self.db.reader() as session:
            free = session.scalars(
                sa.select(tables.DEVICES.c.stable_id)
                .where(tables.DEVICES.c.state == 'available')).first()
        self.assertEqual((assignment.stable_id,), self.refused(
            free, assignment.stable_id, 'unknown'))

    def test_gpu_gets_none_until_it_is_clean(self):
        [task] = self.dirty()
        self.assertEqual((task.stable_id,), self.refused(task.stable_id))
        self.start(task)
        self.assertEqual((task.stable_id,), self.refused(task.stable_id))
        self.finish(task, results=cleaned.failed('looked at'))
        self.assertEqual('quarantined', device_admin.show(
            self.db, task.device_uuid).state)
        self.assertEqual((task.stable_id,), self.refused(task.stable_id))
        released.release(self.db, task.device_uuid, 'admin')
        self.clean_all()
        self.assertEqual((), self.refused(task.stable_id))

    def test_gpu_of_another_service_gets_none(self):
        gpu = dataclasses.replace(base.EIGHT[0], owner='Cyborg')
        hosts.store(self.db, dataclasses.replace(
            base.scan((gpu, *base.EIGHT[1:])), number=2))
        self.assertEqual((gpu.id,), self.refused(gpu.id))

    def test_no_gpu_of_a_restored_database_gets_any_before_its_report(self):
        with self.db.writer() as session:
            rows.hold_host(session, 'h1', device_rules.HostHoldKind.RESTORED)
            free = session.scalars(
                sa.select(tables.DEVICES.c.stable_id)).first()
        self.assertEqual((free, 'unknown'), self.refused(free, 'unknown'))

    def test_host_whose_session_was_replaced_is_refused(self):
        self.assertRaises(
            exception.Fenced, cleaning.vfs_refused, self.db,
            dataclasses.replace(self.origin, start_uuid='other'), [])


class EndedTest(CleaningCase):
    """Calls of the observer of cleanings."""

    def setUp(self):
        super().setUp()
        self.ended = []

    def finish(self, task, results=None, steps=None):
        cleaning.finished(
            self.db, task.device_uuid, task.token, steps or task.steps,
            results or cleaned.results(task.steps),
            observer=self.ended.append)

    def test_verdict_and_seconds_of_a_cleaning(self):
        began = datetime.datetime(2026, 11, 24, 12)
        times = [began] * 20
        self.useFixture(clocks.Clocks(lambda: times[-1]))
        passed, failed = self.dirty(2)
        self.start(passed)
        self.start(failed)
        times.append(began + datetime.timedelta(seconds=90.5))
        self.finish(passed)
        # The clock of the database was set back.
        times.append(began - datetime.timedelta(seconds=1))
        self.finish(failed, cleaned.failed('looked at'))
        self.assertEqual([('passed', 90.5), ('failed', 0)], self.ended)

    def test_end_that_is_not_committed_is_not_observed(self):
        [task] = self.dirty()
        self.start(task)
        self.useFixture(fixtures.MockPatchObject(
            settle, 'settle', side_effect=OSError('power cut')))
        self.assertRaises(OSError, self.finish, task)
        self.assertEqual([], self.ended)


class TasksTest(CleaningCase):

    def test_host_that_never_reported_has_no_task(self):
        self.assertEqual((), cleaning.tasks(self.db, 'h9'))

    def test_host_without_dirty_devices_has_no_task(self):
        self.boot(1)
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))

    def test_task_names_the_device_and_its_last_assignment(self):
        [assignment] = self.boot(1).assignments
        releases.release(self.db, [assignment.uuid])
        [task] = cleaning.tasks(self.db, 'h1')
        self.assertEqual(
            (assignment.device_uuid, assignment.stable_id,
             assignment.address, 'H100', assignment.uuid, assignment.uuid),
            (task.device_uuid, task.stable_id, task.address, task.variant,
             task.token, task.assignment_uuid))

    def test_task_of_a_device_used_before_names_the_last_assignment(self):
        first = base.uuids(self.boot(8))
        releases.release(self.db, first)
        self.clean_all()
        last = base.uuids(self.boot(8))
        releases.release(self.db, last)
        self.assertEqual(set(last), {
            task.assignment_uuid for task in cleaning.tasks(self.db, 'h1')})

    def abort(self, granted):
        releases.abort(self.db, base.uuids(granted), touched=True, fault=None)

    def test_device_of_an_aborted_claim_had_no_guest(self):
        self.abort(self.claim(1))
        [task] = cleaning.tasks(self.db, 'h1')
        self.assertFalse(task.had_guest)

    def test_device_of_a_guest_is_named(self):
        [task] = self.dirty()
        self.assertTrue(task.had_guest)

    def test_tasks_of_another_host_are_not_named(self):
        self.report_second_host()
        self.dirty()
        self.assertEqual((), cleaning.tasks(self.db, 'h2'))

    def test_task_of_a_device_that_left_its_group_has_no_variant(self):
        [task] = self.dirty()
        variant_admin.delete(self.db, 'H100')
        [after] = cleaning.tasks(self.db, 'h1')
        self.assertEqual((task.device_uuid, None),
                         (after.device_uuid, after.variant))

    def test_missing_device_is_not_cleaned_until_it_returns(self):
        [task] = self.dirty()
        hosts.store(self.db, base.scan(
            function for function in base.EIGHT
            if function.id != task.stable_id))
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        hosts.store(self.db, base.scan(base.EIGHT))
        self.assertEqual((task,), cleaning.tasks(self.db, 'h1'))


class StartedTest(CleaningCase):

    def test_start_takes_the_dirty_device_to_cleaning(self):
        [task] = self.dirty()
        before = self.generation()
        self.start(task)
        self.assertEqual({'cleaning': 1, 'available': 7}, self.states())
        self.assertEqual((before + 1, 'clean_started'),
                         (self.generation(), self.kinds()[-1]))

    def test_start_of_a_cleaning_that_was_interrupted_begins_anew(self):
        [task] = self.dirty()
        self.start(task)
        self.assertEqual((task,), cleaning.tasks(self.db, 'h1'))
        cleaning.started(self.db, task.device_uuid, task.token, 'another')
        self.assertEqual(
            ['clean_started', 'clean_interrupted', 'clean_started'],
            self.kinds()[-3:])
        self.clean_all()
        self.assertEqual({'available': 8}, self.states())

    def test_start_with_another_token_is_refused(self):
        [task] = self.dirty()
        exc = self.assertRaises(
            exception.Conflict, self.start, task, 'other')
        self.assertIn(task.token, str(exc))
        self.assertEqual({'dirty': 1, 'available': 7}, self.states())

    def test_start_after_the_cleaning_ended_is_refused(self):
        [task] = self.dirty()
        self.clean_all()
        self.assertRaises(exception.Conflict, self.start, task)
        self.assertEqual({'available': 8}, self.states())

    def test_start_for_an_unknown_device_is_refused(self):
        self.assertRaises(
            exception.NotFound, cleaning.started, self.db, 'none', 'token',
            'attempt')


class PostponedTest(CleaningCase):

    def test_device_that_cannot_be_cleaned_yet_is_dirty_again(self):
        [task] = self.dirty()
        for number in range(3):
            attempt = f'attempt {number}'
            cleaning.started(self.db, task.device_uuid, task.token, attempt)
            cleaning.postponed(
                self.db, task.device_uuid, attempt, 'no program')
            self.assertEqual({'dirty': 1, 'available': 7}, self.states())
            [device] = device_admin.list_all(self.db, state='dirty')
            self.assertEqual('waits: no program', device.reason)
            # The next attempt is one at the same request.
            self.assertEqual((task,), cleaning.tasks(self.db, 'h1'))
        self.assertEqual('clean_interrupted', self.kinds()[-1])
        self.assertEqual(
            (), history.list_cleanings(self.db, task.device_uuid))
        self.start(task)
        self.finish(task)
        self.assertEqual({'available': 8}, self.states())

    def test_attempt_that_has_ended_is_refused(self):
        [task] = self.dirty()
        self.start(task)
        self.finish(task)
        self.assertRaises(exception.Conflict, cleaning.postponed, self.db,
                          task.device_uuid, task.token, 'no program')


class AttemptTest(CleaningCase):
    """Tests of a cleaning that began again while a conductor paused."""

    def started(self, task, attempt):
        cleaning.started(self.db, task.device_uuid, task.token, attempt)
        [again] = cleaning.tasks(self.db, 'h1')
        return again

    def test_verdict_on_an_earlier_attempt_is_refused(self):
        [task] = self.dirty()
        self.started(self.started(task, 'a1'), 'a2')
        self.assertRaises(exception.Conflict, self.finish, task, 'a1')
        self.assertEqual({'cleaning': 1, 'available': 7}, self.states())
        self.finish(task, 'a2')
        self.assertEqual({'available': 8}, self.states())

    def test_request_stays_the_same_in_all_attempts(self):
        """A restart of the host does not accept what a guest changed."""
        [task] = self.dirty()
        self.assertEqual(task.token, task.request)
        again = self.started(task, 'a1')
        self.assertEqual(('a1', task.request), (again.token, again.request))
        third = self.started(again, 'a2')
        self.assertEqual(('a2', task.request), (third.token, third.request))

    def test_start_that_comes_twice_is_one(self):
        [task] = self.dirty()
        again = self.started(task, 'a1')
        before = self.kinds()
        # As its caller gets the answer to the second one only, it would
        # otherwise leave the device, which would stay in state cleaning.
        self.started(task, 'a1')
        self.started(again, 'a1')
        self.assertEqual(before, self.kinds())
        self.finish(again)
        self.assertEqual({'available': 8}, self.states())

    def test_start_that_arrives_after_a_later_attempt_is_refused(self):
        [task] = self.dirty()
        again = self.started(task, 'a1')
        self.started(again, 'a2')
        # Delivered twice; then the verdict that belongs to it.
        self.assertRaises(exception.Conflict, self.started, task, 'a1')
        self.assertRaises(exception.Conflict, self.finish, task, 'a1')
        self.assertEqual({'cleaning': 1, 'available': 7}, self.states())

    def test_attempt_of_an_earlier_life_is_refused(self):
        [old] = self.dirty(8)[:1]
        self.clean_all()
        self.dirty(8)
        self.assertRaises(exception.Conflict, self.started, old, 'a1')
        self.assertEqual({'dirty': 8}, self.states())


class FailureTest(CleaningCase):

    def failure(self, task, results, **kwargs):
        return cleaning.failure(
            self.db, task.device_uuid, task.token, results, **kwargs)

    def test_clean_device_has_no_failure(self):
        [task] = self.dirty()
        self.start(task)
        self.assertIsNone(self.failure(task, cleaned.results(task.steps)))

    def test_failure_is_that_of_the_verdict_and_changes_nothing(self):
        [task] = self.dirty()
        self.start(task)
        before = self.row(task).generation, self.generation(), self.kinds()
        self.assertEqual('reset failed: looked at', self.failure(
            task, cleaned.failed('looked at')))
        self.assertEqual(before, (
            self.row(task).generation, self.generation(), self.kinds()))

    def test_policy_of_now_counts(self):
        [task] = self.dirty()
        self.start(task)
        self.set_variant(cleaning_policy='scrub')
        self.assertIn('scrub is required', self.failure(
            task, cleaned.results(task.steps)))

    def test_attempt_that_has_ended_is_refused(self):
        [task] = self.dirty()
        self.start(task)
        self.finish(task)
        self.assertRaises(exception.Conflict, self.failure, task,
                          cleaned.results(task.steps))

    def test_other_host_is_refused(self):
        [task] = self.dirty()
        self.start(task)
        self.assertRaises(
            exception.NotOwner, self.failure, task,
            cleaned.results(task.steps), origin=report.Origin(
                host='h2', node_uuid='n2', start_uuid='s', session=1,
                generation=1))


class FinishedTest(CleaningCase):

    def test_passed_cleaning_makes_the_device_available(self):
        [task] = self.dirty()
        self.start(task)
        inventory = self.finish(task)
        self.assertEqual((8, 0), self.offered(inventory))
        row = self.row(task)
        self.assertEqual(('available', None, None),
                         (row.state, row.clean_token, row.reason))
        self.assertEqual(inventory.generation, self.generation())

    def test_failed_cleaning_quarantines_until_the_operator_releases(self):
        [task] = self.dirty()
        self.start(task)
        self.assertEqual((8, 1), self.offered(
            self.finish(task, results=cleaned.failed('looked at'))))
        [device] = device_admin.list_all(self.db, state='quarantined')
        self.assertEqual(
            'cleaning failed: reset failed: looked at', device.reason)
        self.assertEqual('clean_failed', self.kinds()[-1])
        released.release(self.db, device.uuid, 'op@c1')
        self.clean_all()
        self.assertEqual({'available': 8}, self.states())

    def judged(self, task, steps):
        """Finish with steps that passed; return state and reason."""
        self.start(task)
        self.finish(task, results=cleaned.results(steps))
        shown = device_admin.show(self.db, task.device_uuid)
        return shown.state, shown.reason

    def test_conductor_judges_by_the_policy_not_the_host(self):
        """A host without the step, such as an older one, proves nothing."""
        [task] = self.dirty()
        self.assertEqual(('reset', 'settings', 'canary'), task.steps)
        state, reason = self.judged(task, ('reset', 'settings'))
        self.assertEqual(
            ('quarantined', 'cleaning failed: canary is required, and the '
                            'host did not do it'), (state, reason))
        self.assertEqual('', self.row(task).cleaned_steps)

    def test_step_that_the_host_only_names_is_not_proven(self):
        self.set_variant(cleaning_policy='reset-only')
        [task] = self.dirty()
        self.start(task)
        cleaning.finished(
            self.db, task.device_uuid, task.token, (*task.steps, 'canary'),
            cleaned.results(task.steps))
        self.assertEqual({'available': 8}, self.states())
        self.set_variant(cleaning_policy='default')
        self.assertEqual({'available': 7, 'dirty': 1}, self.states())

    def test_policy_that_changes_during_the_cleaning_counts(self):
        [task] = self.dirty()
        self.set_variant(cleaning_policy='scrub', memory_mib=81920)
        [again] = cleaning.tasks(self.db, 'h1')
        self.assertEqual((('reset', 'settings', 'scrub', 'canary'), 81920),
                         (again.steps, again.memory_mib))
        # The host did all that it was asked for: it is asked for more.
        self.assertEqual(('dirty', None), self.judged(task, task.steps))
        [again] = cleaning.tasks(self.db, 'h1')
        self.assertEqual((task.request, task.request),
                         (again.request, again.token))
        self.assertEqual('clean_interrupted', self.kinds()[-1])

    def test_policy_that_changes_during_a_cleaning_that_fails(self):
        [task] = self.dirty()
        self.set_variant(cleaning_policy='scrub', memory_mib=81920)
        self.start(task)
        self.finish(task, results=cleaned.failed('looked at'))
        self.assertEqual('quarantined', device_admin.show(
            self.db, task.device_uuid).state)

    def waiting(self):
        """Return a device of whose memory the policy says nothing."""
        [task] = self.dirty()
        self.start(task)
        self.finish(task, results=cleaned.mute('canary'))
        return task

    def test_device_that_cannot_pass_its_policy_waits(self):
        task = self.waiting()
        self.assertEqual({'dirty': 1, 'available': 7}, self.states())
        [device] = device_admin.list_all(self.db, state='dirty')
        self.assertIn('waits: cleaning policy: canary inapplicable: no memory;'
                      ' "gpgpu-manage variant set" chooses', device.reason)
        self.assertEqual('clean_failed', self.kinds()[-1])
        [record] = history.list_cleanings(self.db, task.device_uuid)
        self.assertEqual(('failed', task.request), (
            record.fields['verdict'], record.fields['request']))
        # Neither its host nor an instance gets it.
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        self.assertRaises(exception.ClaimDenied, self.claim, 8)
        self.assertEqual((task.stable_id,), cleaning.vfs_refused(
            self.db, hosts.origin('h1', base.NODE), [task.stable_id]))

    def test_device_that_waits_is_cleaned_when_its_variant_changes(self):
        task = self.waiting()
        self.set_variant(cleaning_policy='reset-only')
        [again] = cleaning.tasks(self.db, 'h1')
        # Another request would accept what the guest changed.
        self.assertEqual((task.request, ('reset', 'settings')),
                         (again.request, again.steps))
        self.clean_all()
        self.assertEqual({'available': 8}, self.states())
        self.assertIsNone(self.row(task).reason)

    def test_device_that_waits_is_no_matter_of_other_variants(self):
        self.waiting()
        variant_admin.create(self.db, admin.VariantInfo(
            name='OTHER', vendor='10de', device='20b0'))
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))

    def test_device_that_waits_is_cleaned_when_its_variant_goes(self):
        task = self.waiting()
        variant_admin.delete(self.db, 'H100')
        [again] = cleaning.tasks(self.db, 'h1')
        self.assertEqual((task.request, None), (again.request, again.variant))

    def test_device_that_waited_is_cleaned_after_its_next_guest(self):
        """The reason of its last request is none of the next one."""
        task = self.waiting()
        with self.db.writer() as session:
            session.execute(sa.update(tables.DEVICES).where(
                tables.DEVICES.c.uuid == task.device_uuid).values(
                    state='assigned', clean_token='the next one'))
            session.execute(sa.update(tables.DEVICES).where(
                tables.DEVICES.c.uuid == task.device_uuid).values(
                    state='dirty'))
        [again] = cleaning.tasks(self.db, 'h1')
        self.assertEqual('the next one', again.request)

    def test_policy_that_changes_during_a_cleaning_that_says_nothing(self):
        [task] = self.dirty()
        self.set_variant(cleaning_policy='reset+memory-clear+settings')
        self.start(task)
        self.finish(task, results=cleaned.mute('canary'))
        self.assertEqual('clean_interrupted', self.kinds()[-1])
        [again] = cleaning.tasks(self.db, 'h1')
        self.assertIn('memory-clear', again.steps)

    def test_reset_alone_is_enough_only_if_the_policy_says_so(self):
        self.set_variant(cleaning_policy='reset-only')
        [task] = self.dirty()
        self.assertEqual(('reset', 'settings'), task.steps)
        self.assertEqual(('available', None), self.judged(task, task.steps))

    def test_device_in_no_group_needs_the_default_policy(self):
        self.set_variant(cleaning_policy='reset-only')
        [task] = self.dirty()
        variant_admin.delete(self.db, 'H100')
        [task] = cleaning.tasks(self.db, 'h1')
        self.assertEqual(('reset', 'settings', 'canary'), task.steps)
        self.assertEqual('quarantined', self.judged(
            task, ('reset', 'settings'))[0])

    def test_evidence_of_each_step_is_in_the_history(self):
        [task] = self.dirty()
        self.judged(task, task.steps)
        with self.db.reader() as session:
            detail = session.scalars(sa.select(event_db.TABLE.c.detail).where(
                event_db.TABLE.c.kind == 'clean_passed')).one()
        for step in task.steps:
            self.assertIn(f'{step} passed: as it should be', detail)

    def test_verdict_on_a_cleaning_that_did_not_start_is_refused(self):
        [task] = self.dirty()
        exc = self.assertRaises(exception.Conflict, self.finish, task)
        self.assertIn(f'it is dirty, cleaning {task.token}', str(exc))
        self.assertEqual({'dirty': 1, 'available': 7}, self.states())

    def test_verdict_with_another_token_is_refused(self):
        [task] = self.dirty()
        self.start(task)
        self.assertRaises(exception.Conflict, self.finish, task, 'other')
        self.assertEqual({'cleaning': 1, 'available': 7}, self.states())

    def test_late_verdict_never_ends_the_next_cleaning(self):
        [old] = self.dirty()
        self.clean_all()
        tasks = self.dirty(8)
        [new] = [task for task in tasks
                 if task.device_uuid == old.device_uuid]
        self.start(new)
        self.assertRaises(exception.Conflict, self.finish, old)
        self.assertEqual('cleaning', self.row(new).state)


class DriverCapacityTest(vgpu_base.VGPUTestCase):

    def test_drivers_report_of_an_unsupported_gpu_is_stored(self):
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.domain.gpu.unsupported_reason',
            return_value='known'))
        self.test_drivers_report_with_the_verdict_is_stored()

    def test_drivers_report_with_the_verdict_is_stored(self):
        releases.release(self.db, base.uuids(self.ask(Q4=1)))
        [task] = cleaning.tasks(self.db, 'h1')
        self.assertEqual('T4-4Q', task.vgpu_type)
        cleaning.started(self.db, task.device_uuid, task.token, task.token)
        cleaning.finished(
            self.db, task.device_uuid, task.token, task.steps,
            cleaned.results(task.steps), driver_capacities={
                self.functions[0].id: vgpu.DriverCapacity(
                    available={'T4-4Q': 1})})
        self.assertEqual(5, self.remaining()['4Q'])


class OperatorReleaseTest(CleaningCase):

    def quarantined(self):
        [task] = self.dirty()
        self.clean_all(passed=False)
        return task

    def test_release_makes_it_dirty_with_a_token_of_its_own(self):
        task = self.quarantined()
        released.release(self.db, task.device_uuid, 'op@c1')
        [again] = cleaning.tasks(self.db, 'h1')
        self.assertNotEqual(task.token, again.token)
        self.assertEqual(task.assignment_uuid, again.assignment_uuid)
        self.assertIsNone(self.row(task).reason)
        self.assertEqual('operator_release', self.kinds()[-1])

    def test_verdict_of_the_cleaning_before_the_release_is_refused(self):
        task = self.quarantined()
        released.release(self.db, task.device_uuid, 'op@c1')
        self.assertRaises(exception.Conflict, self.start, task)

    def test_device_that_is_not_quarantined_is_not_released(self):
        device = device_admin.list_all(self.db)[0]
        self.assertRaises(
            exception.Conflict, released.release,
            self.db, device.uuid, 'op@c1')
        self.assertEqual({'available': 8}, self.states())

    def test_unknown_device_is_not_found(self):
        self.assertRaises(
            exception.NotFound, released.release, self.db,
            'none', 'op@c1')
