# SPDX-License-Identifier: Apache-2.0
"""Signals to gpgpu-conductor as a process of its own, over RabbitMQ."""

import ctypes
import pathlib
import signal
import socket
import subprocess
import sys
import uuid

import fixtures
import sqlalchemy as sa
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin.db import api
from gpgpu_plugin.rpc import ping
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database
from tests.fixtures import keys
from tests.fixtures import patience
from tests.fixtures import services


class ProgramTestCase(base.BaseTestCase):
    """gpgpu-conductor as a process, which serves when a test begins.

    :cvar lines: of its configuration, beside the others
    """

    lines = ()

    def setUp(self):
        super().setUp()
        services.require(self, services.RABBITMQ)
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.conf.set_override('transport_url', services.RABBITMQ, 'gpgpu')
        self.folder = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        self.log = self.folder / 'log'
        self.url = database.new_sqlite(str(self.folder))
        db = api.Database(self.conf, self.url)
        made = self.useFixture(keys.Keys(self.conf, db))
        for kind, name in ((context.CallerKind.OPERATOR, 'root'),
                           (context.CallerKind.HOST, 'h1'),
                           (context.CallerKind.SCHEDULER, 's1')):
            made.make(kind, name)
        db.engine.dispose()
        self.prefix = f'test-{uuid.uuid4().hex[:8]}'
        self.configure(self.prefix, *self.lines)
        notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(notified.close)
        notified.bind(str(self.folder / 'notify'))
        notified.settimeout(patience.LONG)
        self.process = self.start()
        self.assertEqual(b'READY=1', notified.recv(100))

    def configure(self, prefix, *lines):
        (self.folder / 'gpgpu.conf').write_text('\n'.join((
            '[gpgpu]', f'transport_url = {services.RABBITMQ}',
            f'topic_prefix = {prefix}',
            f'keys_path = {self.conf.gpgpu.keys_path}', *lines,
            '[database]', f'connection = {self.url}', '')))

    def start(self, log='log'):
        self.useFixture(fixtures.EnvironmentVariable(
            'NOTIFY_SOCKET', str(self.folder / 'notify')))
        with (self.folder / log).open('w') as output:
            process = subprocess.Popen(
                [sys.executable, '-m', 'gpgpu_plugin.cmd.conductor',
                 '--config-file', str(self.folder / 'gpgpu.conf')],
                stdout=output, stderr=output)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def wait_log(self, words):
        self.assertTrue(
            patience.wait_until(lambda: words in self.log.read_text()),
            self.log.read_text())

    def pids(self, prefix):
        """Return the processes that answer as conductors of a cloud."""
        self.conf.set_override('topic_prefix', prefix, 'gpgpu')
        return patience.wait_until(lambda: [
            answer.pid for answer in ping.ping(self.conf, wait=1)])


class SignalTest(ProgramTestCase):

    def test_usr2_writes_a_report_and_the_conductor_goes_on(self):
        self.process.send_signal(signal.SIGUSR2)
        self.wait_log('Guru Meditation')
        self.wait_log('gpgpu-conductor')
        self.assertEqual([self.process.pid], self.pids(self.prefix))
        self.assertNotIn('guest:guest', self.log.read_text())

    def test_hup_reads_the_configuration_again(self):
        changed = f'{self.prefix}-changed'
        self.configure(changed)
        self.process.send_signal(signal.SIGHUP)
        self.wait_log('with the reloaded configuration')
        self.assertEqual([self.process.pid], self.pids(changed))

    def test_hup_with_a_wrong_configuration_changes_nothing(self):
        self.configure(self.prefix, 'rpc_timeout = soon')
        self.process.send_signal(signal.SIGHUP)
        self.wait_log('The configuration was not reloaded')
        self.wait_log('rpc_timeout')
        self.assertEqual([self.process.pid], self.pids(self.prefix))

    def test_hup_after_which_it_cannot_start_ends_the_conductor(self):
        folder = self.folder / 'other'
        folder.mkdir()
        self.url = database.new_sqlite(str(folder))
        other = api.SQLiteLock(sa.make_url(self.url))
        other.acquire()
        self.addCleanup(other.release)
        self.configure(self.prefix)
        self.process.send_signal(signal.SIGHUP)
        self.assertEqual(1, self.process.wait(patience.LONG))
        self.wait_log('another gpgpu-conductor uses')
        self.assertNotIn('Traceback', self.log.read_text())

    def test_second_conductor_on_an_sqlite_file_is_refused(self):
        second = self.start('second log')
        self.assertEqual(1, second.wait(patience.LONG))
        said = (self.folder / 'second log').read_text().splitlines()[-1]
        self.assertIn('another gpgpu-conductor uses', said)
        self.process.kill()
        self.process.wait()
        third = self.start()
        self.wait_log('serves')
        self.assertEqual([third.pid], self.pids(self.prefix))

    def test_term_that_interrupts_another_thread_ends_the_conductor(self):
        # When it answers, its main thread waits for a signal.
        self.assertEqual([self.process.pid], self.pids(self.prefix))
        [thread, *_] = [
            path.name for path in pathlib.Path(
                f'/proc/{self.process.pid}/task').iterdir()
            if path.name != str(self.process.pid)]
        ctypes.CDLL(None).tgkill(
            self.process.pid, int(thread), signal.SIGTERM)
        self.assertEqual(0, self.process.wait(patience.LONG))

    def test_term_ends_the_conductor(self):
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(0, self.process.wait(patience.LONG))
