# SPDX-License-Identifier: Apache-2.0
"""Tests of ``db sync`` and ``db version``."""

import datetime
import json
import os
import subprocess
import sys
import uuid

import fixtures
import sqlalchemy as sa
from oslo_config import cfg
from oslotest import base

from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import api
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import usage as usage_db
from tests.fixtures import hosts
from tests.fixtures import tenant
from tests.unit.cmd import base as cmd_base

_HOLD = '''
import sys
import sqlalchemy as sa
from gpgpu_plugin.db import api
lock = api.SQLiteLock(sa.make_url(sys.argv[1]))
lock.acquire()
print(flush=True)
sys.stdin.read()
'''


class DBTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.path = f'{self.folder}/x.conf'
        self.write(f'sqlite:///{self.folder}/gpgpu.sqlite')

    def write(self, url):
        with open(self.path, 'w', encoding='utf-8') as file:
            file.write(f'[database]\nconnection = {url}\n')

    def manage(self, *arguments):
        return cmd_base.run('--config-file', self.path, *arguments)

    def version(self):
        return json.loads(self.manage('db', 'version', '-f', 'json').out)

    def test_sync_brings_the_schema_to_the_newest_version(self):
        newest = migration.revisions()[-1]
        self.assertEqual({'Current': '-', 'Newest': newest}, self.version())
        # Looking made no file.
        self.assertEqual(['x.conf'], os.listdir(self.folder))
        for already in ('', ' already'):
            result = self.manage('db', 'sync')
            self.assertEqual(
                (0, f'schema is at revision {newest}{already}\n', ''),
                (result.code, result.out, result.err))
        self.assertEqual({'Current': newest, 'Newest': newest},
                         self.version())

    def test_purge_says_what_it_deleted(self):
        self.manage('db', 'sync')
        result = self.manage('db', 'purge', '--before', '2026-10-31')
        self.assertEqual(
            (0, 'deleted 0 events, 0 ended assignments and 0 usages\n', ''),
            (result.code, result.out, result.err))

    def test_purge_says_what_it_kept(self):
        self.manage('db', 'sync')
        database = api.Database(
            cfg.ConfigOpts(), f'sqlite:///{self.folder}/gpgpu.sqlite')
        self.addCleanup(database.engine.dispose)
        with database.writer() as session:
            session.execute(sa.insert(usage_db.TABLE).values(
                **tenant.TENANT, assignment_uuid='a', instance_uuid='i',
                host='h', device_uuid='d', address='a',
                vgpu_type='passthrough', resource_class='C',
                began_at=datetime.datetime(2026, 10, 29),
                ended_at=datetime.datetime(2026, 10, 30)))
        result = self.manage('db', 'purge', '--before', '2026-10-31')
        self.assertEqual(0, result.code)
        self.assertIn('1 usages stay, since they were not exported',
                      result.err)

    def test_purge_refuses_a_wrong_date_and_number(self):
        for arguments, said in (
                (['--before', 'tomorrow'], "'tomorrow' is not a date"),
                (['--before', '2062-10-31'], 'is in the future'),
                (['--before', '2026-10-31', '--max-rows', '0'],
                 "'0' is not a number above 0")):
            result = self.manage('db', 'purge', *arguments)
            self.assertEqual(2, result.code)
            self.assertIn(said, result.err)

    def test_purge_beside_a_conductor_on_sqlite_is_refused(self):
        self.manage('db', 'sync')
        other = subprocess.Popen(
            [sys.executable, '-c', _HOLD,
             f'sqlite:///{self.folder}/gpgpu.sqlite'],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        # It ends with its input.
        self.addCleanup(other.communicate)
        other.stdout.readline()
        result = self.manage('db', 'purge', '--before', '2026-10-31')
        self.assertEqual(1, result.code)
        self.assertIn('only one at a time may use an SQLite file', result.err)

    def test_restored_marks_every_host(self):
        self.manage('db', 'sync')
        conf = cfg.ConfigOpts()
        database = api.Database(conf, f'sqlite:///{self.folder}/gpgpu.sqlite')
        self.addCleanup(database.engine.dispose)
        hosts.begin(database, 'h1', 'n1')
        result = self.manage('db', 'restored')
        self.assertEqual(
            (0, '1 host will report all devices and assignments within '
                '10 min; "gpgpu-manage host list" shows "restored" until '
                'they have\n', ''),
            (result.code, result.out, result.err))
        [host] = host_admin.list_all(database)
        [held] = host.holds
        self.assertIn('restored since ', held)

    def test_database_that_replaces_a_lost_one_is_that_of_its_hosts(self):
        self.manage('db', 'sync')
        conf = cfg.ConfigOpts()
        database = api.Database(conf, f'sqlite:///{self.folder}/gpgpu.sqlite')
        self.addCleanup(database.engine.dispose)
        lost = str(uuid.uuid4())
        self.assertEqual(
            0, self.manage('db', 'restored', '--cloud', lost).code)
        self.assertEqual(lost, hosts.begin(
            database, 'h1', 'n1', cloud=lost).cloud)
        self.assertEqual(
            2, self.manage('db', 'restored', '--cloud', 'mine').code)

    def test_database_that_cannot_be_opened_is_one_line(self):
        self.write('sqlite:////nowhere/gpgpu.sqlite')
        result = self.manage('db', 'sync')
        self.assertEqual((1, ''), (result.code, result.out))
        self.assertIn('unable to open database file', result.err)
        self.assertNotIn('Traceback', result.err)
        self.assertEqual(1, result.err.count('\n'))
