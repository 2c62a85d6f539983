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
"""The conductor's rules and schema on the servers of production."""

import threading

import sqlalchemy as sa

from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from tests.fixtures import database
from tests.fixtures import services
from tests.unit.conductor import base
from tests.unit.conductor import test_claims
from tests.unit.conductor import test_confirmation
from tests.unit.conductor import test_driver_capacity
from tests.unit.conductor import test_reports
from tests.unit.conductor import test_scheduler_feed
from tests.unit.conductor import test_vgpus
from tests.unit.conductor.admin import test_device
from tests.unit.conductor.admin import test_group
from tests.unit.conductor.admin import test_host
from tests.unit.conductor.admin import test_variant
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
        base.reports.report(
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
        self.assertEqual(['h2'], [each.host for each in first.hosts])
        commit.set()
        writer.join(300)
        after = scheduler_feed.changes_since(self.db, first.generation)
        self.assertEqual(['h1'], [each.host for each in after.hosts])


class Migration(test_migration.MigrationMixin, base.ConductorTestCase):

    cards = ()
    variant = False


def _on(mixin, *cases):
    """Each case on the server of the mixin."""
    prefix = mixin.__name__.removesuffix('Mixin')
    return {f'{prefix}{case.__name__}': type(
        f'{prefix}{case.__name__}', (mixin, case),
        {'__module__': __name__}) for case in cases}


for _mixin in (PostgreSQLMixin, MariaDBMixin):
    globals().update(_on(
        _mixin, test_claims.ClaimTest, test_claims.EndTest,
        test_claims.CleaningTest, test_claims.UniqueKeyTest,
        test_confirmation.ConfirmationTest, test_reports.ReportTest,
        test_variant.VariantTest,
        test_device.DeviceTest, test_group.GroupTest, test_host.HostTest,
        test_scheduler_feed.ChangesTest,
        test_vgpus.TypesTest, test_vgpus.CapacityTest, test_vgpus.SeatTest,
        test_vgpus.VFTest, test_driver_capacity.ToldTest, LateCommit,
        Migration))
del LateCommit, Migration, _mixin


class SkipLockedTest(PostgreSQLMixin, base.ConductorTestCase):

    def test_numbers_are_given_once(self):
        scheduler_feed.changes_since(self.db, 0)
        with self.db.reader() as session:
            numbers = list(session.scalars(sa.select(
                models.Host.change_number)))
        self.assertEqual([1], numbers)


class HostNameTest(MariaDBMixin, base.ConductorTestCase):
    """MariaDB compares names without case, a broker with it."""

    def test_host_named_in_upper_case_is_asked_by_its_own_name(self):
        asked = []
        host_admin.check_not_running(
            self.db, 'H1', lambda name: asked.append(name) or False)
        self.assertEqual(['h1'], asked)
        self.assertEqual('h1', host_admin.delete(self.db, 'H1'))
