# SPDX-License-Identifier: Apache-2.0
"""Tests of the checks of the schema, of hosts and of cleaning policies.

tests/functional_db runs them on PostgreSQL and MariaDB.
"""

import dataclasses

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import version
from gpgpu_plugin.cmd import upgrade_database
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import tables
from gpgpu_plugin.objects import admin
from tests.fixtures import database as database_fixture
from tests.unit.cmd.upgrade import base
from tests.unit.conductor import base as conductor_base


class SchemaTest(base.ResultMixin, conductor_base.ConductorTestCase):

    functions = ()
    variant = False
    changes_schema = True

    def check(self):
        return upgrade_database.schema(self.db.engine)

    def set_revision(self, revision):
        with self.db.engine.begin() as connection:
            connection.execute(
                sa.text('UPDATE alembic_version SET version_num = :revision'),
                {'revision': revision})

    def test_newest_schema_passes(self):
        self.assertEqual(f'revision {migration.revisions()[-1]}',
                         self.success(self.check()))

    def test_older_schema_fails(self):
        [*_, before] = migration.revisions()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.migration.revisions',
            lambda: (before, '9998_next')))
        text = self.failure(self.check())
        self.assertIn(f'is at revision {before}', text)
        self.assertIn('run "gpgpu-manage db sync"', text)

    def test_newer_schema_fails_and_names_no_sync(self):
        self.set_revision('9999_next')
        text = self.failure(self.check())
        self.assertIn('a newer one has upgraded it', text)
        self.assertNotIn('db sync', text)

    def test_schema_from_before_the_first_release_fails(self):
        self.set_revision('0039')
        text = self.failure(self.check())
        self.assertIn('revision 0039, made before the first release; create '
                      'it anew', text)
        self.assertIn('an empty database, and run "gpgpu-manage db sync"',
                      text)

    def test_schema_of_another_service_fails(self):
        self.set_revision('b7f2d1a9c3e8')
        text = self.failure(self.check())
        self.assertIn('the database of another service', text)
        self.assertNotIn('db sync', text)

    def test_empty_database_fails(self):
        database_fixture.empty(self.db.engine)
        self.assertEqual(
            'the database is empty: run "gpgpu-manage db sync"',
            self.failure(self.check()))

    def test_tables_without_a_revision_fail(self):
        database_fixture.empty(self.db.engine)
        with self.db.engine.begin() as connection:
            connection.exec_driver_sql('CREATE TABLE volumes (id INTEGER)')
        # The fixture drops the tables that it knows.
        text = self.failure(self.check())
        self.assertIn('the tables volumes: [database] connection names the '
                      'database of another service', text)


class PoliciesTest(base.ResultMixin, conductor_base.ConductorTestCase):

    cleaned_before = new_are_clean = False

    def check(self):
        with self.db.reader() as session:
            return upgrade_database.policies(session)

    def set_policy(self, policy):
        variant_admin.set_(self.db, dataclasses.replace(
            variant_admin.show(self.db, 'H100'), cleaning_policy=policy))

    def test_policy_that_may_not_pass_is_a_warning_before_any_tenant(self):
        self.assertIn('GPUs of H100 may wait for another cleaning policy '
                      'before their first', self.warning(self.check()))
        self.set_policy('reset+memory-clear+settings')
        self.assertEqual('1 variants have GPUs that can pass theirs',
                         self.success(self.check()))

    def test_policy_that_a_gpu_has_passed_is_none(self):
        self.clean_all()
        self.success(self.check())
        # That proves nothing about another one.
        self.set_policy('scrub')
        self.warning(self.check())

    def test_variant_without_gpus_is_none(self):
        variant_admin.create(self.db, admin.VariantInfo(
            name='V100', vendor='10de', device='1db4'))
        self.assertNotIn('V100', self.warning(self.check()))


SAME = f'none is silent, and all have version {version.VERSION}'


class ComputesTest(base.ResultMixin, conductor_base.ConductorTestCase):

    def check(self, timeout=900):
        with self.db.reader() as session:
            return upgrade_database.computes(session, timeout, 300)

    def set_host(self, **values):
        with self.db.writer() as session:
            session.execute(sa.update(tables.HOSTS).values(**values))

    def test_host_that_called_passes(self):
        self.assertEqual(f'1 hosts are known, {SAME}',
                         self.success(self.check()))

    def test_host_of_a_test_is_not_silent_however_old_its_rows_are(self):
        self.set_host(heard_at=1000.0)
        self.renew()
        self.success(self.check())

    def test_silent_host_is_named(self):
        self.report_second_host()
        self.set_host(heard_at=1000.0)
        text = self.warning(self.check())
        self.assertIn(' on h1, h2: start it there', text)
        self.assertIn('gpgpu-manage host delete HOST', text)

    def test_deleted_host_is_neither_counted_nor_silent(self):
        self.set_host(heard_at=1000.0, deleted=sa.literal_column('id'))
        self.assertEqual(f'0 hosts are known, {SAME}',
                         self.success(self.check()))

    def test_host_of_another_version_is_named(self):
        self.set_host(plugin_version='0.0.9')
        self.assertIn('and h1 has 0.0.9: upgrade',
                      self.warning(self.check()))

    def test_version_of_a_silent_host_does_not_matter(self):
        self.set_host(plugin_version='0.0.9', heard_at=1000.0)
        self.assertNotIn('0.0.9', self.warning(self.check()))

    def test_host_that_must_report_after_a_restore_is_named(self):
        sessions.mark_restored(self.db)
        text = self.warning(self.check())
        self.assertRegex(text, r'offer nothing: h1 \(last call 20.*Z\)\. They '
                               r'report within 10 min')
        self.assertNotIn('start it there', text)
        # It is down, so it will not report.
        self.set_host(heard_at=1000.0)
        text = self.warning(self.check())
        self.assertIn(' on h1: start it there', text)
        self.assertNotIn('within', text)
