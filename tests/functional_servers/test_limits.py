# SPDX-License-Identifier: Apache-2.0
"""Tests of limits: a hung transaction delays its own host, for seconds."""

import concurrent.futures
import functools
import time
import types
import uuid

import sqlalchemy as sa
from oslo_db import exception as oslo_db_exception

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import service
from gpgpu_plugin.db import api
from tests.fixtures import database
from tests.fixtures import patience
from tests.fixtures import proxy
from tests.fixtures import services
from tests.unit.conductor import base

_LOCK = sa.text("SELECT id FROM hosts WHERE name = 'h1' FOR UPDATE")


class PostgreSQLTest(base.ConductorTestCase):

    server = services.POSTGRESQL

    def setUp(self):
        services.require(self, self.server)
        super().setUp()
        self.report_second_host()
        self.limited = self.limit(5)

    def database(self):
        self.made = database.ServerDatabase(
            self.conf, self.server, content=self.content)
        return self.made

    def limit(self, caller):
        db = api.Database(
            self.conf, self.made.connection, api.Limits(caller))
        self.addCleanup(db.engine.dispose)
        return db

    def test_claim_on_a_locked_host_is_refused_and_others_are_not(self):
        with self.db.writer() as session:
            session.execute(_LOCK)
            began = time.monotonic()
            self.assertRaises(
                exception.DatabaseBusy, claims.claim, self.limited,
                self.request(1), 600)
            # Without a limit MariaDB waits for 50 s, PostgreSQL for ever.
            self.assertLess(time.monotonic() - began, 40)
            claims.claim(self.limited, self.request(1, host='h2'), 600)
        claims.claim(self.limited, self.request(1), 600)

    def test_transaction_that_hangs_is_ended_with_its_locks(self):
        hanging = self.limited.engine.connect()
        hanging.execute(_LOCK)
        # Without limits of its own: it waits until the other one is ended.
        claims.claim(self.db, self.request(1), 600)
        self.assertRaises(oslo_db_exception.DBConnectionError,
                          hanging.execute, _LOCK)

    def test_statement_that_takes_too_long_is_ended(self):
        def sleeps(session):
            session.execute(sa.text(self.sleep))
        self.assertRaises(
            exception.DatabaseBusy, self.limited.write, sleeps)

    sleep = 'SELECT pg_sleep(600)'

    def proxied(self, caller):
        """Return a proxy before the server, and a database that uses it."""
        url = sa.make_url(self.made.connection)
        way = self.useFixture(proxy.Proxy((url.host, url.port)))
        db = api.Database(
            self.conf, url.set(host='127.0.0.1', port=way.port)
            .render_as_string(hide_password=False), api.Limits(caller))
        self.addCleanup(db.engine.dispose)
        return way, db

    def test_idle_connection_that_is_silent_is_replaced(self):
        way, db = self.proxied(5)
        claims.of_host(db, 'h1')
        way.silence()
        self.assertEqual(
            1, len(claims.claim(db, self.request(1), 600).assignments))

    def test_conductor_whose_database_is_silent_takes_no_calls(self):
        # With a shorter limit, the dead connection is replaced in time.
        way, db = self.proxied(20)
        calls = []
        gate = service.FitnessGate(db, (), lambda: [types.SimpleNamespace(
            **{name: functools.partial(calls.append, name)
               for name in ('start', 'stop', 'wait')})])
        gate.start()
        self.addCleanup(gate.stop)
        self.assertEqual(['start'], calls)
        way.down()
        self.assertTrue(patience.wait_until(lambda: gate.reason))
        way.up()
        self.assertTrue(patience.wait_until(lambda: not gate.reason))
        way.silence()
        self.assertTrue(patience.wait_until(lambda: gate.reason))
        # New connections work.
        self.assertTrue(patience.wait_until(lambda: not gate.reason))
        self.assertEqual(3, calls.count('start'))
        self.assertTrue(patience.wait_until(
            lambda: (calls.count('stop'), calls.count('wait')) == (2, 2)))

    def test_database_that_is_away_is_named(self):
        way, db = self.proxied(5)
        way.down()
        for call in (lambda: claims.of_host(db, 'h1'),
                     lambda: claims.claim(db, self.request(1), 600)):
            self.assertRaises(exception.DatabaseUnavailable, call)
        way.up()
        claims.claim(db, self.request(1), 600)

    def test_call_whose_connection_falls_silent_fails_alone(self):
        way, db = self.proxied(5)

        def falls_silent(session):
            session.execute(_LOCK)
            way.silence()
            session.execute(_LOCK)
        self.assertRaises(
            exception.DatabaseUnavailable, db.write, falls_silent)
        # The server ends the transaction, which has the lock.
        claims.claim(self.db, self.request(1), 600)
        claims.claim(db, self.request(1, 'i2'), 600)

    def test_commit_whose_connection_falls_silent_fails_alone(self):
        way, db = self.proxied(5)

        def falls_silent(session):
            session.execute(_LOCK)
            way.silence()
        self.assertRaises(
            exception.DatabaseUnavailable, db.write, falls_silent)
        claims.claim(self.db, self.request(1), 600)
        claims.claim(db, self.request(1, 'i2'), 600)

    def test_others_go_on_beside_a_silent_connection(self):
        way, db = self.proxied(30)
        held = db.engine.connect()
        held.execute(_LOCK)
        way.silence()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waits = pool.submit(held.execute, _LOCK)
            claims.claim(db, self.request(1, host='h2'), 600)
            self.assertFalse(waits.done())
            way.down()
            self.assertRaises(oslo_db_exception.DBConnectionError,
                              waits.result)

    def test_connections_to_a_read_only_server_are_replaced(self):
        db, failed_over = self.other_primary()
        claims.of_host(db, 'h1')
        closed = []
        sa.event.listen(
            db.engine, 'invalidate', lambda *args: closed.append(args))
        failed_over(True)
        self.assertRaises(exception.DatabaseUnavailable, claims.claim, db,
                          self.request(1), 600)
        # PostgreSQL: what is open stays read-only, as to an old primary.
        self.assertNotEqual([], closed)
        failed_over(False)
        claims.claim(db, self.request(1), 600)

    def other_primary(self):
        """Return a database, and a function that makes it read-only.

        Connections that are open by then notice, and stay as they are.
        """
        def read_only(yes):
            with self.db.engine.connect().execution_options(
                    isolation_level='AUTOCOMMIT') as connection:
                name = sa.make_url(self.made.connection).database
                connection.execute(sa.text(
                    f'ALTER DATABASE {name} '
                    f'SET default_transaction_read_only = {yes}'))
            if yes:
                # New connections take the setting.
                self.limited.engine.dispose()
        return self.limited, read_only


class MariaDBTest(PostgreSQLTest):

    server = services.MARIADB
    sleep = 'SELECT sleep(600)'

    def other_primary(self):
        # The user of the tests may write to a read-only server.
        user = f'gpgpu_{uuid.uuid4().hex[:8]}'
        url = sa.make_url(self.made.connection)

        def execute(statement):
            with self.db.engine.connect() as connection:
                connection.execute(sa.text(statement))

        def read_only(yes):
            execute(f'SET GLOBAL read_only = {int(yes)}')
        execute(f"CREATE USER {user}@'%' IDENTIFIED BY 'x'")
        self.addCleanup(execute, f"DROP USER {user}@'%'")
        execute(f"GRANT ALL ON {url.database}.* TO {user}@'%'")
        self.addCleanup(read_only, False)
        db = api.Database(
            self.conf, url.set(username=user, password='x')
            .render_as_string(hide_password=False), api.Limits(5))
        self.addCleanup(db.engine.dispose)
        return db, read_only
