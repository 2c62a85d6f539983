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
"""The program: usage, configuration, the way to the conductor, errors."""

import os
import socket
import sys
from importlib import metadata
from unittest import mock

import fixtures
import oslo_messaging
import sqlalchemy.exc
from oslo_messaging._drivers import common as messaging_common
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import commands
from gpgpu_plugin.cmd import manage
from gpgpu_plugin.cmd import reach
from tests.unit.cmd import base as cmd_base

LISTS = (
    ('variant', 'list'), ('host', 'list'), ('group', 'list'),
    ('device', 'list'), ('instance', 'show', cmd_base.INSTANCE))


class FormatTest(cmd_base.CommandTestCase):

    def test_list_is_printed_in_every_format(self):
        self.claim()
        for command in LISTS:
            rows = self.json(*command)
            self.assertTrue(rows, command)
            header = list(rows[0])
            table = self.done(*command, '--max-width', '0')
            self.assertEqual(
                header, [name.strip() for name in
                         table.splitlines()[1].strip('|').split('|')])
            lines = self.done(*command, '-f', 'csv').splitlines()
            self.assertEqual(','.join(f'"{name}"' for name in header),
                             lines[0])
            self.assertEqual(len(rows) + 1, len(lines))
            self.assertEqual(len(rows), len(
                self.done(*command, '-f', 'value').splitlines()))
            yaml = self.done(*command, '-f', 'yaml')
            self.assertIn(f'{header[0]}: ', yaml)
            # Tags of Python objects, which no other program reads.
            self.assertNotIn('!!', yaml)

    def test_table_has_dashes_and_counts(self):
        table = self.done('host', 'list')
        self.assertIn('| available 8 |', table)
        table = self.done('variant', 'show', 'H100')
        self.assertRegex(table, r'\| Subsystem +\| - +\|')

    def test_json_has_plain_values(self):
        shown = self.json('variant', 'show', 'H100')
        self.assertIsNone(shown['Subsystem'])
        self.assertEqual([], shown['Traits'])
        self.assertEqual(
            {'available': 8}, self.json('host', 'show', 'h1')['Devices'])


class UsageTest(cmd_base.CommandTestCase):

    variants = ()

    def test_every_command_has_help(self):
        names = [name for name, _ in commands.CommandManager(
            manage.NAMESPACE)]
        self.assertIn('variant create', names)
        for name in names:
            result = self.manage(*name.split(), '--help')
            self.assertEqual(0, result.code)
            self.assertIn(f'usage: gpgpu-manage {name}', result.out)
            # Its docstring.
            self.assertRegex(result.out, r'\n\n[A-Z].+[.?]\n')

    def test_missing_command_shows_the_usage(self):
        self.assertIn('a command is required', self.misused())

    def test_unknown_command_shows_similar_ones(self):
        result = self.manage('hosts', 'list')
        self.assertEqual((2, ''), (result.code, result.out))
        self.assertIn('host list', result.err)

    def test_help_lists_every_command(self):
        result = self.manage('--help')
        self.assertEqual((0, ''), (result.code, result.err))
        self.assertNotIn('Could not', result.out)
        for name, _ in commands.CommandManager(manage.NAMESPACE):
            self.assertRegex(result.out, rf'\n  {name} +[A-Z]')

    def test_command_that_cannot_be_imported_stops_no_other(self):
        manager = commands.CommandManager(manage.NAMESPACE)
        manager.commands['broken show'] = metadata.EntryPoint(
            'broken_show', 'gpgpu_plugin.nowhere:Show', manage.NAMESPACE)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.cmd.commands.CommandManager', lambda _: manager))
        self.assertEqual(
            "gpgpu-manage: ModuleNotFoundError: No module named "
            "'gpgpu_plugin.nowhere'\n", self.refused('broken', 'show'))
        self.assertIn('Traceback', self.manage(
            '--debug', 'broken', 'show').err)
        self.done('host', 'list')

    def test_unknown_option_is_named(self):
        self.assertIn('--colour', self.misused('host', 'list', '--colour'))

    def test_version_is_printed(self):
        result = self.manage('--version')
        self.assertEqual(0, result.code)


class ErrorTest(cmd_base.CommandTestCase):

    variants = ()

    def test_debug_shows_the_traceback(self):
        result = self.manage('--debug', 'host', 'show', 'h9')
        self.assertEqual(1, result.code)
        self.assertIn('Traceback', result.err)
        self.assertIn('gpgpu-manage: host h9 does not exist\n', result.err)

    def test_missing_conductor_is_one_line(self):
        self.conductor.stop()
        self.assertEqual(
            'gpgpu-manage: No gpgpu-conductor answered host_list within 60 '
            's; check that one is running\n', self.refused('host', 'list'))


class MessageTest(base.BaseTestCase):

    def _remote(self, exc):
        try:
            raise exc
        except Exception as caught:  # noqa: BLE001
            wire = messaging_common.serialize_remote_exception(
                (type(caught), caught, caught.__traceback__))
        result = messaging_common.deserialize_remote_exception(
            wire, [exception.__name__])
        self.assertIn('Traceback', str(result))
        return result

    def test_error_of_the_plugin_has_no_remote_traceback(self):
        self.assertEqual('host h9 does not exist', reach.message(
            self._remote(exception.NotFound(kind='host', name='h9'))))

    def test_other_remote_error_names_the_conductor(self):
        remote = self._remote(sqlalchemy.exc.NoResultFound(
            'no row\nof many lines'))
        self.assertIsInstance(remote, oslo_messaging.RemoteError)
        self.assertEqual(
            'gpgpu-conductor failed with NoResultFound: no row; see its log',
            reach.message(remote))

    def test_remote_error_of_python_names_its_class(self):
        self.assertEqual('LookupError: no row', reach.message(
            self._remote(LookupError('no row'))))

    def test_local_error_names_its_class(self):
        self.assertEqual("KeyError: 'x'", reach.message(KeyError('x')))


class ConfigurationTest(base.BaseTestCase):
    """A process of its own."""

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        for name in ('CONFIG_FILE', 'NOVA_CONFIG_FILE'):
            self.useFixture(fixtures.MonkeyPatch(
                f'gpgpu_plugin.cmd.base.{name}',
                os.path.join(self.folder, name)))

    def write(self, name, *lines):
        path = os.path.join(self.folder, name)
        with open(path, 'w', encoding='utf-8') as file:
            file.write('\n'.join(lines) + '\n')
        return path

    def refused(self, *arguments):
        result = cmd_base.run(*arguments)
        self.assertEqual((1, ''), (result.code, result.out))
        self.assertNotIn('Traceback', result.err)
        return result.err

    def test_in_process_transport_is_refused(self):
        path = self.write('x.conf', '[gpgpu]', 'transport_url = fake:/')
        for command in (('host', 'list'), ('conductor', 'ping')):
            err = self.refused('--config-file', path, *command)
            self.assertIn('reaches no other process', err)
            self.assertIn('rabbit://user:password@host:5672/', err)

    def test_unreachable_broker_is_named_without_its_password(self):
        with socket.socket() as unused:
            # Bound but not listening: nobody else gets the port.
            unused.bind(('127.0.0.1', 0))
            port = unused.getsockname()[1]
            path = self.write(
                'x.conf', '[gpgpu]',
                f'transport_url = rabbit://me:secret@127.0.0.1:{port}/')
            for command in (('host', 'list'), ('conductor', 'ping')):
                err = self.refused('--config-file', path, *command)
                self.assertIn(f'The message broker at 127.0.0.1:{port} '
                              f'cannot be reached', err)
                self.assertNotIn('secret', err)

    def test_missing_configuration_file_is_named(self):
        self.assertIn('/nowhere/x.conf', self.refused(
            '--config-file', '/nowhere/x.conf', 'host', 'list'))

    def test_malformed_option_is_named(self):
        path = self.write('x.conf', '[database]', 'max_retries = often')
        err = self.refused('--config-file', path, 'db', 'sync')
        self.assertIn('max_retries', err)
        self.assertIn('often', err)

    def test_configuration_without_file_and_broker_is_refused(self):
        for command in (('device', 'list'), ('conductor', 'ping')):
            self.assertEqual(
                f'gpgpu-manage: Option [gpgpu] transport_url: it is not set, '
                f'and neither {self.folder}/CONFIG_FILE nor '
                f'{self.folder}/NOVA_CONFIG_FILE exists; name the '
                f'configuration file with --config-file\n',
                self.refused(*command))

    def test_broker_of_the_environment_needs_no_file(self):
        for name in ('OS_GPGPU__TRANSPORT_URL', 'OS_DEFAULT__TRANSPORT_URL'):
            with fixtures.EnvironmentVariable(
                    name, 'rabbit://me:secret@127.0.0.1:1/'):
                self.assertIn('127.0.0.1:1 cannot be reached',
                              self.refused('device', 'list'))

    def test_file_that_names_no_broker_means_the_default_one(self):
        asked = exception.BrokerUnavailable(hosts='localhost', reason='asked')
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.transport.probe', mock.Mock(side_effect=asked)))
        path = self.write('x.conf', '[gpgpu]', 'rpc_timeout = 1')
        for option in (f'--config-file={path}', f'--config-dir={self.folder}'):
            self.assertIn('localhost cannot be reached: asked',
                          self.refused(option, 'device', 'list'))

    def test_own_file_is_read_before_that_of_nova(self):
        self.write('CONFIG_FILE', '[gpgpu]', 'transport_url = fake:/')
        self.write('NOVA_CONFIG_FILE', '[gpgpu]',
                   'transport_url = rabbit://127.0.0.1:1/')
        self.assertIn('reaches no other process', self.refused('host', 'list'))

    def test_file_of_nova_gives_the_transport(self):
        self.write('NOVA_CONFIG_FILE', '[DEFAULT]',
                   'transport_url = fake:/')
        self.assertIn('reaches no other process', self.refused('host', 'list'))

    def test_file_of_nova_never_gives_the_database(self):
        nova = os.path.join(self.folder, 'nova.sqlite')
        self.write('NOVA_CONFIG_FILE', '[database]',
                   f'connection = sqlite:///{nova}')
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.api.DEFAULT_CONNECTION',
            f'sqlite:///{self.folder}/gpgpu.sqlite'))
        result = cmd_base.run('db', 'sync')
        self.assertEqual((0, ''), (result.code, result.err))
        self.assertFalse(os.path.exists(nova))
        self.assertTrue(os.path.exists(f'{self.folder}/gpgpu.sqlite'))

    def test_program_reads_the_arguments_of_the_process(self):
        self.useFixture(fixtures.MonkeyPatch(
            'sys.argv', ['gpgpu-manage', 'nonsense']))
        err = self.useFixture(fixtures.StringStream('stderr')).stream
        self.useFixture(fixtures.MonkeyPatch('sys.stderr', err))
        self.assertIs(err, sys.stderr)
        self.assertEqual(2, manage.main())
