# SPDX-License-Identifier: Apache-2.0
"""Tests of what gpgpu-status says if something that it needs is missing.

test_every_command does the same for the commands of gpgpu-manage,
test_conductor for gpgpu-conductor, and virt.test_configured for nova-compute
with the plugin.
"""

import contextlib
import json
import pathlib
import socket

import fixtures
from oslotest import base

from tests.fixtures import database
from tests.fixtures import programs
from tests.unit.cmd import test_every_command


class ProgramTestCase(base.BaseTestCase):
    """Base class with the files of a bad day.

    :ivar files: arguments by what is wrong with the files that they name, and
        what the message has
    :ivar away: port on which nobody listens
    :ivar silent: port on which connections are accepted and never answered
    """

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.away = stack.enter_context(test_every_command.unused_port())
        self.silent = stack.enter_context(socket.create_server(
            ('127.0.0.1', 0))).getsockname()[1]
        self.schema = database.new_sqlite(self.new_folder())
        (self.folder / 'binary').write_bytes(b'\xff\xfe\n')
        (self.folder / 'empty').touch()
        # First of the default files, so that no file of this machine is read.
        (self.folder / '.gpgpu').mkdir()
        (self.folder / '.gpgpu' / 'gpgpu.conf').touch()
        binary = f'{self.folder}/binary'
        self.files = (
            (('--config-file', '/nowhere/x.conf'),
             ('/nowhere/x.conf: cannot be read: No such file',
              'with --config-file')),
            (('--config-file', str(self.folder)),
             (f'{self.folder}: cannot be read: Is a directory', )),
            ((f'--config-file={binary}', ),
             (f'{binary}: cannot be read: it is not a text file', )),
            (self.conf('nonsense', 'nonsense'), ('nonsense:5', )),
            (('--config-dir', '/nowhere/conf.d'),
             ('/nowhere/conf.d', '--config-dir')),
            (self.conf('malformed', 'rpc_timeout = soon'),
             ('rpc_timeout', 'soon')))

    def new_folder(self):
        return self.useFixture(fixtures.TempDir()).path

    def write(self, name, *lines):
        path = self.folder / name
        path.write_text('\n'.join((*lines, '')))
        return str(path)

    def conf(self, name, *lines, connection=None, port=None):
        """Return the arguments that name a file with these lines.

        :param connection: default: a database with the schema
        :param port: of the broker; default: nobody listens there
        """
        return ('--config-file', self.write(
            name, '[gpgpu]', f'keys_path = {self.folder}/keys',
            'transport_url = rabbit://me:secret@127.0.0.1:'
            f'{port or self.away}/', 'rpc_timeout = 1', *lines,
            '[database]', f'connection = {connection or self.schema}',
            # By default oslo.db tries MySQL ten times, ten seconds apart.
            'max_retries = 1', 'retry_interval = 1'))

    def servers(self, port):
        """Return the URL of a database at a port, for each driver."""
        return {driver: f'{driver}://me:secret@127.0.0.1:{port}/gpgpu'
                for driver in ('postgresql+psycopg2', 'mysql+pymysql')}


class StatusTest(ProgramTestCase):

    def call(self, *calls):
        return programs.run('gpgpu_plugin.cmd.status', [
            programs.Call(arguments=(*arguments, 'upgrade', 'check', '--json'))
            for arguments in calls], str(self.folder))

    def test_configuration_that_cannot_be_read_is_one_line_and_255(self):
        # A value is read by the check that needs it.
        expected = self.files[:-1]
        found = self.call(*(arguments for arguments, _ in expected))
        for (arguments, texts), done in zip(expected, found, strict=True):
            with self.subTest(arguments):
                self.assertEqual((255, ''), (done.code, done.out), done.err)
                self.assertRegex(done.err, r'\Agpgpu-status: [^\n]+\n\Z')
                for text in texts:
                    self.assertIn(text, done.err)

    def test_whatever_is_missing_is_the_result_of_its_check(self):
        nova = {name: ('--nova-config-file', f'{self.folder}/{name}')
                for name in ('binary', 'absent')}
        expected = [
            (self.conf('away'), 'Conductors',
             f'127.0.0.1:{self.away} cannot be reached'),
            (self.conf('silent', port=self.silent), 'Conductors',
             f'127.0.0.1:{self.silent} cannot be reached'),
            (self.conf('no-key'), 'Keys on this machine',
             'gpgpu-manage key init'),
            (self.conf('no-schema',
                       connection=f'sqlite:///{self.folder}/empty'),
             'Database schema', 'gpgpu-manage db sync'),
            (self.conf('missing', connection='sqlite:////nowhere/x'),
             'Database schema', 'the SQLite file does not exist'),
            *((self.conf(f'{what}-{driver}', connection=url),
               'Database schema', f'{url.replace("secret", "***")} cannot be '
               f'used')
              for what, port in (('away', self.away), ('silent', self.silent))
              for driver, url in self.servers(port).items()),
            ((*self.conf('binary-nova'), *nova['binary']),
             'Filters of nova-scheduler', f'{self.folder}/binary'),
            ((*self.conf('no-nova'), *nova['absent']),
             'Filters of nova-scheduler', f'{self.folder}/absent')]
        found = self.call(*(arguments for arguments, _, _ in expected))
        for (arguments, check, text), done in zip(
                expected, found, strict=True):
            with self.subTest(arguments):
                self.assertEqual(2, done.code, done.err)
                details = {entry['check']: entry['details'] for entry
                           in json.loads(done.out)['checks']}
                self.assertIn(text, details[check])
                self.assertNotIn('Traceback', done.err)
                self.assertNotIn('secret', done.out + done.err)
