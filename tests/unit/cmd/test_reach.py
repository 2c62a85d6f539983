# SPDX-License-Identifier: Apache-2.0
"""Tests of calls to the conductor: transport, broker, errors."""

import socket
from unittest import mock

import fixtures
import oslo_messaging
import sqlalchemy.exc
from oslo_messaging._drivers import common as messaging_common
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import reach
from tests.unit.cmd import base as cmd_base


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

    def test_error_of_messaging_is_its_first_line(self):
        self.assertEqual('no reply', reach.message(
            oslo_messaging.MessagingException('no reply\nfor a while')))


class TransportTest(cmd_base.ConfiguredTestCase):

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


class ActorTest(base.BaseTestCase):

    def test_actor_is_a_user_on_a_machine(self):
        with fixtures.MockPatch('getpass.getuser', return_value='op'):
            self.assertEqual(f'op@{socket.gethostname()}', reach.actor())

    def test_actor_without_a_user_database_is_a_number(self):
        with fixtures.MockPatch('getpass.getuser', side_effect=OSError):
            self.assertRegex(reach.actor(), r'^\d+@.')
