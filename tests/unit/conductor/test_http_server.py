# SPDX-License-Identifier: Apache-2.0
import contextlib
import http.client
import logging
import socket
import threading

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import http_server
from tests.fixtures import patience

LOCAL = http_server.Address(host='127.0.0.1', port=0)
OPTION = '[gpgpu_conductor] metrics_bind'


class AddressTest(base.BaseTestCase):

    def test_address_of_each_family_is_read_and_written(self):
        for value, family in (('127.0.0.1:9464', socket.AF_INET),
                              ('0.0.0.0:1', socket.AF_INET),
                              ('[::1]:9464', socket.AF_INET6),
                              ('[::]:65535', socket.AF_INET6)):
            found = http_server.parse(value, OPTION)
            self.assertEqual((value, family), (str(found), found.family))

    def test_anything_else_is_refused_with_an_example(self):
        for value in ('9464', ':9464', '127.0.0.1', '127.0.0.1:',
                      '127.0.0.1:0', '127.0.0.1:65536', '127.0.0.1:x',
                      '127.0.0.1:+1', '127.0.0.1: 1', '127.0.0.1:\u0661',
                      '::1:9464', '[127.0.0.1]:9464', 'localhost:9464',
                      '[::1:9464', 'http://127.0.0.1:9464'):
            exc = self.assertRaises(
                exception.ConfigInvalid, http_server.parse, value, OPTION)
            self.assertIn('[gpgpu_conductor] metrics_bind', str(exc))
            self.assertIn('such as 127.0.0.1:9464 or [::1]:9464', str(exc))

    def test_address_of_another_machine_is_refused(self):
        http_server.check_local(LOCAL, OPTION)
        # Reserved for documentation.
        exc = self.assertRaises(
            exception.ConfigInvalid, http_server.check_local,
            http_server.parse('192.0.2.1:9464', OPTION), OPTION)
        self.assertIn('cannot listen on 192.0.2.1: ', str(exc))

    def test_port_in_use_is_no_reason_to_refuse_a_reload(self):
        with socket.create_server(('127.0.0.1', 0)) as other:
            http_server.check_local(http_server.Address(
                host='127.0.0.1', port=other.getsockname()[1]), OPTION)


CONNECTIONS = 8


class _Handler(http_server.Handler):

    fails = False

    def do_GET(self):
        if self.fails:
            raise ValueError('vendordata')
        self.send(b'7', 'text/plain')


class ServerTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.http_server.STOP_DELAY', 0.01))
        self.server = self.listener(LOCAL)
        self.address = self.server.start()
        self.addCleanup(self.server.stop)

    @staticmethod
    def listener(address):
        return http_server.HTTPListener(address, OPTION, _Handler, CONNECTIONS)

    def ask(self, method='GET'):
        connection = http.client.HTTPConnection(
            '127.0.0.1', self.address.port, timeout=patience.LONG)
        self.addCleanup(connection.close)
        connection.request(method, '/')
        return connection.getresponse()

    def connect(self):
        made = socket.create_connection(
            ('127.0.0.1', self.address.port), patience.LONG)
        self.addCleanup(made.close)
        return made

    def test_answer_has_a_type_and_a_length(self):
        answer = self.ask()
        self.assertEqual((200, 'text/plain', '1', b'7'), (
            answer.status, answer.headers['Content-Type'],
            answer.headers['Content-Length'], answer.read()))

    def test_answer_does_not_tell_the_version_of_python(self):
        for method in ('GET', 'POST'):
            self.assertEqual(
                'gpgpu-conductor', self.ask(method).headers['Server'])

    def test_request_forges_no_line_of_the_log(self):
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.conductor.http_server', level=logging.DEBUG))
        with self.connect() as made:
            made.sendall(b'GET /\x1b[2Jx\x85ERROR HTTP/1.0\r\n\r\n')
            self.assertNotIn(b' 200 ', made.recv(1000))
        self.assertEqual([], [
            line for line in log.output.splitlines()
            if not line.startswith('Request of 127.0.0.1: ')])
        self.assertIn('code 400', log.output)
        self.assertNotIn('\x1b', log.output)

    def test_clients_who_say_nothing_do_not_keep_others_out_for_ever(self):
        self.useFixture(fixtures.MockPatchObject(
            _Handler, 'timeout', 0.1))
        silent = [self.connect() for _ in range(CONNECTIONS)]
        self.assertTrue(patience.wait_until(self._is_answered))
        self.assertEqual([b''] * len(silent),
                         [made.recv(1) for made in silent])

    def _is_answered(self):
        try:
            return self.ask().status == 200
        except (OSError, http.client.HTTPException):
            return False

    def test_more_connections_than_there_may_be_are_closed(self):
        for _ in range(CONNECTIONS):
            self.connect()
        self.assertTrue(patience.wait_until(
            lambda: len(self.server._server._began_at)
            == CONNECTIONS))
        # Without an answer, whichever end notices it first.
        with contextlib.suppress(ConnectionResetError):
            self.assertEqual(b'', self.connect().recv(1))

    def test_connection_that_takes_too_long_is_ended(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.http_server.MAX_SECONDS', 0.1))
        made = self.connect()
        # It never is silent, and never comes to an end.
        with contextlib.suppress(OSError):
            while True:
                made.sendall(b'x')

    def test_error_of_the_handler_ends_one_connection_only(self):
        with fixtures.MonkeyPatch(
                'tests.unit.conductor.test_http_server._Handler.fails', True):
            self.assertRaises(http.client.HTTPException, self.ask)
        self.assertEqual(200, self.ask().status)

    def test_port_of_another_is_refused(self):
        exc = self.assertRaises(
            exception.ConfigInvalid,
            self.listener(self.address).start)
        self.assertIn(f'cannot listen on {self.address}: ', str(exc))

    def test_stop_frees_the_port_and_ends_all_threads(self):
        silent = self.connect()
        self.ask().read()
        self.server.stop()
        self.assertEqual(b'', silent.recv(1))
        self.assertRaises(ConnectionRefusedError, self.ask)
        self.assertEqual([], [
            thread.name for thread in threading.enumerate()
            if 'gpgpu-http-server' in thread.name
            or 'process_request' in thread.name])
        again = self.listener(self.address)
        self.assertEqual(self.address, again.start())
        again.stop()

    def test_server_of_ipv6(self):
        try:
            socket.create_server(('::1', 0), family=socket.AF_INET6).close()
        except OSError as exc:
            self.skipTest(f'this machine has no IPv6: {exc}')
        http_server.check_local(
            http_server.parse('[::1]:1', OPTION), OPTION)
        server = self.listener(http_server.Address(host='::1', port=0))
        port = server.start().port
        self.addCleanup(server.stop)
        connection = http.client.HTTPConnection('::1', port)
        self.addCleanup(connection.close)
        connection.request('GET', '/')
        self.assertEqual(200, connection.getresponse().status)
