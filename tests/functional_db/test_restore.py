# SPDX-License-Identifier: Apache-2.0
"""Restore of a backup that a database's own programs made."""

from __future__ import annotations

import collections
import os
import pathlib
import shutil
import subprocess
import types

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.conductor import manager
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.objects import history as history_obj
from gpgpu_plugin.virt import steps
from tests.fixtures import database
from tests.fixtures import known_machine
from tests.fixtures import network
from tests.fixtures import orphans
from tests.fixtures import services
from tests.fixtures import virt_driver
from tests.unit.conductor import base


class RestoreMixin:
    """A host of four GPUs, and one that nobody uses meanwhile."""

    functions = ()
    programs = ()

    def setUp(self):
        for program in self.programs:
            if shutil.which(program) is None:
                services.missing(self, f'no program {program}')
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.path = f'{self.folder}/backup'
        self.servers = set()
        self.seconds = 0.0
        self.conductor = manager.ConductorManager(
            self.conf, self.db, types.SimpleNamespace())
        self.machines = {
            host: known_machine.KnownMachine(host, [
                base.replace(number, dsn=f'{host}-{number}')
                for number in range(4)])
            for host in ('h1', 'h2')}
        self.trackers = {host: self.start(host) for host in self.machines}
        self.build('before')
        self.back_up()
        self.build('after')
        # Its GPU is dirty, which the backup does not know.
        self.build('deleted')
        self.delete('deleted')

    def start(self, host):
        """Start a new nova-compute of a host and run its first iteration."""
        self.conf.set_override(
            'state_path', os.path.join(self.folder, host), 'gpgpu_compute')
        tracker = resource_tracker.ResourceTracker(
            self.conf, host, self.machines[host],
            network.NetworkAPI(network.Network(self.conductor)),
            virt_driver.make(types.SimpleNamespace(
                get_allocations_for_resource_provider=lambda *args: (
                    types.SimpleNamespace(allocations={})))),
            orphans.search(lambda assignment: (
                assignment.instance_uuid not in self.servers)),
            clock=lambda: self.seconds)
        tracker.set_node(host, base.scan((), host=host).node_uuid
                         if host == 'h1' else f'{host:0>36}')
        tracker.run_once()
        return tracker

    def build(self, instance, count=1):
        self.servers.add(instance)
        machine, tracker = self.machines['h1'], self.trackers['h1']
        with tracker.builds.running(instance):
            steps.execute(steps.Spawn(
                tracker=tracker, request=self.request(count, instance),
                spawn=lambda: machine.start_guest(instance, (
                    assignment.stable_id for assignment
                    in tracker.assignments.of_instance(instance))),
                destroy=lambda: machine.end_guest(instance)))

    def delete(self, instance):
        self.servers.discard(instance)
        self.machines['h1'].end_guest(instance)
        self.trackers['h1'].release_instance(instance)

    def restore(self):
        self.put_back()
        self.assertEqual({'assigned': 1, 'available': 3}, self.states())

    def users(self):
        """Return the GPUs of each server of h1 in the database."""
        found = {}
        for device in device_admin.list_all(self.db, 'h1'):
            if device.used_by is not None:
                found.setdefault(device.used_by, set()).add(device.stable_id)
        return found

    def running(self):
        """Return the number of GPUs of each server that counts as usage."""
        return dict(collections.Counter(
            usage.instance_uuid for usage in history.list_usage(
                self.db, history_obj.UsageQuery())
            if usage.ended_at is None))

    def iterate(self):
        """Let each host ask for its digest, as it does periodically."""
        self.seconds += 3600
        for tracker in self.trackers.values():
            tracker.run_once()

    def check(self):
        """Check that the database agrees with the machines, also later."""
        self.iterate()
        machine = self.machines['h1']
        self.assertEqual(machine.guests, self.users())
        self.assertEqual({'before', 'after'}, set(machine.guests))
        self.assertEqual({'before': 1, 'after': 1}, self.running())
        self.assertEqual({'assigned': 2, 'available': 2}, self.states())
        # The one that was dirty was cleaned.
        self.assertEqual(machine.used, set(machine.dirty))
        self.assertEqual(
            [(), ()],
            [host.holds for host in host_admin.list_all(self.db)])
        self.build('next', 2)
        self.assertRaises(exception.ClaimDenied, self.build, 'last')
        for instance in ('before', 'after', 'next'):
            self.delete(instance)
        self.trackers['h1'].run_once()
        self.assertEqual({'available': 4}, self.states())
        self.assertEqual({}, self.running())

    def test_marked_restore_gives_no_gpu_away(self):
        self.restore()
        sessions.mark_restored(self.db)
        self.assertRaises(
            (exception.SessionLost, exception.ClaimDenied),
            self.build, 'early', 3)
        self.check()

    def test_restore_that_nobody_marked_gives_no_gpu_away(self):
        self.restore()
        self.assertRaises(exception.GPUPluginException,
                          self.build, 'early', 3)
        self.check()

    def test_restart_of_the_owner_keeps_its_book(self):
        self.restore()
        before = {assignment.uuid for assignment
                  in self.trackers['h1'].assignments.all()}
        self.trackers['h1'] = self.start('h1')
        self.assertEqual(before, {
            assignment.uuid for assignment
            in self.trackers['h1'].assignments.all()})
        self.check()

    def test_guest_that_ended_after_a_restore_is_released(self):
        self.restore()
        self.delete('after')
        self.iterate()
        self.assertEqual({'assigned': 1, 'available': 3}, self.states())
        self.assertEqual(self.machines['h1'].used,
                         set(self.machines['h1'].dirty))


class SQLiteRestoreTest(RestoreMixin, base.ConductorTestCase):
    """The file is copied while no conductor has it open."""

    def back_up(self):
        self.db.engine.dispose()
        shutil.copy(self.db.engine.url.database, self.path)

    def put_back(self):
        self.db.engine.dispose()
        file = self.db.engine.url.database
        for left in ('-wal', '-shm'):
            pathlib.Path(f'{file}{left}').unlink(missing_ok=True)
        shutil.copy(self.path, file)


class ServerMixin(RestoreMixin):

    server = ''

    def setUp(self):
        services.require(self, self.server)
        super().setUp()

    def database(self):
        return database.ServerDatabase(
            self.conf, self.server, content=self.content)

    @property
    def url(self):
        return self.db.engine.url

    def execute(self, program, *arguments, **options):
        subprocess.run(
            [program, *arguments], check=True, capture_output=True,
            env={**os.environ, **{
                name: self.url.password for name in ('PGPASSWORD', 'MYSQL_PWD')
                if self.url.password}}, **options)


class PostgreSQLRestoreTest(ServerMixin, base.ConductorTestCase):

    server = services.POSTGRESQL
    programs = ('pg_dump', 'psql')

    def connection(self):
        return ('--host', self.url.host, '--port', str(self.url.port or 5432),
                '--username', self.url.username, self.url.database)

    def back_up(self):
        self.execute('pg_dump', '--clean', '--if-exists', '--file',
                     self.path, *self.connection())

    def put_back(self):
        self.execute('psql', '--quiet', '--set', 'ON_ERROR_STOP=1', '--file',
                     self.path, *self.connection())


class MariaDBRestoreTest(ServerMixin, base.ConductorTestCase):

    server = services.MARIADB
    programs = ('mariadb-dump', 'mariadb')

    def connection(self):
        return ('--host', self.url.host, '--port', str(self.url.port or 3306),
                '--user', self.url.username, self.url.database)

    def back_up(self):
        self.execute('mariadb-dump', '--single-transaction',
                     f'--result-file={self.path}', *self.connection())

    def put_back(self):
        with open(self.path, encoding='utf-8') as file:
            self.execute('mariadb', *self.connection(), stdin=file)
