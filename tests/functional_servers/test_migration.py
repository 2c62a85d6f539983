# SPDX-License-Identifier: Apache-2.0
"""Migrations on PostgreSQL and MariaDB, whose lock MariaDB has once."""

from unittest import mock

import sqlalchemy as sa

from gpgpu_plugin.db import migration
from tests.fixtures import patience
from tests.functional_db import test_database
from tests.unit.conductor import base
from tests.unit.db import test_migration


class ConductorLockMixin:
    """The lock under which one conductor at a time works."""

    def held(self, number=migration.ISOLATION_LOCK):
        return migration.hold_lock_if_free(self.db.engine, number)

    def test_lock_is_held_once_and_ends_with_its_block(self):
        with self.held() as first, self.held() as second, self.held(
                migration.SYNC_LOCK) as other:
            self.assertEqual((True, False, True), (first, second, other))
        with self.held() as again:
            self.assertTrue(again)

    def is_free(self):
        with self.held() as is_held:
            return is_held

    def test_lock_that_cannot_be_released_ends_with_its_session(self):
        lost = sa.exc.OperationalError('', {}, Exception('connection lost'))
        kind = migration._LOCKS[self.db.engine.dialect.name]
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
