# SPDX-License-Identifier: Apache-2.0
"""Tests of notifications that wait, and of the lease of their sender."""

import datetime

import sqlalchemy as sa

from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import outbox
from gpgpu_plugin.domain import event
from gpgpu_plugin.objects import history
from tests.unit.db import base

PUBLISHER = 'gpgpu-conductor:c1'


def refusal(number=0, kind='claim_denied', detail=None):
    """Return an event with a notification, to be stored."""
    return {'kind': kind, 'actor': 'test'}, [(
        event.EventType.REQUEST_REFUSE, history.RefusalPayload(
            refused_by='GpuFilter', instance_uuid=f'i{number}',
            project_id=None, host=None, reason='host_draining',
            hosts_refused={}, hosts_left=None, detail=detail))]


class OutboxCase(base.DatabaseTestCase):

    def setUp(self):
        super().setUp()
        self.db.publish_as(PUBLISHER)

    def write(self, count, first=0, **values):
        with self.db.writer() as session:
            event_db.store(session, [
                refusal(number, **values)
                for number in range(first, first + count)])

    def waiting(self, limit=100):
        with self.db.reader() as session:
            return outbox.waiting(session, limit)

    def instances(self):
        return [message['payload']['gpgpu_object.data']['instance_uuid']
                for row in self.waiting() for message in row.messages]

    def events(self):
        with self.db.reader() as session:
            return session.scalars(sa.select(event_db.TABLE.c.kind)).all()

    def call(self, function, *args):
        with self.db.writer() as session:
            return function(session, *args)


class WaitingTest(OutboxCase):

    def test_notification_has_the_fields_of_oslo_messaging(self):
        self.write(1)
        [row] = self.waiting()
        [message] = row.messages
        self.assertEqual(
            {'message_id', 'publisher_id', 'event_type', 'priority',
             'payload', 'timestamp'}, set(message))
        self.assertEqual(
            (PUBLISHER, 'gpgpu.request.refuse', 'INFO'),
            (message['publisher_id'], message['event_type'],
             message['priority']))

    def test_event_has_no_notification_unless_enabled(self):
        self.db.publish_as(None)
        self.write(1)
        self.assertEqual(['claim_denied'], self.events())
        self.assertEqual([], self.waiting())

    def test_oldest_are_first(self):
        self.write(3)
        self.write(2, first=3)
        self.assertEqual([f'i{number}' for number in range(5)],
                         self.instances())
        self.assertEqual(2, len(self.waiting(2)))

    def test_notification_that_is_too_large_is_not_read(self):
        self.write(1, detail='x' * outbox.MAX_BYTES)
        self.write(1, first=1, detail='x' * (outbox.MAX_BYTES - 2000))
        self.assertEqual([0, 1], [
            len(row.messages) for row in self.waiting()])


class DeleteTest(OutboxCase):

    def test_only_what_was_sent_waits_no_more(self):
        self.write(3)
        self.call(outbox.delete, self.waiting(2))
        self.assertEqual(['i2'], self.instances())
        self.assertEqual(['claim_denied'] * 3, self.events())

    def test_messages_are_not_kept_after_they_were_sent(self):
        self.write(2)
        self.call(outbox.delete, self.waiting(1))
        self.assertEqual([False, True], [
            text is not None for text in self.call(
                lambda session: session.scalars(sa.select(
                    outbox._EVENTS.c.notifications).order_by(
                        outbox._EVENTS.c.id)).all())])

    def test_event_that_is_no_history_goes_and_its_id_with_it(self):
        self.write(1, kind='exists')
        sent = self.waiting()
        self.call(outbox.delete, sent)
        self.assertEqual([], self.events())
        self.write(1, first=1, kind='exists')
        # Another conductor may be late.
        self.call(outbox.delete, sent)
        self.assertEqual(['i1'], self.instances())


class LeaseTest(OutboxCase):

    def test_one_sends_at_a_time(self):
        self.write(1)
        self.assertTrue(self.call(outbox.acquire, 'a', 60))
        self.assertFalse(self.call(outbox.acquire, 'b', 60))
        self.assertTrue(self.call(outbox.acquire, 'a', 60))
        self.assertTrue(self.call(outbox.may_send, 'a'))
        self.assertFalse(self.call(outbox.may_send, 'b'))

    def test_lease_that_was_given_up_is_free(self):
        self.write(1)
        self.call(outbox.acquire, 'a', 60)
        self.call(outbox.give_up, 'b')
        self.assertFalse(self.call(outbox.acquire, 'b', 60))
        self.call(outbox.give_up, 'a')
        self.assertTrue(self.call(outbox.may_send, 'b'))
        self.assertTrue(self.call(outbox.acquire, 'b', 60))

    def test_lease_that_has_ended_is_free(self):
        self.write(1)
        self.call(outbox.acquire, 'a', -1)
        self.assertTrue(self.call(outbox.may_send, 'b'))
        self.assertTrue(self.call(outbox.acquire, 'b', 60))
        self.assertFalse(self.call(outbox.acquire, 'a', 60))

    def test_nobody_sends_what_does_not_wait(self):
        self.assertFalse(self.call(outbox.may_send, 'a'))


class DropTest(OutboxCase):

    def test_oldest_above_the_limit_are_dropped(self):
        self.write(5)
        self.assertEqual(2, self.call(outbox.drop_oldest, 3))
        self.assertEqual(['i2', 'i3', 'i4'], self.instances())
        self.write(1, first=5)
        self.assertEqual(1, self.call(outbox.drop_oldest, 3))
        self.assertEqual(6, len(self.events()))

    def test_nothing_within_the_limit_is_dropped(self):
        for limit in (0, 3):
            self.assertEqual(0, self.call(outbox.drop_oldest, limit))
        self.write(5)
        # The ids are further apart than the limit.
        self.call(outbox.delete, self.waiting()[1:4])
        self.assertEqual(0, self.call(outbox.drop_oldest, 3))


class StateTest(OutboxCase):

    def test_there_is_one_state(self):
        with self.db.writer() as session:
            self.assertEqual((None, 0, None, None),
                             outbox.lock_state(session))
            self.assertEqual(['all'], session.scalars(
                sa.select(outbox.STATES.c.name)).all())

    def test_state_is_stored_as_it_is_set(self):
        state = outbox.AuditState(
            audited_until=datetime.datetime(2026, 10, 31, 12),
            audited_usage_id=7, audited_since=None, auditing_until=None)
        self.call(outbox.set_state, state)
        self.assertEqual(state, self.call(outbox.lock_state))
