# SPDX-License-Identifier: Apache-2.0
"""Tests of the ledger: which record each end of a cleaning leaves."""

import dataclasses
import datetime
import threading

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import ledger as ledger_db
from gpgpu_plugin.db import purge
from gpgpu_plugin.domain import cleaning as rules
from gpgpu_plugin.domain import ledger
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.fixtures import released
from tests.unit.conductor import base
from tests.unit.conductor import test_cleaning


class LedgerCase(test_cleaning.CleaningCase):

    def history(self, device_uuid):
        return [record.fields for record in history.list_cleanings(
            self.db, device_uuid)]

    def last(self, device_uuid):
        return self.history(device_uuid)[-1]

    def verdicts(self, device_uuid):
        return [fields['verdict'] for fields in self.history(device_uuid)]

    def defect(self, device_uuid):
        return ledger.chain_defect(history.list_cleanings(self.db,
                                                          device_uuid),
                                   history.ledger_head(self.db, device_uuid))

    def ended(self, passed=True):
        """Let an instance have a GPU, and clean it; return its task."""
        [task] = self.dirty()
        self.clean_all(passed=passed)
        return task


class RecordTest(LedgerCase):

    def test_passed_cleaning_leaves_all_evidence(self):
        [task] = self.dirty()
        cleaning.started(self.db, task.device_uuid, task.token, 'a1')
        results = [rules.StepResult(
            step=step, outcome=rules.StepOutcome.PASSED,
            reason='as it should be',
            facts={'method': 'hot reset', 'bytes': 5}, seconds=1.5)
            for step in task.steps]
        self.finish(task, 'a1', results)
        [found] = self.history(task.device_uuid)
        started, finished = (datetime.datetime.fromisoformat(found.pop(name))
                             for name in ('started_at', 'finished_at'))
        self.assertLessEqual(started, finished)
        self.assertLess(
            abs(datetime.datetime.now(datetime.UTC) - finished),
            datetime.timedelta(hours=1))
        self.assertEqual({
            'device_uuid': task.device_uuid, 'number': 1,
            'previous_hash': '', 'host': 'h1', 'stable_id': task.stable_id,
            'address': task.address, 'serial': None, 'variant': 'H100',
            'verdict': 'passed', 'reason': None, 'policy': 'default',
            'steps': ['reset', 'settings', 'canary'],
            'results': [{'step': step, 'outcome': 'passed',
                         'reason': 'as it should be', 'seconds': 1.5,
                         'facts': {'method': 'hot reset', 'bytes': 5}}
                        for step in task.steps],
            'request': task.request, 'attempt': 'a1',
            'assignment_uuid': task.assignment_uuid, 'instance_uuid': 'i1',
            'project_id': 'p1', 'actor': None, 'version': 1}, found)

    def test_cleaning_is_that_after_the_last_tenant(self):
        first = self.ended()
        [assignment] = self.boot(instance='i2').assignments
        self.assertEqual(first.device_uuid, assignment.device_uuid)
        releases.release(self.db, [assignment.uuid])
        self.clean_all()
        self.assertEqual(
            [(first.assignment_uuid, 'i1'), (assignment.uuid, 'i2')],
            [(found['assignment_uuid'], found['instance_uuid'])
             for found in self.history(first.device_uuid)])

    def test_failed_cleaning_says_why(self):
        found = self.last(self.ended(passed=False).device_uuid)
        self.assertEqual(('failed', 'reset failed: looked at', 1), (
            found['verdict'], found['reason'], len(found['results'])))

    def test_step_that_timed_out_is_evidence_too(self):
        [task] = self.dirty()
        self.start(task)
        self.finish(task, results=cleaned.failed('no answer in 150 s'))
        found = self.last(task.device_uuid)
        self.assertEqual('no answer in 150 s', found['results'][0]['reason'])

    def test_call_that_is_repeated_leaves_one_record(self):
        task = self.ended()
        self.assertRaises(exception.Conflict, self.finish, task)
        self.assertEqual(['passed'], self.verdicts(task.device_uuid))

    def test_attempt_without_a_verdict_leaves_a_record(self):
        [task] = self.dirty()
        cleaning.started(self.db, task.device_uuid, task.token, 'a1')
        cleaning.started(self.db, task.device_uuid, 'a1', 'a2')
        # It comes too late, and leaves none.
        self.assertRaises(exception.Conflict, self.finish, task, 'a1')
        self.finish(task, 'a2')
        self.assertEqual(
            [('interrupted', 'a1'), ('passed', 'a2')],
            [(found['verdict'], found['attempt'])
             for found in self.history(task.device_uuid)])
        self.assertNotIn(None, [
            found['started_at'] for found in self.history(task.device_uuid)])

    def test_policy_that_became_stricter_is_said(self):
        [task] = self.dirty()
        self.set_variant(cleaning_policy='scrub', memory_mib=81920)
        self.start(task)
        self.finish(task)
        found = self.last(task.device_uuid)
        self.assertEqual(
            ('outdated', 'scrub', ['reset', 'settings', 'scrub', 'canary']),
            (found['verdict'], found['policy'], found['steps']))
        self.assertIn('scrub is required', found['reason'])

    def test_device_in_no_group_has_no_variant(self):
        [task] = self.dirty()
        variant_admin.delete(self.db, 'H100')
        self.clean_all()
        found = self.last(task.device_uuid)
        self.assertEqual(('passed', None, 'default', 'i1'), (
            found['verdict'], found['variant'], found['policy'],
            found['instance_uuid']))

    def test_release_by_an_operator_proves_nothing_and_names_who(self):
        task = self.ended(passed=False)
        released.release(self.db, task.device_uuid, 'op@c1')
        [again] = cleaning.tasks(self.db, 'h1')
        found = self.last(task.device_uuid)
        self.assertEqual(
            ('released', 'op@c1', [], 'cleaning failed: reset failed: '
                                      'looked at', again.request),
            (found['verdict'], found['actor'], found['results'],
             found['reason'], found['request']))
        self.clean_all()
        self.assertEqual(['failed', 'released', 'passed'],
                         self.verdicts(task.device_uuid))
        self.assertIsNone(self.defect(task.device_uuid))

    def test_quarantine_without_a_cleaning_leaves_a_record(self):
        [assignment] = self.claim().assignments
        releases.abort(self.db, [assignment.uuid], touched=True,
                       fault='bind failed')
        found = self.last(assignment.device_uuid)
        self.assertEqual(
            ('quarantined', 'bind failed', 'i1', None),
            (found['verdict'], found['reason'], found['instance_uuid'],
             found['attempt']))

    def test_device_that_was_swapped_leaves_a_record(self):
        task = self.ended()
        number = int(task.address[5:7])
        hosts.store(self.db, base.scan(
            base.replace(number, dsn='ff-00') if number == other else gpu
            for other, gpu in enumerate(base.EIGHT)))
        [other] = [device for device in device_admin.list_all(self.db)
                   if device.address == task.address and device.present]
        found = self.last(other.uuid)
        self.assertEqual('quarantined', found['verdict'])
        self.assertIn('dsn', found['reason'])

    def test_claim_that_touched_nothing_leaves_no_record(self):
        [assignment] = self.claim().assignments
        releases.abort(self.db, [assignment.uuid], touched=False, fault=None)
        self.assertEqual([], self.history(assignment.device_uuid))

    def test_transaction_that_fails_leaves_no_record(self):
        [task] = self.dirty()
        self.start(task)
        # It comes after the record.
        with fixtures.MockPatch('gpgpu_plugin.conductor.settle.settle',
                                side_effect=LookupError):
            self.assertRaises(LookupError, self.finish, task)
        self.assertEqual(('cleaning', []), (
            self.row(task).state, self.history(task.device_uuid)))
        self.finish(task)
        self.assertEqual(['passed'], self.verdicts(task.device_uuid))

    def test_two_that_finish_at_once_leave_one_record(self):
        [task] = self.dirty()
        self.start(task)
        barrier = threading.Barrier(2, timeout=300)
        refused = []

        def finish():
            barrier.wait()
            try:
                self.finish(task)
            except exception.Conflict as exc:
                refused.append(exc)
        threads = [threading.Thread(target=finish) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        self.assertEqual((1, ['passed']), (
            len(refused), self.verdicts(task.device_uuid)))
        self.assertIsNone(self.defect(task.device_uuid))


class ChainTest(LedgerCase):
    """Tests of a chain of three records."""

    def setUp(self):
        super().setUp()
        self.uuid = self.ended(passed=False).device_uuid
        released.release(self.db, self.uuid, 'op@c1')
        self.clean_all()
        self.assertIsNone(self.defect(self.uuid))

    def write(self, statement):
        with self.db.writer() as session:
            session.execute(statement)

    def test_row_that_was_changed_is_found(self):
        with self.db.reader() as session:
            content = session.scalar(
                sa.select(ledger_db.TABLE.c.content)
                .where(ledger_db.TABLE.c.number == 1))
        self.write(sa.update(ledger_db.TABLE).where(
            ledger_db.TABLE.c.number == 1).values(
                content=content.replace('"failed"', '"passed"')))
        self.assertRegex(self.defect(self.uuid), 'record 1: its content')

    def test_row_that_was_deleted_is_found(self):
        self.write(sa.delete(ledger_db.TABLE).where(
            ledger_db.TABLE.c.number == 2))
        self.assertRegex(self.defect(self.uuid), 'record 2: it is missing')

    def test_last_row_that_was_deleted_is_found(self):
        self.write(sa.delete(ledger_db.TABLE).where(
            ledger_db.TABLE.c.number == 3))
        self.assertRegex(self.defect(self.uuid), 'record 3: it is missing')

    def test_last_row_that_was_deleted_with_its_note_is_not_found(self):
        """An export that was made before shows it; the database does not."""
        before = history.list_cleanings(self.db, self.uuid)
        self.write(sa.delete(ledger_db.TABLE).where(
            ledger_db.TABLE.c.number == 3))
        self.write(sa.update(ledger_db.CHAINS).values(
            number=2, hash=before[1].hash))
        self.assertIsNone(self.defect(self.uuid))
        self.assertEqual(before[:2], history.list_cleanings(
            self.db, self.uuid))

    def test_chain_outlives_device_and_host(self):
        host_admin.delete(self.db, 'h1')
        hosts.store(self.db, base.scan(base.EIGHT))
        self.assertEqual(['failed', 'released', 'passed'],
                         self.verdicts(self.uuid))
        self.assertIsNone(self.defect(self.uuid))
        self.write(sa.delete(ledger_db.TABLE).where(
            ledger_db.TABLE.c.number == 3))
        self.assertRegex(self.defect(self.uuid), 'record 3: it is missing')

    def test_purge_leaves_the_chain_whole(self):
        self.assertGreater(
            purge.purge(self.db, datetime.datetime.max).events, 0)
        self.assertEqual(3, len(self.history(self.uuid)))
        self.assertIsNone(self.defect(self.uuid))
        self.boot(8)
        releases.release(self.db, [
            assignment.uuid for assignment in self.claim(8).assignments])
        self.clean_all()
        self.assertEqual(4, len(self.history(self.uuid)))
        self.assertIsNone(self.defect(self.uuid))


class SettingsTest(LedgerCase):
    """What a cleaning finds is compared with what the last one found."""

    def clean_with(self, task, rom, vendor='10de'):
        """Clean a GPU that has an option ROM; return the last record."""
        cleaning.started(self.db, task.device_uuid, task.token, 'x')
        facts = rules.settings_facts(
            {task.stable_id: {'vendor': vendor}}, {'option ROM': rom})
        self.finish(task, 'x', [
            dataclasses.replace(result, facts=facts)
            if result.step == rules.SETTINGS else result
            for result in cleaned.results(task.steps)])
        return self.last(task.device_uuid)

    def again(self, task):
        """Let an instance have all GPUs; return the task of this one."""
        return next(found for found in self.dirty(8)
                    if found.device_uuid == task.device_uuid)

    def test_same_settings_pass(self):
        [task] = self.dirty()
        for _ in range(2):
            self.assertEqual('passed', self.clean_with(task, 'aa')['verdict'])
            self.clean_all()
            task = self.again(task)

    def test_other_settings_fail_whatever_the_host_says(self):
        [task] = self.dirty()
        self.clean_with(task, 'aa')
        found = self.clean_with(self.again(task), 'bb', '1234')
        self.assertEqual('failed', found['verdict'])
        self.assertIn(
            f'settings failed: it differs from what the last cleaning that '
            f'passed found: '
            f'option_rom_sha256 was aa, is bb; vendor of {task.stable_id} was '
            f'10de, is 1234', found['reason'])
        self.assertEqual('quarantined', device_admin.show(
            self.db, task.device_uuid).state)

    def test_host_learns_that_settings_differ_before_it_is_recorded(self):
        [task] = self.dirty()
        self.clean_with(task, 'aa')
        task = self.again(task)
        self.start(task)
        self.assertIn('option_rom_sha256 was aa, is none', cleaning.failure(
            self.db, task.device_uuid, task.token,
            cleaned.results(task.steps)))

    def test_operator_accepts_other_settings(self):
        [task] = self.dirty()
        self.clean_with(task, 'aa')
        self.clean_with(self.again(task), 'bb')
        released.release(self.db, task.device_uuid, 'root@x')
        [task] = [found for found in cleaning.tasks(self.db, 'h1')
                  if found.device_uuid == task.device_uuid]
        self.assertEqual('passed', self.clean_with(task, 'bb')['verdict'])
        self.clean_all()
        self.assertEqual('failed', self.clean_with(
            self.again(task), 'aa')['verdict'])

    def test_settings_that_are_not_said_fail(self):
        [task] = self.dirty()
        self.clean_with(task, 'aa')
        self.clean_all()
        task = self.again(task)
        self.start(task)
        self.finish(task)
        self.assertIn('option_rom_sha256 was aa, is none',
                      self.last(task.device_uuid)['reason'])
