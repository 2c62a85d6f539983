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
"""Migrations make what the models say; see functional_db for the servers."""

from alembic import autogenerate
from alembic import migration as alembic_migration
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import service
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import models
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database


class MigrationMixin:
    """Run on every kind of database."""

    def test_models_are_what_migrations_make(self):
        with self.db.engine.connect() as connection:
            context = alembic_migration.MigrationContext.configure(
                connection, opts={'compare_type': True,
                                  'compare_server_default': True})
            self.assertEqual([], autogenerate.compare_metadata(
                context, models.Base.metadata))

    def test_from_every_revision(self):
        with self.db.engine.begin() as connection:
            models.Base.metadata.drop_all(connection)
            connection.exec_driver_sql('DROP TABLE alembic_version')
        self.assertIsNone(migration.version(self.db.engine))
        for revision in migration.revisions():
            migration.sync(self.db.engine, revision)
            self.assertEqual(revision, migration.version(self.db.engine))
        migration.sync(self.db.engine)
        self.assertTrue(migration.is_current(self.db.engine))
        self.test_models_are_what_migrations_make()

    def test_rows_of_the_first_schema(self):
        with self.db.engine.begin() as connection:
            models.Base.metadata.drop_all(connection)
            connection.exec_driver_sql('DROP TABLE alembic_version')
        migration.sync(self.db.engine, '0001')
        with self.db.engine.begin() as connection:
            for statement in (
                    "INSERT INTO hosts (id, name, node, node_uuid, "
                    "generation, deleted, problems) VALUES "
                    "(1, 'h', 'h', 'u', 1, 0, '[]')",
                    "INSERT INTO variants (id, name, normalized_name, "
                    "vendor, device, type, resource_class, traits) VALUES "
                    "(1, 'A', 'A', '10de', '2330', 'gpu', 'CUSTOM_A', '[]')",
                    "INSERT INTO host_gpu_groups (id, host_id, variant_id, "
                    "provider_uuid, allocation_policy) VALUES "
                    "(1, 1, 1, 'p', 'depth_first')",
                    "INSERT INTO vgpu_types (id, gpu_group_id, vgpu_type, "
                    "max_vgpu_per_pgpu, max_capacity, remaining_capacity, "
                    "enabled) VALUES (1, 1, 'passthrough', 1, 1, 1, "
                    "(1 = 1))",
                    "INSERT INTO devices (id, uuid, host_id, stable_id, "
                    "address, state, enabled, present, facts, generation) "
                    "VALUES (1, 'd', 1, '/d', 'a', 'available', (1 = 1), "
                    "(1 = 1), '{}', 0)"):
                connection.exec_driver_sql(statement)
        migration.sync(self.db.engine)
        with self.db.reader() as session:
            device = session.get_one(models.Device, 1)
            kind = session.get_one(models.VGPUType, 1)
            variant = session.get_one(models.Variant, 1)
            self.assertEqual(
                ('pci', None, True, True, 'same_type', '["passthrough"]'),
                (device.kind, device.vgpu_type, kind.enabled, kind.listed,
                 variant.mix_policy, variant.enabled_types))


class SQLiteTest(MigrationMixin, base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.db = self.useFixture(database.Database(self.conf)).db

    def test_conductor_refuses_another_schema(self):
        empty = self.useFixture(database.Database(self.conf, sync=False)).db
        exc = self.assertRaises(
            exception.ConfigInvalid, service.ConductorService, self.conf,
            database=empty)
        self.assertIn('gpgpu-manage db sync', str(exc))

    def test_constraints_are_named(self):
        for table in models.Base.metadata.tables.values():
            for constraint in table.constraints:
                self.assertTrue(constraint.name, constraint)
