#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Tests of the events of refusals: none is lost, and few are rows."""

import dataclasses
import datetime
import threading

import fixtures
import sqlalchemy as sa
from oslo_db import exception as oslo_db_exception

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import refusal_events
from gpgpu_plugin.db import author
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import models
from gpgpu_plugin.objects import scheduling
from tests.unit.conductor import base

BY = author.Author(actor='host h1', request_id='req-1')


class RefusalCase(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.now = 0.0
        self.subject = self.other_conductor()
        self.log = self.useFixture(fixtures.FakeLogger('gpgpu_plugin'))

    def other_conductor(self):
        return refusal_events.RefusalEvents(self.db, lambda: self.now)

    def deny(self, instance='i1', reason='not_enough_available',
             subject=None):
        (subject or self.subject).denied(
            self.db.by(BY), dataclasses.replace(
                self.request(2, instance), project_id='p1'),
            exception.ClaimDenied(
                instance=instance, host='h1', reason=reason,
                detail='2 requested, 1 available'))

    def events(self, kind='claim_denied'):
        with self.db.reader() as session:
            found = session.scalars(
                sa.select(models.Event).where(models.Event.kind == kind)
                .order_by(models.Event.id)).all()
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
    """What tests/functional_db runs on each server."""

    def test_thousand_equal_refusals_are_one_row_and_two_statements(self):
        with self.statements() as found:
            for _ in range(1000):
                self.deny()
            self.subject.run_once()
        self.assertEqual(['INSERT', 'UPDATE'], [
            text.split()[0] for text in found
            if not text.startswith('BEGIN')])
        self.assertEqual([1000], self.counts())

    def test_decisions_are_stored_in_one_statement(self):
        with self.statements() as found:
            self.assertTrue(self.subject.filtered(
                self.db.by(author.Author(actor='scheduler s1')),
                [self.refusal(), self.refusal(instance_uuid='i2')]))
        self.assertEqual(1, len([text for text in found
                                 if text.startswith('INSERT')]))
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


class DeniedTest(RefusalCase):

    def test_event_has_reason_numbers_and_author(self):
        self.deny()
        [event] = self.events()
        self.assertEqual(
            ('h1', 'i1', 'p1', 'host h1', 'req-1', 'not_enough_available',
             '2 requested, 1 available', 1),
            (event.host, event.instance_uuid, event.project_id, event.actor,
             event.request_id, event.reason, event.detail, event.count))

    def test_thousand_refusals_of_many_threads_are_all_counted(self):
        def storm():
            for _ in range(125):
                self.deny()
        threads = [threading.Thread(target=storm) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.subject.run_once()
        self.assertEqual([1000], self.counts())

    def test_other_instance_and_other_reason_are_other_events(self):
        self.deny()
        self.deny('i2')
        self.deny(reason='host_unknown')
        self.assertEqual([1, 1, 1], self.counts())

    def test_refusal_after_a_minute_is_another_event(self):
        self.deny()
        self.deny()
        self.subject.run_once()
        self.now = refusal_events.PERIOD
        self.deny()
        self.assertEqual([2, 1], self.counts())

    def test_repetitions_before_the_next_minute_are_counted(self):
        self.deny()
        self.deny()
        self.now = refusal_events.PERIOD
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

    def test_refusal_that_cannot_be_stored_is_stored_next_time(self):
        with fixtures.MockPatchObject(
                event_db, 'add_refusal',
                side_effect=exception.DatabaseBusy(reason='locked')):
            self.deny()
        self.assertIn('Cannot record that a claim was denied',
                      self.log.output)
        self.assertNotIn('Traceback', self.log.output)
        self.deny()
        self.assertEqual([1], self.counts())

    def test_quiet_conductor_asks_nothing_of_the_database(self):
        self.deny()
        with self.statements() as found:
            self.subject.run_once()
        self.assertEqual([], found)

    def test_memory_is_bounded(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.refusal_events._LIMIT', 2))
        for instance in ('i1', 'i2', 'i3', 'i1'):
            self.deny(instance)
        self.assertEqual(['i1', 'i2', 'i3', 'i1'], [
            event.instance_uuid for event in self.events()])


class MalformedTest(RefusalCase):

    def test_text_of_a_malformed_claim_is_cut(self):
        self.deny(instance='i' * 100)
        [found] = self.events()
        self.assertEqual('i' * 36, found.instance_uuid)


class FilteredTest(RefusalCase):

    def test_nothing_refused_costs_no_statement(self):
        with self.statements() as found:
            self.assertTrue(self.subject.filtered(self.db, ()))
        self.assertEqual([], found)

    def failing(self, error):
        return fixtures.MockPatchObject(
            event_db, 'add_filtered', side_effect=error)

    def test_scheduler_sends_again_what_a_busy_database_did_not_take(self):
        with self.failing(exception.DatabaseBusy(reason='locked')):
            self.assertFalse(self.subject.filtered(self.db, [self.refusal()]))
        # Not tried with each call: a scheduler waits for the answer.
        with self.statements() as found:
            self.assertFalse(self.subject.filtered(self.db, [self.refusal()]))
        self.assertEqual([], found)
        self.now += refusal_events.PAUSE
        self.assertTrue(self.subject.filtered(self.db, [self.refusal()]))
        self.assertEqual(1, len(self.events('filter_refused')))

    def test_what_the_database_refuses_is_dropped(self):
        with self.failing(oslo_db_exception.DBDataError()):
            self.assertTrue(self.subject.filtered(self.db, [self.refusal()]))
        self.assertTrue(self.subject.filtered(self.db, [self.refusal()]))
        self.assertEqual(1, len(self.events('filter_refused')))
