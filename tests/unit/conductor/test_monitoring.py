# SPDX-License-Identifier: Apache-2.0
import re
import threading
import urllib.request

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import http_server
from gpgpu_plugin.conductor import monitoring
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
            self.conf.set_override(name, value, 'gpgpu')
        made = monitoring.Monitoring(self.conf)
        self.addCleanup(made.stop)
        made.start(self.db)
        return made

    def scrape(self):
        [url] = re.findall('http://.*/metrics', self.log.output)
        with urllib.request.urlopen(url, timeout=patience.LONG) as answer:
            return metric_families.parsed(answer.read())

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
            'gpgpu_plugin.conductor.monitoring.PATIENCE', 0.01))
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
        self.conf.set_override('metrics_bind', '192.0.2.1', 'gpgpu')
        self.assertRaises(
            exception.ConfigInvalid, monitoring.Monitoring, self.conf)

    def test_stop_ends_all_threads(self):
        before = set(threading.enumerate())
        made = self.start()
        self.scrape()
        made.stop()
        self.assertEqual(before, set(threading.enumerate()))
