# SPDX-License-Identifier: Apache-2.0
"""Tests of the notifications that changes cause, one for each."""

import datetime

import sqlalchemy as sa

from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import notification as notification_db
from gpgpu_plugin.db import outbox
from gpgpu_plugin.db import usage as usage_db
from tests.fixtures import hosts
from tests.fixtures import notified
from tests.unit.conductor import base

NOW = datetime.datetime(2026, 11, 24, 12)


class NotificationCase(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.db.publish_as(notified.PUBLISHER)

    def new(self):
        """Return the types that were written since the last call."""
        found = notified.types(self.db)
        with self.db.writer() as session:
            session.execute(sa.delete(event_db.UNSENT))
        return found

    def data(self, number=-1):
        return notified.messages(self.db)[number][
            'payload']['gpgpu_object.data']


class LifeTest(NotificationCase):

    def test_life_of_a_device_is_one_notification_per_change(self):
        granted = self.claim()
        self.assertEqual(['device.update'], self.new())
        claims.activate(self.db, base.uuids(granted))
        self.assertEqual(['device.update', 'assignment.start'], self.new())
        claims.activate(self.db, base.uuids(granted))
        self.assertEqual([], self.new())
        releases.release(self.db, base.uuids(granted))
        self.assertEqual(['device.update', 'assignment.end'], self.new())
        releases.release(self.db, base.uuids(granted))
        self.assertEqual([], self.new())
        self.clean_all()
        self.assertEqual(['device.update'] * 2, self.new())

    def test_states_are_those_before_and_after(self):
        self.boot(2)
        self.assertEqual(
            [('available', 'provisioning')] * 2
            + [('provisioning', 'assigned')] * 2,
            [(data['old_state'], data['state']) for data in (
                message['payload']['gpgpu_object.data']
                for message in notified.messages(self.db)
                if message['event_type'] == 'gpgpu.device.update')])

    def test_claim_that_no_guest_used_has_neither_start_nor_end(self):
        releases.abort(self.db, base.uuids(self.claim()), touched=True,
                       fault=None)
        self.assertEqual(['device.update'] * 2, self.new())

    def test_failed_cleaning_is_one_error(self):
        releases.release(self.db, base.uuids(self.boot()))
        self.new()
        self.clean_all(passed=False)
        self.assertEqual('quarantined', self.data()['state'])
        self.assertEqual(['device.update', 'device.clean.error'], self.new())

    def test_fault_is_a_quarantine(self):
        granted = self.claim()
        self.new()
        releases.abort(self.db, base.uuids(granted), touched=True,
                       fault='dead')
        self.assertEqual('dead', self.data()['reason'])
        self.assertEqual(['device.quarantine'], self.new())

    def test_texts_of_a_host_are_cut(self):
        long = base.replace(0, serial='\u6f22' * 300, vfio_refusal='x' * 9999)
        for functions in ((long, *base.EIGHT[1:]), base.EIGHT[1:]):
            hosts.store(self.db, base.scan(functions))
        self.assertEqual('\u6f22' * 255, self.data()['serial'])
        self.assertTrue(self.data()['reason'].endswith('(9999 characters)'))

    def test_missing_device_is_one_notification_until_it_returns(self):
        for _ in range(2):
            hosts.store(self.db, base.scan(base.EIGHT[1:]))
        self.assertEqual(
            (False, None), (self.data()['present'],
                            self.data()['old_state']))
        self.assertEqual(['device.missing'], self.new())
        for _ in range(2):
            hosts.store(self.db, base.scan(base.EIGHT))
        # What returns is cleaned.
        self.assertEqual(['device.present', 'device.update'], self.new())

    def test_nothing_is_written_unless_enabled(self):
        self.db.publish_as(None)
        with self.statements() as statements:
            self.boot()
        self.assertEqual([], [statement for statement in statements
                              if 'unsent' in statement])
        self.assertEqual([], self.new())


class UsageTest(NotificationCase):

    def usage(self, granted):
        return granted.assignments[0].uuid

    def test_usage_that_ended_elsewhere_ends_once(self):
        granted = self.boot()
        self.new()
        for _ in range(2):
            with self.db.writer() as session:
                usage_db.end(session, [self.usage(granted)], NOW)
        self.assertEqual(['assignment.end'], self.new())

    def test_end_has_the_seconds_and_never_less_than_none(self):
        granted = self.boot()
        with self.db.writer() as session:
            session.execute(sa.update(usage_db.TABLE).values(began_at=NOW))
            usage_db.end(session, [self.usage(granted)],
                         NOW + datetime.timedelta(seconds=75))
        self.assertEqual(75, self.data()['seconds'])
        with self.db.writer() as session:
            session.execute(sa.update(usage_db.TABLE).values(ended_at=None))
            usage_db.end(session, [self.usage(granted)],
                         NOW - datetime.timedelta(seconds=75))
        data = self.data()
        self.assertEqual((0, data['began_at']),
                         (data['seconds'], data['ended_at']))

    def test_seconds_in_a_period_are_those_within_it(self):
        self.boot()
        hour = datetime.timedelta(hours=1)
        for began, ended, seconds in (
                (-hour, 2 * hour, 3600), (-hour, hour / 2, 1800),
                (hour / 4, None, 2700), (hour / 4, hour / 2, 900)):
            with self.db.writer() as session:
                session.execute(sa.update(usage_db.TABLE).values(
                    began_at=NOW + began,
                    ended_at=None if ended is None else NOW + ended))
                rows = usage_db.in_period(session, NOW, NOW + hour, 0, 10)
                notification_db.usages_exist(session, rows, NOW, NOW + hour)
            self.assertEqual(seconds, self.data()['seconds'])


class NamesTest(NotificationCase):

    def test_device_in_no_group_has_no_variant(self):
        other = base.function(8, device='ffff')
        hosts.store(self.db, base.scan((*base.EIGHT, other)))
        hosts.store(self.db, base.scan(base.EIGHT))
        data = self.data()
        self.assertEqual(('h1', None, '0000:08:00.0'), (
            data['host'], data['variant'], data['address']))


class RolledBackTest(NotificationCase):

    def test_change_that_was_rolled_back_leaves_none(self):
        granted = self.boot()
        self.new()
        found = {}

        def change(session):
            usage_db.end(session, [granted.assignments[0].uuid], NOW)
            event_db.write(session)
            found['before'] = outbox.number(session)
            raise ValueError
        self.assertRaises(ValueError, self.db.write, change)
        self.assertEqual({'before': 1}, found)
        self.assertEqual([], self.new())
