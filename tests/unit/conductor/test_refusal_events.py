# SPDX-License-Identifier: Apache-2.0
"""Tests of the events of refusals: none is lost, and few are rows."""

import dataclasses
import datetime
import threading

import fixtures
import sqlalchemy as sa
from oslo_db import exception as oslo_db_exception

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import refusals as refusals_mod
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import transaction
from gpgpu_plugin.domain import event as event_rules
from gpgpu_plugin.objects import scheduling
from tests.unit.conductor import base

BY = transaction.Author(actor='host h1', request_id='req-1')


class RefusalCase(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.now, self.refused_kinds = 0.0, []
        self.subject = self.other_conductor()
        self.log = self.useFixture(fixtures.FakeLogger('gpgpu_plugin'))

    def other_conductor(self):
        return refusals_mod.RefusalRecorder(
            self.db, lambda: self.now, self.refused_kinds.append)

    def deny(self, instance='i1', reason='not_enough_available',
             subject=None):
        (subject or self.subject).denied(
            BY, dataclasses.replace(
                self.request(2, instance), project_id='p1'),
            exception.ClaimDenied(
                instance=instance, host='h1', reason=reason,
                detail='2 requested, 1 available'))

    def events(self, kind='claim_denied'):
        with self.db.reader() as session:
            found = session.execute(
                sa.select(event_db.TABLE).where(event_db.TABLE.c.kind == kind)
                .order_by(event_db.TABLE.c.id)).all()
            session.expunge_all()
            return found

    def refusal(self, **kwargs):
        return scheduling.FilterRefusal(**{
            'filter': 'GpuFilter', 'at': datetime.datetime(2026, 11, 24, 12),
            'instance_uuid': 'i1', 'project_id': 'p1', 'request_id': 'req-2',
            'reasons': {'not_enough_available': 3, 'host_unknown': 1},
            'passed': 0, 'detail': 'h1: 2 requested, 1 available', **kwargs})

    def counts(self):
        return [event.count for event in self.events()]


class RowsTest(RefusalCase):
    """Statements and rows, on SQLite and in tests/functional_db."""

    def test_thousand_equal_denials_are_one_row_and_three_statements(self):
        with self.statements() as found:
            for _ in range(1000):
                self.deny()
            self.assertEqual([], found)
            self.subject.run_once()
        self.assertEqual(['SELECT', 'INSERT', 'UPDATE'], [
            text.split()[0] for text in found
            if not text.startswith('BEGIN')])
        self.assertEqual([1000], self.counts())

    def test_refusals_of_many_callers_are_stored_at_once(self):
        self.deny()
        self.assertTrue(self.filtered([
            self.refusal(), self.refusal(instance_uuid='i2')]))
        with self.statements() as found:
            self.subject.run_once()
        self.assertLessEqual(len([text for text in found
                                  if text.startswith('INSERT')]), 3)
        [event, _] = self.events('filter_refused')
        self.assertEqual(
            (datetime.datetime(2026, 11, 24, 12), 'i1', 'p1', 'scheduler s1',
             'req-2', 'not_enough_available', None),
            (event.at, event.instance_uuid, event.project_id, event.actor,
             event.request_id, event.reason, event.host))
        self.assertEqual(
            'GpuFilter refused 4 hosts (host_unknown 1, '
            'not_enough_available 3) and left 0; the last one: h1: 2 '
            'requested, 1 available', event.detail)
        [event] = self.events()
        self.assertEqual(
            ('h1', 'i1', 'p1', 'host h1', 'req-1', 'not_enough_available',
             '2 requested, 1 available', 1),
            (event.host, event.instance_uuid, event.project_id, event.actor,
             event.request_id, event.reason, event.detail, event.count))

    def filtered(self, refusals):
        return self.subject.filtered(
            transaction.Author(actor='scheduler s1'), refusals)


class ObserverTest(RefusalCase):

    def test_requests_that_no_host_is_left_for_are_counted_once(self):
        refusals = [self.refusal(), self.refusal(
            instance_uuid='i2', passed=1)]
        for _ in range(2):
            self.subject.filtered(
                transaction.Author(actor='scheduler s1'), refusals)
        self.subject.no_candidate(
            transaction.Author(actor='Nova (c)'), 'i3', 'p1', 'x')
        self.deny()
        self.assertEqual(
            ['filter_refused', 'no_candidate'], self.refused_kinds)


class DeniedTest(RefusalCase):

    def test_thousand_denials_beside_transactions_are_all_counted(self):
        def storm():
            for _ in range(125):
                self.deny()
                self.subject.run_once()
        thread = threading.Thread(target=storm)
        thread.start()
        for _ in range(875):
            self.deny()
        thread.join()
        self.subject.run_once()
        self.assertEqual([1000], self.counts())

    def test_denial_while_others_are_stored_is_counted(self):
        store = event_db.store

        def slow(*args):
            self.deny()
            self.deny('i2')
            self.deny('i2')
            return store(*args)
        self.deny()
        with fixtures.MockPatchObject(event_db, 'store', slow):
            self.subject._store(self.subject._next())
        self.subject._count()
        self.subject.run_once()
        self.assertEqual([2, 2], self.counts())

    def test_other_instance_and_other_reason_are_other_events(self):
        self.deny()
        self.deny('i2')
        self.deny(reason='host_unknown')
        self.subject.run_once()
        self.assertEqual([1, 1, 1], self.counts())

    def test_denial_after_a_minute_is_another_event(self):
        self.deny()
        self.deny()
        self.now = refusals_mod.STORE_PERIOD
        self.deny()
        self.subject.run_once()
        self.assertEqual([2, 1], self.counts())

    def test_second_conductor_stores_an_event_of_its_own(self):
        other = self.other_conductor()
        for _ in range(5):
            self.deny()
            self.deny(subject=other)
        self.subject.run_once()
        other.run_once()
        self.assertEqual([5, 5], self.counts())

    def test_quiet_conductor_asks_nothing_of_the_database(self):
        self.deny()
        self.subject.run_once()
        with self.statements() as found:
            self.subject.run_once()
        self.assertEqual([], found)

    def test_more_than_one_transaction_takes_is_stored_in_several(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.refusals.STORE_CHUNK', 2))
        for number in range(5):
            self.deny(f'i{number}')
        self.subject.run_once()
        self.assertEqual([f'i{number}' for number in range(5)], [
            event.instance_uuid for event in self.events()])

    def test_text_of_a_malformed_claim_is_cut(self):
        self.deny(instance='i' * 100)
        self.subject.run_once()
        [found] = self.events()
        self.assertEqual('i' * 36, found.instance_uuid)


class QuotaTest(RefusalCase):
    """A project that boots what no host has, as fast as the API answers."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.domain.event.QUOTA_LIMIT', 3))

    def test_last_event_counts_what_exceeds_the_quota(self):
        for number in range(10):
            self.deny(f'i{number}')
            self.subject.filtered(BY, [
                self.refusal(instance_uuid=f'i{number}')])
        self.subject.run_once()
        for kind in ('claim_denied', 'filter_refused'):
            self.assertEqual(
                [('i0', 1), ('i1', 1), ('i2', 8)],
                [(event.instance_uuid, event.count)
                 for event in self.events(kind)])

    def test_quota_is_that_of_a_project_and_an_hour(self):
        for number in range(4):
            self.deny(f'i{number}')
        self.subject.filtered(BY, [
            self.refusal(instance_uuid=f'j{number}', project_id='p2')
            for number in range(3)])
        self.now = event_rules.QUOTA_WINDOW
        self.deny('i4')
        self.subject.run_once()
        self.assertEqual([1, 1, 2, 1], self.counts())
        self.assertEqual(3, len(self.events('filter_refused')))


class FailureTest(RefusalCase):

    def failing(self, error):
        return fixtures.MockPatchObject(
            event_db, 'store', side_effect=error)

    def test_refusals_wait_for_a_busy_database(self):
        self.deny()
        self.assertTrue(self.subject.filtered(BY, [self.refusal()]))
        with self.failing(exception.DatabaseBusy(reason='locked')):
            self.subject.run_once()
        self.assertIn('Cannot record what was refused, trying again',
                      self.log.output)
        self.assertNotIn('Traceback', self.log.output)
        self.deny()
        self.subject.run_once()
        self.assertEqual([2], self.counts())
        self.assertEqual(1, len(self.events('filter_refused')))

    def test_decisions_that_are_sent_again_are_recorded_once(self):
        # The scheduler got no answer to its first call.
        sent = [self.refusal(), self.refusal(instance_uuid='i2')]
        self.assertTrue(self.subject.filtered(BY, sent))
        self.subject.run_once()
        later = self.refusal(at=datetime.datetime(2026, 11, 24, 12, 0, 1))
        self.assertTrue(self.subject.filtered(BY, [*sent, later]))
        self.subject.run_once()
        self.assertEqual(3, len(self.events('filter_refused')))

    def test_counts_wait_for_a_busy_database(self):
        self.deny()
        self.subject.run_once()
        for error in (exception.DatabaseBusy(reason='locked'),
                      exception.DatabaseUnavailable(reason='away')):
            self.deny()
            with fixtures.MockPatchObject(
                    event_db, 'count_more', side_effect=error):
                self.subject.run_once()
            self.deny()
        self.subject.run_once()
        self.assertEqual([5], self.counts())
        self.subject.run_once()
        self.assertEqual([5], self.counts())

    def test_denials_during_a_count_are_counted_next(self):
        count_more = event_db.count_more

        def count(*args):
            self.deny()
            count_more(*args)
        self.deny()
        self.subject.run_once()
        self.deny()
        with fixtures.MockPatchObject(event_db, 'count_more', count):
            self.subject.run_once()
        self.assertEqual([2], self.counts())
        self.subject.run_once()
        self.assertEqual([3], self.counts())

    def test_what_the_database_refuses_is_dropped(self):
        self.deny()
        self.deny()
        with self.failing(oslo_db_exception.DBDataError()):
            self.subject.run_once()
        self.deny('i2')
        self.subject.run_once()
        self.assertEqual(['i2'], [
            event.instance_uuid for event in self.events()])

    def test_event_that_the_database_refuses_takes_no_other_with_it(self):
        for instance in ('i1', 'bad', 'i2'):
            self.deny(instance)
        store = event_db.store

        def fail(session, rows):
            if any(row['instance_uuid'] == 'bad' for row, _ in rows):
                raise oslo_db_exception.DBDataError()
            return store(session, rows)
        with fixtures.MockPatchObject(event_db, 'store', fail):
            self.subject.run_once()
        self.assertIn("'bad'", self.log.output)
        self.deny('i2')
        self.subject.run_once()
        self.assertEqual([('i1', 1), ('i2', 2)], [
            (event.instance_uuid, event.count) for event in self.events()])

    def test_database_that_refuses_all_is_not_asked_for_each(self):
        for number in range(20):
            self.deny(f'i{number}')
        with self.failing(oslo_db_exception.DBDataError()):
            self.subject.run_once()
        self.assertEqual(
            refusals_mod.STORE_FAILURES,
            self.log.output.count('; dropping it'))
        self.subject.run_once()
        self.assertIn('Dropped 3 refusals', self.log.output)
        self.assertEqual([f'i{number}' for number in range(3, 20)], [
            event.instance_uuid for event in self.events()])

    def test_memory_is_bounded(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.refusals._LIMIT', 2))
        for instance in ('i1', 'i2', 'i3'):
            self.deny(instance)
        # The scheduler keeps what there is no room for.
        self.assertFalse(self.subject.filtered(BY, [self.refusal()]))
        self.subject.run_once()
        self.assertIn('Dropped 1 refusals', self.log.output)
        self.assertTrue(self.subject.filtered(BY, [self.refusal()]))
        self.deny('i1')
        self.subject.run_once()
        self.assertEqual([('i1', 2), ('i2', 1)], [
            (event.instance_uuid, event.count) for event in self.events()])
