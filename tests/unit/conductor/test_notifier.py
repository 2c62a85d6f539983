# SPDX-License-Identifier: Apache-2.0
"""Tests of the sender of notifications: each at least once, in order."""

import threading

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import notifier
from gpgpu_plugin.db import outbox
from gpgpu_plugin.domain import event
from tests.fixtures import patience
from tests.unit.db import test_outbox


class Broker:
    """Publisher that keeps what it gets; also what counts notifications.

    :ivar fails_after: number of messages that it takes; None: all
    """

    def __init__(self):
        self.got = []
        self.fails_after = None
        self.on_publish = lambda: None
        self.published_, self.failed, self.dropped = 0, 0, 0
        self.closed = False

    def publish(self, message):
        if self.fails_after is not None:
            if self.fails_after == 0:
                raise exception.BrokerUnavailable(
                    hosts='b1:5672', reason='refused')
            self.fails_after -= 1
        self.got.append(message['payload']['gpgpu_object.data'][
            'instance_uuid'])
        self.on_publish()

    def close(self):
        self.closed = True

    def published(self, number):
        self.published_ += number

    def publish_failed(self):
        self.failed += 1

    def notifications_dropped(self, number):
        self.dropped += number


class NotifierCase(test_outbox.OutboxCase):

    def setUp(self):
        super().setUp()
        self.now = 0.0
        self.broker = Broker()
        self.subject = self.conductor()
        self.log = self.useFixture(fixtures.FakeLogger('gpgpu_plugin'))

    def conductor(self, limit=1000, **options):
        return notifier.Notifier(
            self.db, self.broker, self.broker, limit=limit,
            clock=lambda: self.now, **options)


class SendTest(NotifierCase):

    def test_all_are_sent_in_order_and_deleted(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.notifier.BATCH', 3))
        self.write(10)
        self.assertEqual(notifier.INTERVAL, self.subject.run_once())
        self.assertEqual([f'i{number}' for number in range(10)],
                         self.broker.got)
        self.assertEqual([], self.waiting())
        self.assertEqual(10, self.broker.published_)

    def test_broker_that_is_away_gets_the_rest_later(self):
        self.write(5)
        self.broker.fails_after = 2
        self.subject.run_once()
        self.assertEqual(['i2', 'i3', 'i4'], self.instances())
        self.assertEqual((2, 1), (self.broker.published_,
                                  self.broker.failed))
        self.assertIn('b1:5672', self.log.output)
        self.broker.fails_after = None
        self.subject.run_once()
        self.assertEqual([f'i{number}' for number in range(5)],
                         self.broker.got)

    def test_pauses_become_longer_up_to_a_limit(self):
        self.write(1)
        self.broker.fails_after = 0
        pauses = [self.subject.run_once() for _ in range(7)]
        self.assertEqual([2, 4, 8, 16, 30, 30, 30], pauses)
        self.broker.fails_after = None
        self.assertEqual(notifier.INTERVAL, self.subject.run_once())

    def test_other_conductor_sends_if_this_one_cannot(self):
        self.write(2)
        self.broker.fails_after = 0
        self.subject.run_once()
        self.broker.fails_after = None
        self.conductor().run_once()
        self.assertEqual(['i0', 'i1'], self.broker.got)

    def test_only_one_of_two_sends(self):
        self.write(3)
        other = self.conductor()
        self.broker.on_publish = other.run_once
        self.subject.run_once()
        self.assertEqual(['i0', 'i1', 'i2'], self.broker.got)

    def test_what_was_sent_is_sent_again_if_it_could_not_be_deleted(self):
        self.write(2)
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.db.outbox.delete', self.fail_to_delete):
            self.subject.run_once()
        self.subject.run_once()
        self.assertEqual(['i0', 'i1'] * 2, self.broker.got)
        self.assertEqual([], self.waiting())

    @staticmethod
    def fail_to_delete(session, sent):
        raise exception.DatabaseUnavailable(reason='it is away')

    def test_conductor_writes_nothing_while_nothing_waits(self):
        with fixtures.MonkeyPatch('gpgpu_plugin.db.api.Database.write',
                                  lambda *args: self.fail('written')):
            self.assertEqual(notifier.INTERVAL, self.subject.run_once())
        self.assertEqual('', self.log.output)

    def test_sender_without_its_lease_stops(self):
        self.write(3)
        got_by_lease = []

        def acquire(*args, acquire=outbox.acquire):
            got_by_lease.append(len(self.broker.got))
            return acquire(*args)

        def pass_time():
            self.now += notifier.LEASE + 1
        self.broker.on_publish = pass_time
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.db.outbox.acquire', acquire):
            self.subject.run_once()
        # It goes on, with a new lease each time.
        self.assertEqual([0, 1, 2], got_by_lease)
        self.assertEqual(['i0', 'i1', 'i2'], self.broker.got)
        self.assertEqual([], self.waiting())

    def test_error_of_ours_does_not_end_the_thread(self):
        self.write(1)
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.db.outbox.waiting', self.fail_to_delete):
            self.assertEqual(notifier.MAX_PAUSE, self.subject.run_once())
        self.subject.run_once()
        self.assertEqual(['i0'], self.broker.got)


class DropTest(NotifierCase):

    def test_notification_that_is_too_large_is_dropped_alone(self):
        self.write(1, detail='x' * outbox.MAX_BYTES)
        self.write(1, first=1)
        self.subject.run_once()
        self.assertEqual(['i1'], self.broker.got)
        self.assertEqual((1, 1), (self.broker.dropped,
                                  self.broker.published_))
        self.assertIn('have more than 262144 bytes', self.log.output)
        self.assertEqual([], self.waiting())

    def test_oldest_above_the_limit_are_dropped(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.outbox.CHUNK', 2))
        self.write(8)
        self.broker.fails_after = 0
        self.conductor(limit=3).run_once()
        self.assertEqual(['i5', 'i6', 'i7'], self.instances())
        self.assertEqual(5, self.broker.dropped)
        self.assertIn('more than 3 events waited', self.log.output)


class ThreadTest(NotifierCase):

    def test_thread_sends_until_it_is_stopped(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.notifier.INTERVAL', 0.01))
        self.subject = self.conductor()
        self.subject.start()
        self.write(2)
        self.assertTrue(patience.wait_until(
            lambda: self.broker.got == ['i0', 'i1']))
        self.subject.stop()
        self.assertTrue(self.broker.closed)
        self.write(1, first=2)
        with self.db.reader() as session:
            # Another conductor need not wait for the end of the lease.
            self.assertTrue(outbox.may_send(session, 'other'))
        self.assertEqual(['i0', 'i1'], self.broker.got)

    def test_stop_ends_after_the_notification_under_way(self):
        self.write(5)
        under_way, go_on = threading.Event(), threading.Event()

        def publish():
            under_way.set()
            go_on.wait(patience.LONG)
        self.broker.on_publish = publish
        self.subject.start()
        self.assertTrue(under_way.wait(patience.LONG))
        stopper = threading.Thread(target=self.subject.stop)
        stopper.start()
        self.assertTrue(patience.wait_until(self.subject._stopped.is_set))
        go_on.set()
        stopper.join(patience.LONG)
        self.assertFalse(stopper.is_alive())
        self.assertEqual(['i0'], self.broker.got)
        self.assertEqual(['i1', 'i2', 'i3', 'i4'], self.instances())


class AuditTest(NotifierCase):

    def test_periods_are_searched_for_now_and_then(self):
        found = []
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.notifier.audit_usage',
            lambda db, period, is_stopped: found.append(period)))
        subject = self.conductor(period=event.AuditPeriod.HOUR)
        subject.run_once()
        self.now += notifier.AUDIT_INTERVAL / 2
        subject.run_once()
        self.assertEqual(['hour'], found)
        self.now += notifier.AUDIT_INTERVAL
        subject.run_once()
        self.assertEqual(['hour'] * 2, found)

    def test_audit_that_fails_does_not_keep_others_from_being_sent(self):
        def fail(db, period, is_stopped):
            raise KeyError
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.notifier.audit_usage', fail))
        self.write(1)
        self.conductor(period=event.AuditPeriod.HOUR).run_once()
        self.assertEqual(['i0'], self.broker.got)
        self.assertIn('Cannot notify of the usage', self.log.output)

    def test_without_a_period_nothing_is_searched_for(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.notifier.audit_usage',
            lambda *args: self.fail('searched')))
        self.assertEqual(notifier.INTERVAL, self.subject.run_once())
        self.assertNotIn('searched', self.log.output)
