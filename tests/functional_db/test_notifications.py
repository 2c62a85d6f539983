# SPDX-License-Identifier: Apache-2.0
"""Notifications on PostgreSQL and MariaDB, with several conductors."""

import datetime
import functools
import threading

import fixtures
import sqlalchemy as sa

from gpgpu_plugin.conductor import notifier
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.domain import event
from tests.fixtures import clocks
from tests.fixtures import database
from tests.fixtures import notified
from tests.fixtures import patience
from tests.fixtures import services
from tests.unit.conductor import base
from tests.unit.conductor import test_notifier
from tests.unit.conductor import test_usage_audit
from tests.unit.db import test_notification
from tests.unit.db import test_outbox


class PostgreSQLMixin:

    server = services.POSTGRESQL

    def setUp(self):
        services.require(self, self.server)
        super().setUp()

    def database(self):
        return database.ReusedDatabase(
            self.conf, self.server,
            getattr(self, 'content', database.no_rows))


class MariaDBMixin(PostgreSQLMixin):

    server = services.MARIADB


class ConcurrentCase(base.ConductorTestCase):
    """Several threads at once, as in several conductors."""

    def setUp(self):
        super().setUp()
        self.db.publish_as(notified.PUBLISHER)

    def at_once(self, count, call):
        """Call something in several threads at the same time."""
        barrier = threading.Barrier(count)

        def run(number):
            barrier.wait(patience.LONG)
            call(number)
        threads = [threading.Thread(target=run, args=(number,))
                   for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def test_several_senders_send_each_once(self):
        for number in range(5):
            self.boot(1, f'i{number}')
        expected = [message['message_id']
                    for message in notified.messages(self.db)]
        sent = []

        class Publisher(test_notifier.Broker):

            def publish(self, message):
                sent.append(message['message_id'])
        broker = Publisher()
        senders = [notifier.Notifier(self.db, broker, broker, limit=1000)
                   for _ in range(4)]
        self.at_once(4, lambda number: senders[number].run_once())
        self.assertEqual(expected, sent)
        self.assertEqual([], notified.messages(self.db))

    def test_usage_that_two_transactions_end_ends_once(self):
        uuids = base.uuids(self.boot(4))
        before = len(notified.messages(self.db))

        def end(number):
            self.db.write(lambda session: usage_db.end(
                session, uuids[::-1] if number % 2 else uuids,
                datetime.datetime(2100, 1, 1)))
        self.at_once(4, end)
        self.assertEqual(['assignment.end'] * 4,
                         notified.types(self.db)[before:])

    def used_until_one(self, chunk):
        """Return assignments in use since 12:30, an hour before now.

        :param chunk: number of notifications that one transaction writes
        """
        now = datetime.datetime(2026, 11, 24, 12, 30)
        with clocks.Clocks(lambda: now):
            notifier.audit_usage(self.db, event.AuditPeriod.HOUR)
            uuids = base.uuids(self.boot(8))
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.notifier.AUDIT_CHUNK', chunk))
        self.useFixture(clocks.Clocks(
            lambda: now + datetime.timedelta(hours=1)))
        return uuids

    def test_several_conductors_write_each_exists_once(self):
        uuids = self.used_until_one(chunk=3)
        self.at_once(4, lambda number: notifier.audit_usage(
            self.db, event.AuditPeriod.HOUR))
        self.assertEqual(
            [(uuid, 1800) for uuid in uuids],
            [(data['uuid'], data['seconds'])
             for data in notified.existing(self.db)])

    def test_usage_that_goes_on_while_it_is_audited_adds_up(self):
        uuids = self.used_until_one(chunk=1)
        self.db.write(lambda session: usage_db.end(
            session, uuids, datetime.datetime(2026, 11, 24, 12, 40)))
        with self.db.reader() as session:
            host_id = session.scalars(sa.select(tables.HOSTS.c.id)).one()

        def work(number):
            if number == 0:
                notifier.audit_usage(self.db, event.AuditPeriod.HOUR)
            else:
                for uuid in uuids[number - 1::3]:
                    self.db.write(functools.partial(
                        usage_db.resume, host_id=host_id, uuids=[uuid]))
        self.at_once(4, work)
        self.assertEqual(
            dict.fromkeys(uuids, 1800), dict(notified.seconds(self.db)))


class PostgreSQLConcurrentTest(PostgreSQLMixin, ConcurrentCase):
    pass


class MariaDBConcurrentTest(MariaDBMixin, ConcurrentCase):
    pass


class PostgreSQLLifeTest(PostgreSQLMixin, test_notification.LifeTest):
    pass


class MariaDBLifeTest(MariaDBMixin, test_notification.LifeTest):
    pass


class PostgreSQLUsageTest(PostgreSQLMixin, test_notification.UsageTest):
    pass


class MariaDBUsageTest(MariaDBMixin, test_notification.UsageTest):
    pass


class PostgreSQLUsageAuditTest(PostgreSQLMixin,
                               test_usage_audit.UsageAuditTest):
    pass


class MariaDBUsageAuditTest(MariaDBMixin, test_usage_audit.UsageAuditTest):
    pass


class PostgreSQLAuditClockTest(PostgreSQLMixin,
                               test_usage_audit.AuditClockTest):
    pass


class MariaDBAuditClockTest(MariaDBMixin, test_usage_audit.AuditClockTest):
    pass


class PostgreSQLRolledBackTest(PostgreSQLMixin,
                               test_notification.RolledBackTest):
    pass


class MariaDBRolledBackTest(MariaDBMixin, test_notification.RolledBackTest):
    pass


class OutboxMixin(PostgreSQLMixin):
    """A database on a server for tests of rows."""

    def setUp(self):
        super().setUp()
        self.db = self.useFixture(self.database()).db
        self.db.publish_as(test_outbox.PUBLISHER)


class PostgreSQLLeaseTest(OutboxMixin, test_outbox.LeaseTest):
    pass


class MariaDBLeaseTest(OutboxMixin, test_outbox.LeaseTest):

    server = services.MARIADB


class PostgreSQLDropTest(OutboxMixin, test_outbox.DropTest):
    pass


class MariaDBDropTest(OutboxMixin, test_outbox.DropTest):

    server = services.MARIADB
