# SPDX-License-Identifier: Apache-2.0
import contextlib
import gzip
import http.client
import socket
import threading

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import http_server
from gpgpu_plugin.conductor import metrics_server
from tests.fixtures import patience

LOCAL = http_server.Address(host='127.0.0.1', port=0)


class ServerTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.http_server.STOP_DELAY', 0.01))
        self.text = lambda: b'gpgpu_hosts 2.0\n'
        self.server = metrics_server.listener(
            LOCAL, lambda: self.text(), lambda: self.unfit)
        self.unfit = ''
        self.address = self.server.start()
        self.addCleanup(self.server.stop)

    def ask(self, method='GET', path='/metrics', headers=None):
        connection = http.client.HTTPConnection(
            '127.0.0.1', self.address.port, timeout=patience.LONG)
        self.addCleanup(connection.close)
        connection.request(method, path, headers=headers or {})
        return connection.getresponse()

    def connect(self):
        made = socket.create_connection(
            ('127.0.0.1', self.address.port), patience.LONG)
        self.addCleanup(made.close)
        return made

    def test_health_is_served(self):
        self.assertEqual(200, self.ask(path='/healthcheck').status)
        self.unfit = 'its clock is wrong'
        answer = self.ask(path='/healthcheck')
        self.assertEqual(503, answer.status)
        self.assertIn(b'its clock is wrong', answer.read())

    def test_metrics_are_served(self):
        answer = self.ask()
        self.assertEqual(200, answer.status)
        self.assertEqual('text/plain; version=0.0.4; charset=utf-8',
                         answer.headers['Content-Type'])
        self.assertEqual(b'gpgpu_hosts 2.0\n', answer.read())

    def test_metrics_are_compressed_for_clients_that_accept_it(self):
        answer = self.ask(headers={'Accept-Encoding': 'gzip'})
        self.assertEqual('gzip', answer.headers['Content-Encoding'])
        self.assertEqual(
            b'gpgpu_hosts 2.0\n', gzip.decompress(answer.read()))

    def test_nothing_else_is_served(self):
        for path in ('/', '/metrics/', '/metricsx', '/debug', '/../metrics'):
            self.assertEqual(404, self.ask(path=path).status, path)
        for method in ('POST', 'PUT', 'DELETE', 'OPTIONS', 'TRACE'):
            self.assertEqual(501, self.ask(method).status, method)

    def test_answer_does_not_tell_the_version_of_python(self):
        for path in ('/metrics', '/'):
            self.assertEqual(
                'gpgpu-conductor', self.ask(path=path).headers['Server'])

    def test_request_forges_no_line_of_the_log(self):
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.conductor.metrics_server'))
        with self.connect() as made:
            made.sendall(b'GET /\x1b[2Jx\x85ERROR HTTP/1.0\r\n\r\n')
            self.assertNotIn(b' 200 ', made.recv(1000))
        self.assertEqual([], [
            line for line in log.output.splitlines()
            if not line.startswith('Metrics for 127.0.0.1: ')])
        self.assertNotIn('\x1b', log.output)

    def test_clients_who_say_nothing_do_not_keep_others_out_for_ever(self):
        self.useFixture(fixtures.MockPatchObject(
            metrics_server._Handler, 'timeout', 0.1))
        silent = [self.connect() for _ in range(metrics_server.CONNECTIONS)]
        self.assertTrue(patience.wait_until(self._is_answered))
        self.assertEqual([b''] * len(silent),
                         [made.recv(1) for made in silent])

    def _is_answered(self):
        try:
            return self.ask().status == 200
        except (OSError, http.client.HTTPException):
            return False

    def test_more_connections_than_there_may_be_are_closed(self):
        for _ in range(metrics_server.CONNECTIONS):
            self.connect()
        self.assertTrue(patience.wait_until(
            lambda: len(self.server._server._began_at)
            == metrics_server.CONNECTIONS))
        # Without an answer, whichever end notices it first.
        with contextlib.suppress(ConnectionResetError):
            self.assertEqual(b'', self.connect().recv(1))

    def test_connection_that_takes_too_long_is_ended(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.http_server.LONGEST', 0.1))
        made = self.connect()
        # It never is silent, and never comes to an end.
        with contextlib.suppress(OSError):
            while True:
                made.sendall(b'x')

    def test_error_of_the_metrics_ends_one_connection_only(self):
        def fail():
            raise ValueError('metrics')
        good, self.text = self.text, fail
        self.assertRaises(http.client.HTTPException, self.ask)
        self.text = good
        self.assertEqual(200, self.ask().status)

    def test_port_of_another_is_refused(self):
        exc = self.assertRaises(
            exception.ConfigInvalid,
            metrics_server.listener(self.address, self.text).start)
        self.assertIn(f'cannot listen on {self.address}: ', str(exc))

    def test_stop_frees_the_port_and_ends_all_threads(self):
        silent = self.connect()
        self.ask().read()
        self.server.stop()
        self.assertEqual(b'', silent.recv(1))
        self.assertRaises(ConnectionRefusedError, self.ask)
        self.assertEqual([], [
            thread.name for thread in threading.enumerate()
            if 'metrics' in thread.name
            or 'process_request' in thread.name])
        again = metrics_server.listener(self.address, self.text)
        self.assertEqual(self.address, again.start())
        again.stop()

    def test_server_of_ipv6(self):
        try:
            socket.create_server(('::1', 0), family=socket.AF_INET6).close()
        except OSError as exc:
            self.skipTest(f'this machine has no IPv6: {exc}')
        http_server.check_local(
            http_server.parse('[::1]:1', metrics_server.OPTION),
            metrics_server.OPTION)
        server = metrics_server.listener(
            http_server.Address(host='::1', port=0), self.text)
        port = server.start().port
        self.addCleanup(server.stop)
        connection = http.client.HTTPConnection('::1', port)
        self.addCleanup(connection.close)
        connection.request('GET', '/metrics')
        self.assertEqual(200, connection.getresponse().status)
