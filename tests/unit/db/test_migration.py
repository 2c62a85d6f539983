# SPDX-License-Identifier: Apache-2.0
"""Tests that migrations create the schema of the tables, on SQLite."""

import contextlib
import itertools
import pathlib
import subprocess
import sys

import fixtures
import sqlalchemy as sa
from alembic import autogenerate
from alembic import migration as alembic_migration
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import outbox
from gpgpu_plugin.db.migrations import versions
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database

DDL = ('ALTER', 'CREATE', 'DROP')


class MigrationMixin:
    """Tests that run on every kind of database."""

    def test_models_are_what_migrations_make(self):
        with self.db.engine.connect() as connection:
            context = alembic_migration.MigrationContext.configure(
                connection, opts={'compare_type': True,
                                  'compare_server_default': True})
            self.assertEqual([], autogenerate.compare_metadata(
                context, migration.METADATA))

    def test_from_every_revision(self):
        database.empty(self.db.engine)
        self.assertIsNone(migration.version(self.db.engine))
        for revision in migration.revisions():
            migration.sync(self.db.engine, revision)
            self.assertEqual(revision, migration.version(self.db.engine))
        self.assertFalse(migration.sync(self.db.engine))
        migration.check_current(self.db.engine)
        self.test_models_are_what_migrations_make()

    def test_sync_cut_after_any_statement_is_repeated(self):
        engine = self.db.engine
        revisions = self.statements_of_revisions()
        statements = [statement for revision in revisions
                      for statement in revision]
        database.empty(engine)
        left = set()
        pending = statements
        ends = list(itertools.accumulate(map(len, revisions)))
        for cut, statement in enumerate(statements):
            if statement.startswith('COMMENT'):
                # Of PostgreSQL, which rolls all of its transaction back.
                continue
            if engine.name == 'sqlite' and cut in ends:
                # All that is left is one transaction there, so that each cut
                # would undo the revisions before it, too.
                migration.sync(
                    engine, migration.revisions()[ends.index(cut)])
                pending = statements[cut:]
            to_cut = len(pending) - len(statements[cut + 1:])
            with database.cut_after(engine, to_cut) as done:
                migration.sync(engine)
            # Each run goes on where the last one was cut, so that together
            # they are one that was not.
            self.assertEqual(pending[:to_cut], done)
            left.add(len(sa.inspect(engine).get_table_names()))
            pending = self.pending(revisions, cut, pending)
        with database.cut_after(engine, None) as done:
            self.assertTrue(migration.sync(engine))
        self.assertEqual(pending, done)
        migration.check_current(engine)
        self.test_models_are_what_migrations_make()
        with self.db.reader() as session:
            self.assertEqual(
                [('variants', 0)], session.query(
                    host_db.LOCKS.c.name, host_db.LOCKS.c.value).all())
            self.assertEqual(['all'], session.scalars(
                sa.select(outbox.STATES.c.name)).all())
            self.assertEqual([1], session.scalars(
                sa.select(caller_key_db.CLOUDS.c.id)).all())
        # The cuts were real: without transactions they leave tables behind.
        tables = len(migration.METADATA.tables) + 1
        self.assertEqual(
            set(range(1, tables + 1)) if engine.name == 'mysql'
            else {0, *self.tables_after_migrations()[:-1]}, left)

    def pending(self, revisions, cut, before):
        """Return the statements that are left after a cut.

        :param cut: number of the last statement that was executed, from 0
        :param before: those that were left before this run
        """
        ends = [0, *itertools.accumulate(map(len, revisions))]
        begin = max(end for end in ends if end <= cut)
        statements = [statement for revision in revisions
                      for statement in revision]
        match self.db.engine.name:
            case 'mysql' if statements[cut].split()[0] in DDL:
                # It lasts at once, with all before it. An UPDATE is repeated
                # until its migration has ended.
                return [statement for statement in statements[begin:cut + 1]
                        if statement.startswith('UPDATE')
                        ] + statements[cut + 1:]
            case 'mysql':
                return before
            case _:
                # Each migration is a transaction of its own.
                return statements[begin:]

    def statements_of_revisions(self):
        """Return the statements of each revision, when nothing cuts them."""
        database.empty(self.db.engine)
        result = []
        for revision in migration.revisions():
            with database.cut_after(self.db.engine, None) as done:
                migration.sync(self.db.engine, revision)
            result.append(done)
        return result

    def tables_after_migrations(self):
        """Return the number of tables after each migration."""
        database.empty(self.db.engine)
        numbers = []
        for revision in migration.revisions():
            migration.sync(self.db.engine, revision)
            numbers.append(
                len(sa.inspect(self.db.engine).get_table_names()))
        return numbers

    def test_three_syncs_at_once_on_empty_database(self):
        database.empty(self.db.engine)
        with self.locked():
            processes = [self.start_sync() for _ in range(3)]
            for process in processes:
                self.assertRegex(
                    next(line for line in process.stderr
                         if line.startswith('Waiting')), ' held by ')
        results = [process.communicate() for process in processes]
        self.assertEqual(
            [0, 0, 0], [process.returncode for process in processes],
            results)
        newest = migration.revisions()[-1]
        self.assertEqual(
            [f'schema is at revision {newest}\n',
             *[f'schema is at revision {newest} already\n'] * 2],
            sorted(out for out, _ in results))
        self.test_models_are_what_migrations_make()

    def start_sync(self):
        """Start ``gpgpu-manage db sync`` as a process of its own."""
        path = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'gpgpu.conf')
        url = self.db.engine.url.render_as_string(hide_password=False)
        path.write_text(f'[database]\nconnection = {url}\n')
        process = subprocess.Popen(
            [sys.executable, '-m', 'gpgpu_plugin.cmd.manage',
             '--config-file', path, 'db', 'sync'],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    @contextlib.contextmanager
    def locked(self):
        """Hold the lock, as another ``db sync`` would."""
        with self.db.engine.connect() as connection:
            connection.detach()
            with migration.hold_lock(connection):
                yield

    def test_sync_that_waited_too_long_names_lock_and_owner(self):
        with self.locked():
            exc = self.assertRaises(
                exception.Conflict, migration.sync, self.db.engine,
                timeout=0.3)
        self.assertRegex(str(exc), {
            'sqlite': r'write lock \(BEGIN IMMEDIATE\) has been held for '
                      r'0 s by another process, which "fuser /.*" names',
            'postgresql': r'advisory lock \(1735419760, 1\) has been held for '
                          r'0 s by backend \d+ of user \w+ from [\w.:]+, '
                          r'which "SELECT pg_terminate_backend\(\d+\)" ends',
            'mysql': r'lock "gpgpu_plugin.gpgpu_test_\w+" \(GET_LOCK\) has '
                     r'been held for 0 s by connection \d+ of user \w+ from '
                     r'[\w.:]+, which "KILL \d+" ends',
        }[self.db.engine.name])
        self.assertIn('run the command again', str(exc))
        self.assertFalse(migration.sync(self.db.engine, timeout=30))

    def test_lock_of_a_sync_that_failed_is_free(self):
        database.empty(self.db.engine)
        with database.cut_after(self.db.engine, 1):
            migration.sync(self.db.engine)
        self.assertTrue(migration.sync(self.db.engine, timeout=30))

    def test_table_of_another_service_is_refused(self):
        database.empty(self.db.engine)
        other = sa.MetaData()
        sa.Table('devices', other, sa.Column('id', sa.Integer,
                                             primary_key=True))
        other.create_all(self.db.engine)
        exc = self.assertRaises(
            exception.Conflict, migration.sync, self.db.engine)
        self.assertRegex(str(exc), 'table devices: .*stable_id.*'
                                   r'\[database\] connection')

    def set_revisions(self, *revisions):
        with self.db.engine.begin() as connection:
            connection.exec_driver_sql('DELETE FROM alembic_version')
            for revision in revisions:
                connection.execute(
                    sa.text('INSERT INTO alembic_version VALUES (:revision)'),
                    {'revision': revision})

    def test_schema_that_cannot_be_upgraded_is_refused(self):
        [*_, newest] = migration.revisions()
        for revisions, said in (
                (['0039'], 'revision 0039, made before the first release; '
                           'create it anew: .* an empty database'),
                (['0000_start'], '0000_start, made before the first release'),
                (['9999_next'], f'none after {newest}: a newer one'),
                (['a1b2c3'], 'a1b2c3, .* of another service'),
                (['a1b2c3', '5d6e7f'], '5d6e7f, a1b2c3, .* another service')):
            self.set_revisions(*revisions)
            for error, refuses in (
                    (exception.Conflict, migration.sync),
                    (exception.ConfigInvalid, migration.check_current)):
                self.assertRegex(str(self.assertRaises(
                    error, refuses, self.db.engine)), said)
        self.set_revisions(newest)
        self.assertFalse(migration.sync(self.db.engine))

    def test_schema_that_can_be_upgraded_is_not_used_before(self):
        database.empty(self.db.engine)
        self.assertIn('run "gpgpu-manage db sync"', str(self.assertRaises(
            exception.ConfigInvalid, migration.check_current,
            self.db.engine)))


class SQLiteTest(MigrationMixin, base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.db = self.useFixture(database.Database(self.conf)).db

    def test_migrations_compare_before_they_act(self):
        """Migrations create tables and indexes by db.migration."""
        files = list(pathlib.Path(versions.__file__).parent.glob('v*.py'))
        self.assertEqual(len(migration.revisions()), len(files))
        for path in files:
            self.assertNotRegex(path.read_text(encoding='utf-8'),
                                r'\bop\.(create|drop|add|bulk_insert)')

    def test_added_columns_may_be_left_out(self):
        """A conductor of the previous version does not know them."""
        database.empty(self.db.engine)
        before = {}
        for revision in migration.revisions():
            migration.sync(self.db.engine, revision)
            now = self.columns()
            self.assertEqual([], [
                name for name, may_be_left_out in now.items()
                if name[0] in {table for table, _ in before}
                and name not in before and not may_be_left_out])
            before = now

    def columns(self):
        """Return whether a row may lack a value, by table and column."""
        inspector = sa.inspect(self.db.engine)
        return {(table, column['name']): (
            column['nullable'] or column['default'] is not None)
            for table in inspector.get_table_names()
            for column in inspector.get_columns(table)}

    def test_revisions_are_numbers_in_order_with_the_name_of_the_file(self):
        found = migration.revisions()
        self.assertEqual([f'{number:04}' for number in range(
            1, len(found) + 1)], [name.partition('_')[0] for name in found])
        folder = pathlib.Path(versions.__file__).parent
        for name in found:
            self.assertTrue((folder / f'v{name}.py').exists())
            # What the column of Alembic takes.
            self.assertLessEqual(len(name), 32)
