# SPDX-License-Identifier: Apache-2.0
"""Tests of the lock of ``db sync`` on SQLite."""

import contextlib
import sqlite3
import types

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.db import migration
from tests.unit.db import base


class _BrokenDisk(sqlite3.Connection):
    """Connection whose disk fails as the lock is taken."""

    def cursor(self, factory=sqlite3.Cursor):
        return super().cursor(_BrokenCursor)


class _BrokenCursor(sqlite3.Cursor):

    def execute(self, statement, *args):
        if statement == 'BEGIN IMMEDIATE':
            error = sqlite3.OperationalError('disk I/O error')
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        # No event of oslo.db began the transaction.
        return self if statement == 'ROLLBACK' else super().execute(
            statement, *args)


class SQLiteLockTest(base.DatabaseTestCase):

    @contextlib.contextmanager
    def session(self):
        """Open a connection of its own, as each process has one."""
        with self.db.engine.connect() as connection:
            connection.detach()
            yield connection

    @contextlib.contextmanager
    def held(self, timeout=0):
        with self.session() as connection:
            with migration.hold_lock(connection, timeout):
                yield connection

    def rows(self):
        with self.db.engine.connect() as connection:
            return connection.exec_driver_sql(
                "SELECT uuid FROM clouds WHERE uuid = 'x'").scalars().all()

    def insert(self, connection):
        connection.exec_driver_sql("INSERT INTO clouds (uuid) VALUES ('x')")

    def test_lock_of_another_session_is_refused_by_name(self):
        with self.held():
            exc = self.assertRaises(
                exception.Conflict, self.held().__enter__)
        self.assertIn('write lock (BEGIN IMMEDIATE) has been held for 0 s',
                      str(exc))
        self.assertIn(f'fuser {self.db.engine.url.database}', str(exc))
        self.assertIn('run the command again', str(exc))

    def test_lock_is_free_after_its_block(self):
        for _ in range(2):
            with self.held() as connection:
                self.insert(connection)
        self.assertEqual(['x', 'x'], self.rows())

    def test_block_that_fails_leaves_nothing_and_frees_the_lock(self):
        def fails():
            with self.held() as connection:
                self.insert(connection)
                raise ValueError('power cut')
        self.assertRaises(ValueError, fails)
        with self.held():
            self.assertEqual([], self.rows())

    def test_lock_that_is_freed_meanwhile_is_taken_after_one_warning(self):
        log = self.useFixture(fixtures.FakeLogger())
        first = contextlib.ExitStack()
        first.enter_context(self.held())
        pauses = []

        def sleep(seconds):
            pauses.append(seconds)
            if len(pauses) == 3:
                first.close()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.migration.time', types.SimpleNamespace(
                sleep=sleep, monotonic=lambda: len(pauses))))
        with self.held(timeout=60):
            self.assertEqual(3, len(pauses))
        self.assertEqual(1, log.output.count('Waiting up to 60 s'))

    def test_error_other_than_a_lock_is_not_waited_for(self):
        engine = sa.create_engine('sqlite://', creator=lambda: sqlite3.connect(
            ':memory:', factory=_BrokenDisk))
        self.addCleanup(engine.dispose)
        with engine.connect() as connection:
            exc = self.assertRaises(
                sqlite3.OperationalError, migration.hold_lock(
                    connection, 60).__enter__)
            self.assertEqual('disk I/O error', str(exc))
            self.assertFalse(connection.in_transaction())


class MariaDBLockTest(base.DatabaseTestCase):

    def lock(self, database):
        return migration._MariaDB(types.SimpleNamespace(
            engine=types.SimpleNamespace(
                url=sa.make_url(f'mysql+pymysql://h/{database}'))))

    def test_lock_is_named_after_the_database(self):
        # All databases of a server share the names.
        self.assertNotEqual(self.lock('one').name, self.lock('two').name)

    def test_name_is_cut_to_what_the_server_takes(self):
        self.assertEqual(64, len(self.lock('x' * 64)._key))
