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
"""Tests that migrations create the models' schema, on SQLite."""

import contextlib
import datetime
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
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import models
from gpgpu_plugin.db import sync_lock
from gpgpu_plugin.db.migrations import versions
from tests.fixtures import clocks
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database


def _compare(context, inspected_column, column, inspected, default, wanted):
    """Let alembic compare defaults, once they are written in one way.

    MariaDB returns an expression without its parentheses, and Alembic
    compares a time with its quotes to one without.
    """
    same = inspected and wanted and (
        inspected.strip("()'") == wanted.strip("()'"))
    return False if same else None


DDL = ('ALTER', 'CREATE', 'DROP')


def insert_host(connection):
    """Insert host 77, as any revision can."""
    connection.exec_driver_sql(
        "INSERT INTO hosts (id, name, node, node_uuid) "
        "VALUES (77, 'h77', 'n77', 'u77')")


class MigrationMixin:
    """Tests that run on every kind of database."""

    def test_models_are_what_migrations_make(self):
        with self.db.engine.connect() as connection:
            context = alembic_migration.MigrationContext.configure(
                connection, opts={'compare_type': True,
                                  'compare_server_default': _compare})
            self.assertEqual([], autogenerate.compare_metadata(
                context, models.Base.metadata))

    def test_from_every_revision(self):
        database.empty(self.db.engine)
        self.assertIsNone(migration.version(self.db.engine))
        for revision in migration.revisions():
            migration.sync(self.db.engine, revision)
            self.assertEqual(revision, migration.version(self.db.engine))
        self.assertFalse(migration.sync(self.db.engine))
        self.assertTrue(migration.is_current(self.db.engine))
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
        for cut in range(len(statements)):
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
        self.assertTrue(migration.is_current(engine))
        self.test_models_are_what_migrations_make()
        with self.db.reader() as session:
            self.assertEqual(
                [('variants', 0)], session.query(
                    models.Lock.name, models.Lock.value).all())
        # The cuts were real: without transactions they leave tables behind.
        tables = len(models.Base.metadata.tables) + 1
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
                # Each migration is a transaction of its own, but an index
                # that is built concurrently stays.
                return statements[max(begin, *(
                    number + 1 for number in range(begin - 1, cut + 1)
                    if number < begin
                    or 'CONCURRENTLY' in statements[number])):]

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
            with sync_lock.held(connection):
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

    def test_index_on_other_columns_is_refused(self):
        database.empty(self.db.engine)
        migration.sync(self.db.engine, '0001')
        with self.db.engine.begin() as connection:
            connection.exec_driver_sql(
                'CREATE INDEX ix_assignments_lease_expires_at '
                'ON assignments (ordinal)')
        exc = self.assertRaises(
            exception.Conflict, migration.sync, self.db.engine)
        self.assertRegex(
            str(exc), 'index ix_assignments_lease_expires_at: .*ordinal')

    def test_column_of_another_type_is_refused(self):
        database.empty(self.db.engine)
        migration.sync(self.db.engine, '0001')
        with self.db.engine.begin() as connection:
            connection.exec_driver_sql(
                'ALTER TABLE hosts ADD COLUMN session VARCHAR(7)')
        exc = self.assertRaises(
            exception.Conflict, migration.sync, self.db.engine)
        self.assertRegex(str(exc), 'column hosts.session: .*VARCHAR')

    def test_host_of_the_first_revision_has_no_session(self):
        database.empty(self.db.engine)
        migration.sync(self.db.engine, '0001')
        with self.db.engine.begin() as connection:
            insert_host(connection)
        migration.sync(self.db.engine)
        with self.db.reader() as session:
            host = session.get_one(models.Host, 77)
            self.assertEqual(
                (0, None, '{}', None, False, False, 0, 0),
                (host.session, host.start_uuid, host.machine, host.heard_at,
                 host.takeover, host.restored, host.report_number,
                 host.comparison_number))

    def test_device_of_revision_3_gets_the_ids_that_variants_match(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.migrations.versions.v0005_fill_ids_of_devices.'
            '_BATCH', 2))
        database.empty(self.db.engine)
        migration.sync(self.db.engine, '0003')
        functions = ['{"vendor": "10de", "device": "2330"}', '{}',
                     '{"vendor": "1002", "device": null}',
                     '{"vendor": "10de", "device": "2330"}',
                     '{"vendor": "10de", "device": "too long"}']
        with self.db.engine.begin() as connection:
            insert_host(connection)
            for number, function in enumerate(functions):
                connection.execute(sa.text(
                    'INSERT INTO devices (uuid, host_id, stable_id, address,'
                    ' pci_function) VALUES (:id, 77, :id, :id, :function)'),
                    {'id': f'd{number}', 'function': function})
        migration.sync(self.db.engine)
        with self.db.reader() as session:
            self.assertEqual(
                [('10de', '2330'), ('', ''), ('1002', ''), ('10de', '2330'),
                 ('10de', 'too ')],
                session.query(
                    models.Device.vendor_id, models.Device.product_id)
                .order_by(models.Device.stable_id).all())

    def test_gpus_of_revision_30_are_recognised_by_their_numbers(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.migrations.versions.v0031_card_numbers.'
            '_BATCH', 2))
        database.empty(self.db.engine)
        migration.sync(self.db.engine, '0030')
        gpus = [('pci', '{"dsn": "1-2", "serial": null}', None),
                ('pci', '{}', '{"dsn": "3", "serial": "4"}'),
                ('pci', '{"dsn": "00-00", "serial": "n/a"}', None),
                ('mdev', '{"dsn": "5"}', None),
                ('pci', '{"serial": "6"}', None)]
        with self.db.engine.begin() as connection:
            insert_host(connection)
            for number, (kind, function, identity) in enumerate(gpus):
                connection.execute(sa.text(
                    'INSERT INTO devices (uuid, host_id, stable_id, address,'
                    ' kind, pci_function, identity) VALUES (:id, 77, :id, '
                    ':id, :kind, :function, :identity)'),
                    {'id': f'd{number}', 'kind': kind, 'function': function,
                     'identity': identity})
        migration.sync(self.db.engine)
        with self.db.reader() as session:
            self.assertEqual(
                [('d0', '1-2', None), ('d1', '3', '4'), ('d4', None, '6')],
                session.query(
                    models.Card.device_uuid, models.Card.dsn,
                    models.Card.serial).order_by(
                        models.Card.device_uuid).all())

    def test_exchanges_of_revision_33_were_found_before_the_migration(self):
        database.empty(self.db.engine)
        migration.sync(self.db.engine, '0033')
        with self.db.engine.begin() as connection:
            insert_host(connection)
            connection.execute(sa.text(
                "INSERT INTO events (at, kind, device_uuid) "
                "VALUES ('2026-01-02 03:04:05', 'swapped', 'd3')"))
            for uuid, before in (('d1', '{}'), ('d2', None), ('d3', '{}')):
                connection.execute(sa.text(
                    'INSERT INTO devices (uuid, host_id, stable_id, address,'
                    ' before_swap) VALUES (:uuid, 77, :uuid, :uuid, :before)'),
                    {'uuid': uuid, 'before': before})
        now = clocks.now().replace(microsecond=0)
        migration.sync(self.db.engine)
        with self.db.reader() as session:
            times = dict(session.query(
                models.Device.uuid, models.Device.swapped_at).all())
        self.assertIsNone(times['d2'])
        self.assertLessEqual(now, times['d1'])
        self.assertEqual(
            datetime.datetime(2026, 1, 2, 3, 4, 5), times['d3'])

    def test_cards_of_deleted_hosts_of_revision_33_are_remembered(self):
        database.empty(self.db.engine)
        migration.sync(self.db.engine, '0033')
        with self.db.engine.begin() as connection:
            for uuid, other in (('d1', 'd1'), ('d2', None), ('d3', 'd1')):
                connection.execute(sa.text(
                    'INSERT INTO card_numbers (device_uuid, waits_for) '
                    'VALUES (:uuid, :other)'), {'uuid': uuid, 'other': other})
        migration.sync(self.db.engine)
        with self.db.reader() as session:
            self.assertEqual(
                [('d1', None, True), ('d2', None, False), ('d3', 'd1', False)],
                session.query(
                    models.Card.device_uuid, models.Card.waits_for,
                    models.Card.whole_unclean).order_by(
                        models.Card.device_uuid).all())

    def test_hosts_of_revision_7_count_as_changed_now(self):
        database.empty(self.db.engine)
        migration.sync(self.db.engine, '0007')
        with self.db.engine.begin() as connection:
            connection.exec_driver_sql(
                "INSERT INTO hosts (id, name, node, node_uuid, generation, "
                "change_number) VALUES (77, 'h77', 'n77', 'u77', 9, 5)")
        with self.db.reader() as session:
            before = clock.epoch(session)
        migration.sync(self.db.engine)
        with self.db.reader() as session:
            self.assertEqual([(77, 9)], [
                version[:2]
                for version in host_db.changed_since(session, before)])

    def test_gpus_of_revision_10_that_had_a_tenant_are_cleaned(self):
        database.empty(self.db.engine)
        migration.sync(self.db.engine, '0010')
        with self.db.engine.begin() as connection:
            insert_host(connection)
            for number, state, parent in (
                    (1, 'available', None), (2, 'available', None),
                    (3, 'quarantined', None), (4, 'available', 1)):
                connection.execute(sa.text(
                    'INSERT INTO devices (id, uuid, host_id, stable_id, '
                    'address, state, parent_id) VALUES (:id, :uuid, 77, '
                    ':uuid, :uuid, :state, :parent)'),
                    {'id': number, 'uuid': f'd{number}', 'state': state,
                     'parent': parent})
            for number in (1, 3, 4):
                connection.execute(sa.text(
                    "INSERT INTO assignments (uuid, device_id, host_id, "
                    "instance_uuid, role, migration_uuid, ordinal, vgpu_type, "
                    "resource_class) VALUES (:uuid, :id, 77, :uuid, "
                    "'instance', '', 0, 'passthrough', 'C')"),
                    {'id': number, 'uuid': f'a{number}'})
        migration.sync(self.db.engine)
        with self.db.reader() as session:
            self.assertEqual(
                [('d1', 'dirty', 'd1', ''), ('d2', 'available', None, None),
                 ('d3', 'quarantined', None, None),
                 ('d4', 'available', None, None)],
                session.query(
                    models.Device.uuid, models.Device.state,
                    models.Device.clean_token, models.Device.cleaned_steps)
                .order_by(models.Device.uuid).all())

    def test_usage_of_revision_15_stays_and_may_begin_before_it_ends(self):
        database.empty(self.db.engine)
        migration.sync(self.db.engine, '0015')
        with self.db.engine.begin() as connection:
            connection.exec_driver_sql(
                "INSERT INTO usages (assignment_uuid, instance_uuid, role, "
                "project_id, host, vgpu_type, resource_class, began_at, "
                "ended_at) VALUES ('a1', 'i1', 'instance', 'p1', 'h1', "
                "'passthrough', 'C', '2026-10-01 10:00:00', "
                "'2026-10-01 11:00:00')")
        migration.sync(self.db.engine)
        with self.db.writer() as session:
            session.add(models.Usage(
                assignment_uuid='a2', instance_uuid='i1', role='instance',
                host='h1', vgpu_type='passthrough', resource_class='C'))
        with self.db.reader() as session:
            self.assertEqual(
                [('a1', 'p1', datetime.datetime(2026, 10, 1, 11), None, None),
                 ('a2', None, None, None, None)],
                session.query(
                    models.Usage.assignment_uuid, models.Usage.project_id,
                    models.Usage.ended_at, models.Usage.exported_at,
                    models.Usage.flavor)
                .order_by(models.Usage.assignment_uuid).all())

    def test_policy_that_was_set_before_variants_had_one_stays(self):
        database.empty(self.db.engine)
        migration.sync(self.db.engine, '0022')
        with self.db.engine.begin() as connection:
            insert_host(connection)
            for number, policy in ((1, 'depth_first'), (2, 'breadth_first')):
                connection.execute(sa.text(
                    'INSERT INTO variants (id, name, normalized_name, '
                    'vendor, device, resource_class) VALUES (:id, :name, '
                    ':name, :name, :name, :name)'),
                    {'id': number, 'name': f'V{number}'})
                connection.execute(sa.text(
                    'INSERT INTO host_gpu_groups (id, host_id, variant_id, '
                    'provider_uuid, allocation_policy) VALUES (:id, 77, '
                    ':id, :uuid, :policy)'),
                    {'id': number, 'uuid': f'p{number}', 'policy': policy})
        migration.sync(self.db.engine)
        with self.db.reader() as session:
            self.assertEqual(
                [('depth_first', False, 'depth_first'),
                 ('breadth_first', True, 'depth_first')],
                [(group.allocation_policy, group.own_policy,
                  group.variant.allocation_policy) for group in
                 session.query(models.Group).order_by(models.Group.id)])

    def test_revision_of_another_service_is_refused(self):
        with self.db.engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE alembic_version SET version_num = 'a1b2c3'")
        exc = self.assertRaises(
            exception.Conflict, migration.sync, self.db.engine)
        self.assertRegex(str(exc), r'revision a1b2c3, .* knows 0001 to')

    def test_row_gets_defaults_of_columns_that_its_writer_does_not_know(self):
        with self.db.engine.begin() as connection:
            insert_host(connection)
            connection.exec_driver_sql(
                "INSERT INTO devices (id, uuid, host_id, stable_id, address)"
                " VALUES (77, 'd77', 77, '/d77', 'a')")
            connection.exec_driver_sql(
                "INSERT INTO variants (id, name, normalized_name, vendor, "
                "device, resource_class) "
                "VALUES (77, 'v77', 'V77', '10de', '2330', 'CUSTOM_V77')")
        with self.db.reader() as session:
            host = session.get_one(models.Host, 77)
            device = session.get_one(models.Device, 77)
            variant = session.get_one(models.Variant, 77)
            self.assertEqual(
                (
                    0,
                    0,
                    '[]',
                    'quarantined',
                    True,
                    '{}',
                    'gpu',
                    'same_type',
                    '["passthrough"]',
                    False,
                ),
                (
                    host.generation,
                    host.deleted,
                    host.problems,
                    device.state,
                    device.enabled,
                    device.pci_function,
                    variant.type,
                    variant.mix_policy,
                    variant.enabled_types,
                    variant.unsupported_ok,
                ),
            )


class SQLiteTest(MigrationMixin, base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.db = self.useFixture(database.Database(self.conf)).db

    def test_migrations_compare_before_they_act(self):
        """Migrations create tables and indexes by gpgpu_plugin.db.ddl."""
        files = list(pathlib.Path(versions.__file__).parent.glob('v*.py'))
        self.assertEqual(len(migration.revisions()), len(files))
        for path in files:
            self.assertNotRegex(path.read_text(encoding='utf-8'),
                                r'\bop\.(create|drop|add|bulk_insert)')

    def test_revisions_are_numbers_in_order(self):
        found = list(migration.revisions())
        self.assertEqual([f'{number:04}' for number in range(
            1, len(found) + 1)], found)
