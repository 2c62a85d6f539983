# SPDX-License-Identifier: Apache-2.0
import gzip
import http.client
import socket
import threading

import fixtures
from prometheus_client.openmetrics import parser

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import http_server
from gpgpu_plugin.conductor import metrics
from gpgpu_plugin.db import api
from tests.fixtures import metric_families
from tests.fixtures import patience
from tests.unit.conductor import base


class MonitoringTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.conductor'))
        # The option names no port that is free for sure.
        self.useFixture(fixtures.MockPatchObject(
            http_server, 'parse',
            lambda value, option: http_server.Address(host=value, port=0)))

    def start(self, **options):
        for name, value in {'metrics_bind': '127.0.0.1', **options}.items():
            self.conf.set_override(name, value, 'gpgpu_conductor')
        self.unfit = ''
        self.made = metrics.Monitoring(self.conf)
        self.addCleanup(self.made.stop)
        self.made.start(self.db, lambda: self.unfit)
        return self.made

    @property
    def address(self):
        return self.made._server.server_address[:2]

    def ask(self, path='/metrics', **headers):
        connection = http.client.HTTPConnection(
            *self.address, timeout=patience.LONG)
        self.addCleanup(connection.close)
        connection.request('GET', path, headers={
            name.replace('_', '-'): value for name, value in headers.items()})
        return connection.getresponse()

    def scrape(self):
        return metric_families.parsed(self.ask().read())

    def test_nothing_listens_until_an_address_is_set(self):
        before = set(threading.enumerate())
        self.start(metrics_bind=None).counters.failed(api.Failure.BUSY)
        self.assertEqual(before, set(threading.enumerate()))
        self.assertEqual('', self.log.output)

    def test_counters_and_gauges_are_served(self):
        made = self.start()
        made.counters.failed(api.Failure.BUSY)
        found = self.scrape()
        self.assertIn(('busy', 1.0), [
            (sample.labels['kind'], sample.value)
            for sample in found['gpgpu_database_errors_total'].samples])
        [devices] = found['gpgpu_devices'].samples
        self.assertEqual(
            ({'host': 'h1', 'variant': 'H100', 'state': 'available',
              'enabled': 'true'}, 8.0), (devices.labels, devices.value))

    def test_format_is_that_which_the_client_accepts(self):
        self.start()
        answer = self.ask()
        self.assertEqual('text/plain; version=0.0.4; charset=utf-8',
                         answer.headers['Content-Type'])
        plain = answer.read()
        packed = self.ask(Accept_Encoding='gzip')
        self.assertEqual('gzip', packed.headers['Content-Encoding'])
        self.assertEqual(plain, gzip.decompress(packed.read()))
        # As Prometheus asks.
        found = self.ask(Accept='application/openmetrics-text; version=1.0.0')
        self.assertIn('application/openmetrics-text',
                      found.headers['Content-Type'])
        names = {family.name for family
                 in parser.text_string_to_metric_families(
                     found.read().decode())}
        self.assertLessEqual({'gpgpu_hosts', 'gpgpu_rpc_calls'}, names)

    def test_load_balancer_learns_whether_calls_are_taken(self):
        self.start()
        answer = self.ask('/healthcheck')
        self.assertEqual((200, b'OK\n'), (answer.status, answer.read()))
        self.unfit = 'its clock is wrong'
        answer = self.ask('/healthcheck?x')
        self.assertEqual((503, b'its clock is wrong\n'),
                         (answer.status, answer.read()))
        [fit] = self.scrape()['gpgpu_conductor_fit'].samples
        self.assertEqual(0, fit.value)

    def test_client_that_says_nothing_is_disconnected(self):
        self.useFixture(fixtures.MockPatchObject(
            metrics._Handler, 'timeout', 0.01))
        self.start()
        with socket.create_connection(self.address, patience.LONG) as silent:
            self.assertEqual(b'', silent.recv(1))

    def test_error_of_the_metrics_ends_one_request_only(self):
        self.start()
        with fixtures.MockPatchObject(
                self.made._registry, 'collect', side_effect=ValueError):
            self.assertEqual(500, self.ask().status)
        self.assertEqual(200, self.ask().status)

    def test_metrics_are_served_over_ipv6(self):
        try:
            socket.create_server(('::1', 0), family=socket.AF_INET6).close()
        except OSError as exc:
            self.skipTest(f'this machine has no IPv6: {exc}')
        self.start(metrics_bind='::1')
        self.assertEqual(200, self.ask().status)

    def test_hosts_are_left_out_as_configured(self):
        self.start(metrics_per_host=False)
        [devices] = self.scrape()['gpgpu_devices'].samples
        self.assertNotIn('host', devices.labels)

    def test_many_scrapes_read_the_database_once(self):
        self.start()
        with self.statements() as found:
            for _ in range(10):
                self.scrape()
        self.assertEqual(4, len([
            text for text in found if text != 'BEGIN']), found)

    def test_database_that_hangs_is_shown_as_down(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.metrics.PATIENCE', 0.01))
        go_on = threading.Event()
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.db.gauges.read',
            lambda session, **kwargs: go_on.wait(patience.LONG)))
        self.start()
        self.addCleanup(go_on.set)
        [up] = self.scrape()['gpgpu_database_up'].samples
        self.assertEqual(0, up.value)

    def test_database_that_fails_is_shown_as_down(self):
        with self.db.engine.begin() as connection:
            connection.exec_driver_sql('DROP TABLE vgpu_types')
        self.start()
        found = self.scrape()
        [up] = found['gpgpu_database_up'].samples
        self.assertEqual(0, up.value)
        self.assertNotIn('gpgpu_devices', found)

    def test_address_of_another_machine_is_refused_before_it_starts(self):
        self.conf.set_override('metrics_bind', '192.0.2.1', 'gpgpu_conductor')
        self.assertRaises(
            exception.ConfigInvalid, metrics.Monitoring, self.conf)

    def test_port_of_another_is_refused(self):
        self.start()
        host, port = self.address
        with fixtures.MockPatchObject(
                http_server, 'parse', lambda value, option:
                http_server.Address(host=host, port=port)):
            other = metrics.Monitoring(self.conf)
        exc = self.assertRaises(
            exception.ConfigInvalid, other.start, self.db)
        self.assertIn(f'cannot listen on {host}:{port}: ', str(exc))

    def test_stop_frees_the_port_and_ends_all_threads(self):
        before = set(threading.enumerate())
        made = self.start()
        self.scrape()
        address = self.address
        made.stop()
        self.assertRaises(ConnectionRefusedError,
                          socket.create_connection, address)
        self.assertTrue(patience.wait_until(
            lambda: before == set(threading.enumerate())))
