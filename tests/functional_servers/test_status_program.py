# SPDX-License-Identifier: Apache-2.0
"""gpgpu-status as a process, over RabbitMQ and PostgreSQL."""

import json
import pathlib
import subprocess
import sys
import uuid

import fixtures
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin.conductor import service
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.objects import admin
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database
from tests.fixtures import hosts
from tests.fixtures import keys
from tests.fixtures import services
from tests.unit.cmd.upgrade import test_nova
from tests.unit.conductor import base as machine

_NOVA = ['[DEFAULT]', 'compute_driver = gpgpu.GpuLibvirtDriver',
         '[filter_scheduler]', *test_nova.AVAILABLE,
         f'{test_nova.ENABLED},GpuNUMATopologyFilter,GpuFilter']


class StatusProgramTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        services.require(self, services.RABBITMQ, services.POSTGRESQL)
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        # A GPU that has passed its policy leaves no doubt about that.
        self.conf = self.useFixture(
            conductor_fixture.Conf(cleaned_before=False)).conf
        self.conf.set_override('transport_url', services.RABBITMQ, 'gpgpu')
        self.conf.set_override(
            'topic_prefix', f'test-{uuid.uuid4().hex[:8]}', 'gpgpu')
        made = database.ServerDatabase(self.conf, services.POSTGRESQL)
        self.useFixture(made)
        self.db = made.db
        self.keys = self.useFixture(keys.Keys(self.conf, self.db))
        for kind, name in (('operator', 'root'), ('host', 'h1'),
                           ('scheduler', 'control1')):
            self.keys.make(context.CallerKind(kind), name)
        hosts.store(self.db, machine.scan(machine.EIGHT))
        self.conductor = service.ConductorService(
            self.conf, database=self.db)
        self.conductor.start()
        self.addCleanup(self.stop)
        self.own = [
            '[gpgpu]', f'transport_url = {services.RABBITMQ}',
            f'topic_prefix = {self.conf.gpgpu.topic_prefix}',
            f'keys_path = {self.conf.gpgpu.keys_path}']
        self.write('gpgpu.conf', *self.own, '[database]',
                   f'connection = {made.connection}')

    def stop(self):
        if self.conductor is not None:
            self.conductor.stop()
            self.conductor = None

    def write(self, name, *lines):
        (self.folder / name).write_text('\n'.join((*lines, '')))

    def status(self):
        """Return the exit code, and the result of each check."""
        done = subprocess.run(
            [sys.executable, '-m', 'gpgpu_plugin.cmd.status',
             '--config-file', str(self.folder / 'gpgpu.conf'),
             '--nova-config-file', str(self.folder / 'nova.conf'),
             'upgrade', 'check', '--json'],
            stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, {
            check['check']: (check['result'], check['details'])
            for check in json.loads(done.stdout)['checks']}

    def test_cloud_in_order_has_one_warning_and_a_broken_one_fails(self):
        self.write('nova.conf', *_NOVA, *self.own)
        code, found = self.status()
        # There is no Placement here, and Nova sends no notifications.
        self.assertEqual(
            {'Notifications of Nova': 1, 'Placement': 1},
            {name: result for name, (result, _) in found.items() if result},
            found)
        self.assertEqual(1, code)
        self.assertIn('1 answered', found['Conductors'][1])

        self.stop()
        variant_admin.create(self.db, admin.VariantInfo(
            name='H100', vendor='10de', device='2330'))
        self.db.write(lambda session: caller_key_db.revoke(
            session, 'host', 'h1', None))
        self.write('nova.conf', *_NOVA, *self.own, 'rpc_timeout = 60', '[pci]',
                   'device_spec = {"vendor_id": "10de", "product_id": "2330"}')
        code, found = self.status()
        self.assertEqual(2, code)
        self.assertEqual(
            {'Conductors': 1, 'Cleaning policies': 1,
             'Keys of hosts and schedulers': 2, '[gpgpu] of nova.conf': 1,
             'Devices that Nova assigns': 2, 'Notifications of Nova': 1,
             'Placement': 1},
            {name: result for name, (result, _) in found.items() if result},
            found)
