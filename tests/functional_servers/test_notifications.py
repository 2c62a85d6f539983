# SPDX-License-Identifier: Apache-2.0
"""Tests of notifications over RabbitMQ: none is lost, however it fails."""

import collections
import threading
import uuid

import fixtures
import kombu
import oslo_messaging
import sqlalchemy as sa
from testtools import content

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import service
from gpgpu_plugin.db import api
from gpgpu_plugin.db import outbox
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import database
from tests.fixtures import notified
from tests.fixtures import patience
from tests.fixtures import proxy
from tests.fixtures import services
from tests.unit.conductor import base

ROUNDS = 20
EVENTS = 5
"""Events of a device that is used once."""

PER_DEVICE = 7
"""Their notifications: five states, start and end."""


class Consumer:
    """Endpoint that counts what comes, by message id and in order."""

    def __init__(self):
        self.times = collections.Counter()
        self.payloads = []

    def info(self, ctxt, publisher_id, event_type, payload, metadata):
        message_id = metadata['message_id']
        if not self.times[message_id]:
            self.payloads.append((event_type, payload['gpgpu_object.data']))
        self.times[message_id] += 1

    warn = error = info

    @property
    def repeated(self):
        return self.times.total() - len(self.times)


class NotificationCase(base.ConductorTestCase):
    """A broker behind a proxy; the consumer reaches it without."""

    server = services.POSTGRESQL

    def setUp(self):
        services.require(self, self.server, services.RABBITMQ)
        super().setUp()
        rpc_transport.register_notification_opts(self.conf)
        self.topic = f'notify-{uuid.uuid4().hex[:8]}'
        url = sa.make_url(services.RABBITMQ)
        self.addCleanup(self.delete_queues)
        self.way = self.useFixture(
            proxy.Proxy((url.host, url.port or 5672)))
        for name, value in (
                ('driver', ['messagingv2']), ('topics', [self.topic]),
                ('transport_url', url.set(
                    host='127.0.0.1', port=self.way.port)
                    .render_as_string(hide_password=False))):
            self.conf.set_override(
                name, value, 'oslo_messaging_notifications')

    def delete_queues(self):
        with kombu.Connection(services.RABBITMQ.replace(
                'rabbit:', 'amqp:', 1)) as connection:
            for priority in ('info', 'warn', 'error'):
                connection.default_channel.queue_delete(
                    f'{self.topic}.{priority}')

    def database(self):
        self.made = database.ServerDatabase(
            self.conf, self.server, content=self.content)
        return self.made

    def conductor(self, db=None):
        conductor = service.ConductorService(
            self.conf, rpc_transport.get_transport(self.conf),
            db or api.Database(self.conf, self.made.connection))
        conductor.start()
        self.addCleanup(conductor.stop)
        return conductor

    def consume(self):
        consumer = Consumer()
        transport = oslo_messaging.get_notification_transport(
            self.conf, services.RABBITMQ)
        listener = oslo_messaging.get_notification_listener(
            transport, [oslo_messaging.Target(
                exchange=rpc_transport.EXCHANGE, topic=self.topic)],
            [consumer], executor='threading')
        listener.start()
        self.addCleanup(transport.cleanup)
        self.addCleanup(listener.wait)
        self.addCleanup(listener.stop)
        return consumer

    def use_all(self, instance):
        """Let an instance use all eight GPUs, and clean them."""
        granted = self.boot(8, instance)
        releases.release(self.db, base.uuids(granted))
        self.clean_all()
        return 8 * PER_DEVICE

    def waiting(self):
        with self.db.reader() as session:
            return outbox.number(session)


class PostgreSQLOutageTest(NotificationCase):

    def test_changes_while_the_broker_is_away_are_all_published(self):
        consumer = self.consume()
        self.conductor(self.db)
        other = self.conductor()
        made = self.use_all('before')
        self.assertTrue(patience.wait_until(
            lambda: len(consumer.times) == made))
        self.way.down()
        for number in range(ROUNDS):
            made += self.use_all(f'i{number}')
        away = self.waiting()
        self.assertEqual(ROUNDS * 8 * EVENTS, away)
        self.fail_to_delete_once()
        # The connection is cut again and again while they are sent.
        stop = threading.Event()
        cutter = threading.Thread(target=self.cut, args=(stop, consumer))
        cutter.start()
        self.assertTrue(patience.wait_until(
            lambda: len(consumer.times) >= made // 2))
        other.stop()
        self.assertTrue(patience.wait_until(
            lambda: len(consumer.times) == made))
        stop.set()
        cutter.join()
        self.assertTrue(patience.wait_until(lambda: self.waiting() == 0))
        self.addDetail('figures', content.text_content(
            f'{self.server}: {away} events while the broker was away, '
            f'{made} notifications in all; {made - len(consumer.times)} '
            f'lost, {consumer.repeated} repeated; cut {self.cuts} times '
            f'while they were sent'))
        self.assertEqual(made, len(consumer.times))
        self.assertGreater(consumer.repeated, 0)
        self.check_order(consumer.payloads)

    def fail_to_delete_once(self):
        """Let the database fail when a batch was sent: it is sent again."""
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.notifier.MAX_PAUSE', 1))
        delete, failed = outbox.delete, threading.Event()

        def fail(session, sent):
            if not failed.is_set():
                failed.set()
                raise exception.DatabaseUnavailable(reason='it is away')
            delete(session, sent)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.outbox.delete', fail))

    def cut(self, stop, consumer):
        self.cuts = 0
        while True:
            self.way.up()
            received = len(consumer.times)
            patience.wait_until(lambda before=received: (
                stop.is_set() or len(consumer.times) > before + 150))
            if stop.is_set():
                return
            self.way.down()
            self.cuts += 1

    def check_order(self, payloads):
        """Check that each device and assignment has its order."""
        generations = collections.defaultdict(list)
        usages = collections.defaultdict(list)
        for event_type, data in payloads:
            if event_type.startswith('gpgpu.assignment'):
                usages[data['uuid']].append(event_type)
            else:
                generations[data['uuid']].append(data['generation'])
        self.assertEqual(8, len(generations))
        for found in generations.values():
            self.assertEqual(
                list(range(1, 5 * (ROUNDS + 1) + 1)), found)
        self.assertEqual(8 * (ROUNDS + 1), len(usages))
        self.assertEqual({('gpgpu.assignment.start', 'gpgpu.assignment.end')},
                         set(map(tuple, usages.values())))


class MariaDBOutageTest(PostgreSQLOutageTest):

    server = services.MARIADB


class RefusingBrokerTest(NotificationCase):
    """A broker that is there, and refuses a message."""

    def fill(self):
        """Have the queue refuse whatever comes."""
        self.is_full = True
        services.rabbitmqctl(
            self, 'set_policy', self.topic, f'^{self.topic}',
            '{"max-length": 0, "overflow": "reject-publish"}',
            '--apply-to', 'queues')
        self.addCleanup(self.clear)

    def clear(self):
        """Have the queue take what comes."""
        if self.is_full:
            self.is_full = False
            services.rabbitmqctl(self, 'clear_policy', self.topic)

    def test_message_that_the_queue_refuses_was_not_published(self):
        sender = rpc_transport.Publisher(self.conf)
        self.addCleanup(sender.close)
        notified.everything(self)
        message = notified.messages(self.db)[0]
        sender.publish(message)
        self.fill()
        self.assertRaises(exception.BrokerUnavailable, sender.publish,
                          message)

    def test_notification_waits_until_the_queue_takes_it(self):
        self.conductor(self.db)
        consumer = self.consume()
        self.fill()
        made = self.use_all('i1')
        self.assertEqual(8 * EVENTS, self.waiting())
        self.clear()
        self.assertTrue(patience.wait_until(
            lambda: len(consumer.times) == made))
        self.assertTrue(patience.wait_until(lambda: self.waiting() == 0))
