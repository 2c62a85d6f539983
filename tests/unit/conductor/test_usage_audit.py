# SPDX-License-Identifier: Apache-2.0
"""Tests of ``exists`` notifications: one per usage and period."""

import datetime
import logging

import fixtures
import sqlalchemy as sa

from gpgpu_plugin.conductor import notifier
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import outbox
from gpgpu_plugin.domain import event
from tests.fixtures import clocks
from tests.fixtures import hosts
from tests.fixtures import notified
from tests.unit.conductor import base

NOON = datetime.datetime(2026, 11, 24, 12)
HOUR = datetime.timedelta(hours=1)
MINUTE = datetime.timedelta(minutes=1)
_Period = event.AuditPeriod


class UsageAuditTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.now = NOON + 30 * MINUTE
        self.useFixture(clocks.Clocks(lambda: self.now))
        self.run_at(self.now)
        self.db.publish_as(notified.PUBLISHER)

    def run_at(self, at, period=_Period.HOUR):
        """Return instance, hour and seconds of what is notified."""
        with self.db.writer() as session:
            session.execute(sa.delete(event_db.UNSENT))
        self.now = at
        notifier.audit_usage(self.db, period)
        return [(data['instance_uuid'], int(
            data['audit_period_beginning'][11:13]), data['seconds'])
            for data in notified.existing(self.db)]

    def test_each_usage_has_one_in_each_period_after_its_end(self):
        self.boot(2)
        self.assertEqual([], self.run_at(NOON + 59 * MINUTE))
        # What was committed late would be missing.
        self.assertEqual([], self.run_at(NOON + HOUR))
        self.assertEqual([('i1', 12, 1800)] * 2,
                         self.run_at(NOON + HOUR + 2 * MINUTE))
        self.assertEqual([], self.run_at(NOON + HOUR + 3 * MINUTE))
        self.assertEqual([('i1', 13, 3600)] * 2,
                         self.run_at(NOON + 2 * HOUR + 2 * MINUTE))

    def test_sum_of_the_seconds_is_the_usage(self):
        granted = self.boot()
        self.now = NOON + 2 * HOUR + 20 * MINUTE
        releases.release(self.db, base.uuids(granted))
        found = self.run_at(NOON + 5 * HOUR)
        self.assertEqual([('i1', 12, 1800), ('i1', 13, 3600),
                          ('i1', 14, 1200)], found)

    def test_more_than_one_chunk_has_each_once(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.notifier.AUDIT_CHUNK', 3))
        for number in range(7):
            self.boot(1, f'i{number}')
        self.assertEqual(
            [f'i{number}' for number in range(7)],
            [instance for instance, _, _ in self.run_at(
                NOON + HOUR + 2 * MINUTE)])

    def test_chunk_that_failed_is_written_once(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.notifier.AUDIT_CHUNK', 2))
        for number in range(4):
            self.boot(1, f'i{number}')
        stops = iter([False, True])
        self.now = NOON + HOUR + 2 * MINUTE
        with self.db.writer() as session:
            session.execute(sa.delete(event_db.UNSENT))
        notifier.audit_usage(self.db, _Period.HOUR, lambda: next(stops))
        self.assertEqual(['assignment.exists'] * 2, notified.types(self.db))
        self.assertEqual(['i2', 'i3'], [
            instance for instance, _, _ in self.run_at(self.now)])

    def audited_in_part(self, before, after):
        """Return the seconds of usages of the day, by assignment.

        When half of the notifications of the first period are written, the
        length of the periods changes.

        :returns: those of the first chunk, those of the others
        """
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.notifier.AUDIT_CHUNK', 2))
        uuids = [base.uuids(self.boot(2, instance))
                 for instance in ('i1', 'i2')]
        stops = iter([False, True])
        self.now = NOON + 12 * HOUR + 2 * MINUTE
        notifier.audit_usage(self.db, before, lambda: next(stops))
        notifier.audit_usage(self.db, after)
        found = notified.seconds(self.db)
        return [[found[uuid] for uuid in some] for some in uuids]

    def test_hour_that_was_begun_is_completed_by_days(self):
        # The day of noon, to midnight.
        self.assertEqual([[11.5 * 3600] * 2] * 2,
                         self.audited_in_part(_Period.HOUR, _Period.DAY))

    def test_day_that_was_begun_is_completed_by_hours(self):
        self.assertEqual([[11.5 * 3600] * 2] * 2,
                         self.audited_in_part(_Period.DAY, _Period.HOUR))

    def test_usages_of_a_period_that_was_begun_are_audited_until_its_end(self):
        state = outbox.AuditState(
            audited_until=NOON + HOUR, audited_usage_id=500,
            audited_since=NOON, auditing_until=NOON + 2 * HOUR)
        self.assertEqual(NOON + 2 * HOUR, outbox.audited_until(state, 7))
        self.assertEqual(NOON + HOUR, outbox.audited_until(state, 501))

    def test_time_before_the_first_audit_is_not_made_up_for(self):
        origin, left = self.evacuated_in_vain()
        with self.db.writer() as session:
            session.execute(sa.update(outbox.STATES).values(
                audited_since=NOON + HOUR))
        self.run_at(NOON + 3 * HOUR + 2 * MINUTE)
        releases.compare_allocations(
            self.db, 'h1', {}, left, 1, origin, used=left)
        self.assertEqual(7200, notified.existing(self.db)[-1]['seconds'])

    def evacuated_in_vain(self):
        """Return origin and assignments whose usage ends at 12:40."""
        self.report_second_host()
        origin = hosts.origin('h1', base.node_uuid('h1'))
        left = base.uuids(self.boot())
        self.now = NOON + 40 * MINUTE
        elsewhere = base.uuids(self.boot(host='h2'))
        self.now = NOON + 50 * MINUTE
        releases.release(self.db, elsewhere)
        return origin, left

    def test_usage_that_goes_on_is_audited_for_the_time_between(self):
        """Its host has it, although another one claimed for the instance."""
        origin, left = self.evacuated_in_vain()
        self.assertEqual([('i1', 12, 600), ('i1', 12, 600)],
                         self.run_at(NOON + 3 * HOUR + 2 * MINUTE))
        self.now = NOON + 3 * HOUR + 10 * MINUTE
        releases.compare_allocations(
            self.db, 'h1', {}, left, 1, origin, used=left)
        [data] = notified.existing(self.db)[2:]
        self.assertEqual(
            (left[0], '2026-11-24T12:40:00Z', '2026-11-24T15:00:00Z',
             140 * 60), tuple(data[name] for name in (
                 'uuid', 'audit_period_beginning', 'audit_period_ending',
                 'seconds')))
        self.now += 10 * MINUTE
        releases.release(self.db, left, origin)
        self.assertEqual([('i1', 15, 1200)],
                         self.run_at(NOON + 4 * HOUR + 2 * MINUTE))

    def test_periods_without_a_conductor_are_made_up_for(self):
        self.boot()
        found = self.run_at(NOON + 4 * HOUR)
        self.assertEqual([12, 13, 14], [hour for _, hour, _ in found])

    def test_only_some_periods_are_made_up_for(self):
        self.boot()
        found = self.run_at(NOON + 100 * HOUR + 2 * MINUTE)
        self.assertEqual(notifier.AUDIT_MISSED, len(found))
        self.assertEqual(15, found[-1][1])

    def test_longer_period_begins_where_the_shorter_ended(self):
        self.boot()
        self.run_at(NOON + HOUR + 2 * MINUTE)
        # Eleven hours are left of the day.
        self.assertEqual([('i1', 13, 39600)], self.run_at(
            NOON + 13 * HOUR, _Period.DAY))

    def audit_ahead(self):
        """Audit some of a period by a clock that is a year ahead."""
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.notifier.AUDIT_CHUNK', 1))
        self.boot(2)
        stops = iter([False, False, True])
        self.now += datetime.timedelta(days=365)
        notifier.audit_usage(self.db, _Period.HOUR, lambda: next(stops))

    def test_audit_goes_on_after_a_clock_was_ahead(self):
        log = self.useFixture(fixtures.FakeLogger(level=logging.ERROR))
        self.audit_ahead()
        self.assertEqual('', log.output)
        self.assertEqual([], self.run_at(NOON + HOUR + 2 * MINUTE))
        for part in ('2027-11-23 13:00:00', '2026-11-24 13:00:00', 'clock'):
            self.assertIn(part, log.output)
        self.assertEqual(1, log.output.count('exists'))
        self.assertEqual([('i1', 13, 3600)] * 2,
                         self.run_at(NOON + 2 * HOUR + 2 * MINUTE))
        self.assertEqual(1, log.output.count('exists'))

    def test_first_audit_by_a_clock_that_was_ahead_promises_nothing(self):
        with self.db.writer() as session:
            session.execute(sa.update(outbox.STATES).values(
                audited_since=NOON + 100 * HOUR,
                audited_until=NOON + 100 * HOUR))
        self.run_at(NOON + 2 * MINUTE)
        with self.db.reader() as session:
            state = session.execute(sa.select(outbox.STATES)).one()
            self.assertEqual((NOON, NOON), (
                state.audited_since, state.audited_until))

    def test_period_of_which_a_clock_was_a_little_ahead_is_written_once(self):
        self.boot(1)
        log = self.useFixture(fixtures.FakeLogger(level=logging.ERROR))
        self.assertEqual([('i1', 12, 1800)],
                         self.run_at(NOON + HOUR + 2 * MINUTE))
        self.assertEqual([], self.run_at(NOON + 59 * MINUTE))
        self.assertEqual([], self.run_at(NOON + HOUR + 2 * MINUTE))
        self.assertEqual('', log.output)


class AuditClockTest(base.ConductorTestCase):
    """Tests of the clock that says which periods have ended."""

    def test_clock_of_the_conductor_does_not_matter(self):
        before = clocks.now()
        for days in (-365, 365):
            with clocks.ConductorClock(days * 86400):
                notifier.audit_usage(self.db, _Period.HOUR)
        with self.db.reader() as session:
            until = session.scalars(
                sa.select(outbox.STATES.c.audited_until)).one()
        # An hour may end meanwhile.
        self.assertIn(until, {
            event.period_beginning(_Period.HOUR, at - notifier.AUDIT_DELAY)
            for at in (before, clocks.now())})
