# SPDX-License-Identifier: Apache-2.0
"""Migrations on PostgreSQL and MariaDB, whose lock MariaDB has once."""

import contextlib
import threading
import time
from unittest import mock

import sqlalchemy as sa
from alembic import migration as alembic_migration
from alembic.operations import base as operations

from gpgpu_plugin.db import ddl
from gpgpu_plugin.db import sync_lock
from tests.fixtures import patience
from tests.functional_db import test_database
from tests.unit.conductor import base
from tests.unit.db import test_migration


class ConductorLockMixin:
    """The lock under which one conductor at a time works."""

    def held(self, number=sync_lock.ISOLATION):
        return sync_lock.held_if_free(self.db.engine, number)

    def test_lock_is_held_once_and_ends_with_its_block(self):
        with self.held() as first, self.held() as second, self.held(
                sync_lock.SYNC) as other:
            self.assertEqual((True, False, True), (first, second, other))
        with self.held() as again:
            self.assertTrue(again)

    def is_free(self):
        with self.held() as is_held:
            return is_held

    def test_lock_that_cannot_be_released_ends_with_its_session(self):
        lost = sa.exc.OperationalError('', {}, Exception('connection lost'))
        kind = sync_lock._LOCKS[self.db.engine.dialect.name]
        with mock.patch.object(kind, 'release', side_effect=lost):
            self.assertTrue(self.is_free())
        self.assertTrue(patience.wait_until(self.is_free))


class PostgreSQLMigration(test_database.PostgreSQLMixin,
                          test_migration.MigrationMixin, ConductorLockMixin,
                          base.ConductorTestCase):

    functions = ()
    variant = False
    changes_schema = True


class MariaDBMigration(test_database.MariaDBMixin,
                       test_migration.MigrationMixin, ConductorLockMixin,
                       base.ConductorTestCase):

    functions = ()
    variant = False
    changes_schema = True


class IndexMixin:
    """An index of a table that others write to."""

    name = 'ix_events_actor'

    def build(self):
        with self.db.engine.begin() as connection:
            context = alembic_migration.MigrationContext.configure(connection)
            with operations.Operations.context(context):
                ddl.create_index_online(self.name, 'events', ['actor'])

    def indexes(self):
        """Return the names of all indexes of the table."""
        return [index['name'] for index in sa.inspect(
            self.db.engine).get_indexes('events')]

    def test_index_is_built_once(self):
        self.assertNotIn(self.name, self.indexes())
        for _ in range(2):
            self.build()
        self.assertIn(self.name, self.indexes())


class MariaDBIndexes(test_database.MariaDBMixin, IndexMixin,
                     base.ConductorTestCase):

    functions = ()
    variant = False
    changes_schema = True


class PostgreSQLIndexes(test_database.PostgreSQLMixin, IndexMixin,
                        base.ConductorTestCase):
    """An index is built while another transaction writes to its table."""

    changes_schema = True

    def is_valid(self):
        with self.db.engine.connect() as connection:
            return connection.scalar(
                sa.text('SELECT indisvalid FROM pg_index '
                        'WHERE indexrelid = to_regclass(:name)'),
                {'name': self.name})

    @contextlib.contextmanager
    def writer(self):
        """Hold a transaction that has written an event."""
        with self.db.engine.connect() as connection:
            connection.exec_driver_sql(
                "INSERT INTO events (kind) VALUES ('claim')")
            yield

    def is_building(self):
        """Return whether the build waits for the writer."""
        with self.db.engine.connect() as connection:
            return connection.exec_driver_sql(
                "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' "
                "AND datname = current_database() AND wait_event_type = "
                "'Lock' AND query LIKE 'CREATE INDEX%% ON events %%'"
            ).scalar() == 1

    def test_claims_go_on_while_an_index_is_built(self):
        build = threading.Thread(target=self.build)
        claim = threading.Thread(target=self.boot, daemon=True)
        with self.writer():
            build.start()
            end = time.monotonic() + patience.LONG
            while not self.is_building() and time.monotonic() < end:
                time.sleep(0.05)
            self.assertTrue(self.is_building())
            claim.start()
            claim.join(patience.LONG)
            self.assertEqual((False, True),
                             (claim.is_alive(), build.is_alive()))
        build.join(patience.LONG)
        self.assertTrue(self.is_valid())
        self.assertEqual({'assigned': 1, 'available': 7}, self.states())

    def test_index_whose_build_was_cut_is_built_again(self):
        with self.writer(), self.db.engine.connect() as connection:
            connection = connection.execution_options(
                isolation_level='AUTOCOMMIT')
            connection.exec_driver_sql('SET statement_timeout = 200')
            self.assertRaises(
                sa.exc.OperationalError, connection.exec_driver_sql,
                f'CREATE INDEX CONCURRENTLY {self.name} ON events (actor)')
            connection.invalidate()
        self.assertIs(False, self.is_valid())
        self.build()
        self.assertTrue(self.is_valid())
