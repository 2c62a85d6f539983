# SPDX-License-Identifier: Apache-2.0
"""Tests of the lock of a conductor on an SQLite file."""

import subprocess
import sys

import fixtures
import sqlalchemy as sa
from oslotest import base

from gpgpu_plugin.db import api

_TAKE = '''
import sys
import sqlalchemy as sa
from gpgpu_plugin import exception
from gpgpu_plugin.db import api
try:
    api.SQLiteLock(sa.make_url(sys.argv[1])).acquire()
except exception.ConfigInvalid as exc:
    print(exc)
'''


class SQLiteLockTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        folder = self.useFixture(fixtures.TempDir()).path
        self.url = f'sqlite:///{folder}/x.sqlite'
        self.lock = api.SQLiteLock(sa.make_url(self.url))

    def refusal(self):
        """Return what another process is told that takes the lock."""
        return subprocess.run(
            [sys.executable, '-c', _TAKE, self.url], capture_output=True,
            text=True, check=True, timeout=900).stdout

    def test_other_process_is_refused_until_release(self):
        self.lock.acquire()
        self.assertIn('x.sqlite, and only one at a time', self.refusal())
        self.lock.release()
        self.assertEqual('', self.refusal())

    def test_servers_and_databases_in_memory_are_not_locked(self):
        for url in ('sqlite://', 'sqlite:///:memory:',
                    'postgresql://127.0.0.1/gpgpu'):
            lock = api.SQLiteLock(sa.make_url(url))
            lock.acquire()
            lock.release()
