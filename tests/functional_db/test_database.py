#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""The conductor's rules and schema on PostgreSQL and MariaDB."""

import threading

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.objects import admin
from tests.fixtures import database
from tests.fixtures import hosts
from tests.fixtures import services
from tests.unit.conductor import base
from tests.unit.conductor import test_adoption
from tests.unit.conductor import test_claims
from tests.unit.conductor import test_cleaning
from tests.unit.conductor import test_confirmation
from tests.unit.conductor import test_driver_capacity
from tests.unit.conductor import test_releases
from tests.unit.conductor import test_reports
from tests.unit.conductor import test_scheduler_feed
from tests.unit.conductor import test_sessions
from tests.unit.conductor import test_vgpu_capacity
from tests.unit.conductor import test_vgpu_claims
from tests.unit.conductor.admin import test_device
from tests.unit.conductor.admin import test_group
from tests.unit.conductor.admin import test_host
from tests.unit.conductor.admin import test_variant
from tests.unit.conductor.admin import test_vgpu_type
from tests.unit.db import test_assignment
from tests.unit.db import test_migration


class PostgreSQLMixin:

    server = services.POSTGRESQL

    def setUp(self):
        services.require(self, self.server)
        super().setUp()

    def database(self):
        return database.ServerDatabase(self.conf, self.server)


class MariaDBMixin(PostgreSQLMixin):

    server = services.MARIADB


class LateCommit(base.ConductorTestCase):
    """A change that commits after a later one was read is not skipped."""

    def test_late_commit_is_not_skipped(self):
        second = '22222222-2222-2222-2222-222222222222'
        base.hosts.store(
            self.db, base.scan((), host='h2', node_uuid=second))
        known = scheduler_feed.changes_since(self.db, 0).generation
        begun, commit = threading.Event(), threading.Event()

        def late():
            with self.db.writer() as session:
                host_db.changed(host_db.lock(session, 'h1'))
                session.flush()
                begun.set()
                commit.wait(300)
        writer = threading.Thread(target=late)
        writer.start()
        self.addCleanup(writer.join)
        self.addCleanup(commit.set)
        self.assertTrue(begun.wait(300))
        with self.db.writer() as session:
            host_db.changed(host_db.lock(session, 'h2'))
        first = scheduler_feed.changes_since(self.db, known)
        self.assertEqual(['h2'], [host.host for host in first.hosts])
        commit.set()
        writer.join(300)
        after = scheduler_feed.changes_since(self.db, first.generation)
        self.assertEqual(['h1'], [host.host for host in after.hosts])


class FirstReport(base.ConductorTestCase):
    """A host that reports first while an operator changes variants."""

    variant = False

    def setUp(self):
        super().setUp()
        self.locked, self.asked = threading.Event(), threading.Event()
        lock_row, lock_all = host_db.lock_row, host_db.lock_all

        def lock_variants(session, name):
            if threading.current_thread() is self.reporter:
                self.asked.set()
            return lock_row(session, name)

        def lock_hosts(session):
            hosts = lock_all(session)
            self.locked.set()
            self.asked.wait(300)
            return hosts
        self.reporter = threading.Thread(target=self.report_h2)
        self.addCleanup(self.reporter.join)
        self.addCleanup(self.asked.set)
        for name, replacement in (('lock_row', lock_variants),
                                  ('lock_all', lock_hosts)):
            self.useFixture(fixtures.MonkeyPatch(
                f'gpgpu_plugin.db.host.{name}', replacement))

    def report_h2(self):
        self.locked.wait(300)
        try:
            self.report_second_host()
        finally:
            self.asked.set()

    def meanwhile(self, change, *args):
        self.reporter.start()
        change(self.db, *args)
        self.reporter.join(300)

    def variants_of_h2(self):
        return {device.variant
                for device in device_admin.list_all(self.db, 'h2')}

    def test_variant_that_is_created_meanwhile_is_the_hosts_too(self):
        self.meanwhile(variant_admin.create, admin.VariantInfo(
            name='H100', vendor='10de', device='2330'))
        self.assertEqual({'H100'}, self.variants_of_h2())

    def test_variant_that_is_deleted_meanwhile_is_not_the_hosts(self):
        self.asked.set()
        variant_admin.create(self.db, admin.VariantInfo(
            name='H100', vendor='10de', device='2330'))
        self.asked.clear()
        self.locked.clear()
        self.meanwhile(variant_admin.delete, 'H100')
        self.assertEqual({None}, self.variants_of_h2())


class Migration(test_migration.MigrationMixin, base.ConductorTestCase):

    functions = ()
    variant = False


def _on(mixin, *cases):
    """Derive each test case for the server of the mixin."""
    prefix = mixin.__name__.removesuffix('Mixin')
    return {f'{prefix}{case.__name__}': type(
        f'{prefix}{case.__name__}', (mixin, case),
        {'__module__': __name__}) for case in cases}


for _mixin in (PostgreSQLMixin, MariaDBMixin):
    globals().update(_on(
        _mixin, test_sessions.BeginTest, test_sessions.CheckTest,
        test_sessions.ReportOrderTest, test_sessions.RestoreTest,
        test_adoption.AdoptionTest, test_claims.ClaimTest,
        test_releases.EndTest,
        test_assignment.UniqueKeyTest,
        test_cleaning.TasksTest, test_cleaning.StartedTest,
        test_cleaning.FinishedTest, test_cleaning.OperatorReleaseTest,
        test_confirmation.ConfirmationTest, test_reports.ReportTest,
        test_variant.VariantTest,
        test_device.DeviceTest, test_group.GroupTest, test_host.HostTest,
        test_host.VGPUHostTest,
        test_scheduler_feed.ChangesTest,
        test_vgpu_type.ListTest, test_vgpu_type.EnableTest,
        test_vgpu_capacity.MdevCapacityTest,
        test_vgpu_capacity.VFCapacityTest, test_vgpu_claims.MdevClaimTest,
        test_driver_capacity.DriverCapacityTest, LateCommit, FirstReport,
        Migration))
del FirstReport, LateCommit, Migration, _mixin


class SkipLockedTest(PostgreSQLMixin, base.ConductorTestCase):

    def test_concurrent_readers_number_a_change_once(self):
        scheduler_feed.changes_since(self.db, 0)
        with self.db.reader() as session:
            numbers = list(session.scalars(sa.select(
                models.Host.change_number)))
        self.assertEqual([1], numbers)


class NameTest(MariaDBMixin, base.ConductorTestCase):
    """MariaDB compares names without case and without blanks at the end."""

    def test_host_by_another_name_does_not_exist(self):
        for name in ('H1', 'h1 '):
            for call in (
                    lambda name: host_admin.check_not_running(
                        self.db, name, lambda: self.fail('asked')),
                    lambda name: host_admin.delete(self.db, name),
                    lambda name: device_admin.list_all(self.db, name),
                    lambda name: group_admin.set_(
                        self.db, name, 'H100', 'breadth_first'),
                    lambda name: self.claim(host=name)):
                self.assertRaises(
                    (exception.NotFound, exception.ClaimDenied), call, name)
        self.assertEqual({'available': 8}, self.states())

    def test_host_renamed_to_upper_case_is_refused_with_the_reason(self):
        exc = self.assertRaises(
            exception.Conflict, hosts.store, self.db,
            base.scan(base.EIGHT, host='H1'))
        self.assertIn('is reported by host h1 already', str(exc))

    def test_variant_by_another_name_does_not_exist(self):
        for name in ('h100', 'H100 '):
            for call in (variant_admin.show, variant_admin.delete):
                self.assertRaises(exception.NotFound, call, self.db, name)
        self.assertEqual(['H100'], [
            variant.name for variant in variant_admin.list_all(self.db)])
