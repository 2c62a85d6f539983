# SPDX-License-Identifier: Apache-2.0
"""Tests of reading and writing transactions."""

import pathlib
import threading

import fixtures
import sqlalchemy as sa
from oslo_db import exception as db_exception

from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.db import tables
from tests.unit.db import base


class MissingFileTest(base.DatabaseTestCase):

    def is_missing(self, url):
        self.conf.set_override('connection', url, 'database')
        return api.is_missing_file(self.conf)

    def test_sqlite_file_that_is_not_there_is_missing_and_not_made(self):
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'x')
        self.assertTrue(self.is_missing(f'sqlite:///{path}'))
        self.assertFalse(path.exists())
        path.touch()
        self.assertFalse(self.is_missing(f'sqlite:///{path}'))

    def test_database_without_a_file_is_never_missing(self):
        for url in ('sqlite://', 'mysql+pymysql://u:p@h/gpgpu',
                    'postgresql+psycopg2://u:p@h/gpgpu'):
            self.assertFalse(self.is_missing(url), url)


class NoDatabaseTest(base.DatabaseTestCase):

    def test_url_of_mariadb_without_a_database_is_refused(self):
        for url in ('mysql+pymysql://u:secret@h/', 'mariadb+pymysql://u@h'):
            exc = self.assertRaises(
                exception.ConfigInvalid, api.Database, self.conf, url)
            self.assertIn('names no database on h', str(exc))
            self.assertNotIn('secret', str(exc))


class TransactionTest(base.DatabaseTestCase):

    def names(self):
        with self.db.reader() as session:
            return session.scalars(sa.select(tables.HOSTS.c.name)).all()

    def test_url_goes_before_the_configured_connection(self):
        self.conf.set_override(
            'connection', 'sqlite:////nowhere/x.sqlite', 'database')
        other = api.Database(self.conf, str(self.db.engine.url))
        self.addCleanup(other.engine.dispose)
        self.add(base.host('h1'))
        with other.reader() as session:
            self.assertEqual('h1', session.scalar(
                sa.select(tables.HOSTS.c.name)))

    def test_work_that_raises_leaves_nothing_behind(self):
        def work(session):
            base.host('h1').insert(session)
            raise ValueError('power cut')
        self.assertRaises(ValueError, self.db.write, work)
        self.assertEqual([], self.names())

    def test_work_that_ends_is_committed_and_its_result_returned(self):
        def work(session):
            base.host('h1').insert(session)
            return 'done'
        self.assertEqual('done', self.db.write(work))
        self.assertEqual(['h1'], self.names())

    def test_sqlite_keeps_foreign_keys(self):
        self.assertRaises(
            db_exception.DBReferenceError, self.add,
            base.device('d1', host_id=99))

    def test_writers_of_sqlite_wait_for_each_other(self):
        # Each reads before it writes, which SQLite answers with 'database is
        # locked' where two do so at once.
        self.add(base.host('h1', id=1, generation=0))

        def count(session):
            before = session.scalar(sa.select(tables.HOSTS.c.generation))
            session.execute(sa.update(tables.HOSTS).values(
                generation=before + 1))

        def many():
            for _ in range(20):
                self.db.write(count)
        threads = [threading.Thread(target=many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with self.db.reader() as session:
            self.assertEqual(80, session.scalar(
                sa.select(tables.HOSTS.c.generation)))


    def test_transaction_that_took_too_long_changes_nothing(self):
        seconds = iter([0, api.TRANSACTION_LIMIT + 1])
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.api.time.monotonic', lambda: next(seconds)))
        exc = self.assertRaises(
            exception.DatabaseBusy, self.db.write,
            lambda session: base.host('h1').insert(session))
        self.assertIn('took 31 s, and may take 30 s', str(exc))
        self.assertEqual([], self.names())


class FailureTest(base.DatabaseTestCase):

    def setUp(self):
        super().setUp()
        self.failures = []
        self.observed = api.Database(
            self.conf, str(self.db.engine.url),
            observer=self.failures.append)
        self.addCleanup(self.observed.engine.dispose)
        self.useFixture(fixtures.MockPatch('oslo_db.api.time.sleep'))

    def failed(self, error):
        """Return what is observed when work raises an error."""
        self.failures.clear()

        def work(session):
            raise error
        self.assertRaises(
            (type(error), exception.DatabaseBusy,
             exception.DatabaseUnavailable), self.observed.write, work)
        return self.failures

    def test_each_transaction_that_fails_is_observed(self):
        self.assertEqual(['unavailable'], self.failed(
            db_exception.DBConnectionError()))
        self.assertEqual(['busy'], self.failed(
            sa.exc.OperationalError('SELECT 1', None, Exception(1205, 'x'))))
        self.assertEqual(['other'], self.failed(
            db_exception.DBDataError()))
        # And of each attempt.
        self.assertEqual(['deadlock'] * 9, self.failed(
            db_exception.DBDeadlock()))

    def test_transaction_that_took_too_long_is_observed(self):
        seconds = iter([0, api.TRANSACTION_LIMIT + 1])
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.api.time.monotonic', lambda: next(seconds)))
        self.assertRaises(exception.DatabaseBusy, self.observed.write,
                          lambda session: base.host('h1').insert(session))
        self.assertEqual(['busy'], self.failures)

    def test_errors_that_a_caller_expects_are_no_failures(self):
        for error in (db_exception.DBDuplicateEntry(),
                      db_exception.DBReferenceError('t', 'c', 'k', 'k'),
                      exception.NotFound(kind='host', name='h1'),
                      ValueError()):
            self.assertEqual([], self.failed(error))


class RetryTest(base.DatabaseTestCase):

    def setUp(self):
        super().setUp()
        self.pauses = []
        self.useFixture(fixtures.MockPatch(
            'oslo_db.api.time.sleep', self.pauses.append))
        self.attempts = 0

    def failing(self, error, times):
        def work(session):
            self.attempts += 1
            base.host(f'h{self.attempts}').insert(session)
            if self.attempts <= times:
                raise error
        return work

    def test_work_that_lost_is_run_again_from_its_beginning(self):
        for error in (db_exception.DBDeadlock(),
                      db_exception.DBDuplicateEntry()):
            with self.subTest(error=type(error).__name__):
                self.attempts = 0
                self.db.write(self.failing(error, 2))
                self.assertEqual(3, self.attempts)
                with self.db.writer() as session:
                    self.assertEqual(['h3'], session.scalars(
                        sa.select(tables.HOSTS.c.name)).all())
                    session.execute(sa.delete(tables.HOSTS))

    def test_work_that_always_loses_is_given_up(self):
        self.assertRaises(
            db_exception.DBDeadlock, self.db.write,
            self.failing(db_exception.DBDeadlock(), 99))
        self.assertEqual(9, self.attempts)
        self.assertLessEqual(max(self.pauses), 1)

    def test_other_errors_are_raised_at_once(self):
        self.assertRaises(
            db_exception.DBReferenceError, self.db.write, self.failing(
                db_exception.DBReferenceError('t', 'c', 'k', 'k'), 1))
        self.assertEqual((1, []), (self.attempts, self.pauses))
