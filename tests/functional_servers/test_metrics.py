# SPDX-License-Identifier: Apache-2.0
"""Metrics of gpgpu-conductor, as a real Prometheus reads them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

import fixtures
from oslotest import base as oslotest_base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import service
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import threads
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import api
from gpgpu_plugin.db import clock
from gpgpu_plugin.domain import health as health_rules
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import report
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import cleaned
from tests.fixtures import database
from tests.fixtures import hosts
from tests.fixtures import metric_families
from tests.fixtures import monitoring_files
from tests.fixtures import patience
from tests.fixtures import services
from tests.functional_servers import test_conductor_program
from tests.unit.conductor import base

Kind = context.CallerKind
ADMIN = context.admin()


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(('127.0.0.1', 0)) as found:
        return found.getsockname()[1]


def require_programs(test, *names):
    for name in names:
        if shutil.which(name) is None:
            services.missing(test, f'there is no {name}')


def scrape(port):
    """Return the value of each series of a conductor without labels."""
    with urllib.request.urlopen(
            f'http://127.0.0.1:{port}/metrics',
            timeout=patience.LONG) as answer:
        return {sample.name: sample.value for family in
                metric_families.parsed(answer.read()).values()
                for sample in family.samples if not sample.labels}


class RulesTest(oslotest_base.BaseTestCase):

    def setUp(self):
        super().setUp()
        require_programs(self, 'promtool')

    def promtool(self, *arguments):
        done = subprocess.run(
            ['promtool', *arguments], text=True, capture_output=True,
            cwd=monitoring_files.RULES.parent, timeout=patience.LONG)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def test_rules_are_valid(self):
        found = self.promtool('check', 'rules', monitoring_files.RULES.name)
        self.assertIn(
            f'SUCCESS: {len(monitoring_files.alerts())} rules found', found)

    def test_rules_fire_when_they_should_and_not_otherwise(self):
        self.promtool('test', 'rules', monitoring_files.RULES_TEST.name)


class Prometheus(fixtures.Fixture):
    """A Prometheus with our rules, which scrapes one conductor each second."""

    def __init__(self, conductor_port: int) -> None:
        self._conductor_port = conductor_port

    def _setUp(self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        port = free_port()
        self._url = f'http://127.0.0.1:{port}/api/v1'
        (folder / 'prometheus.yml').write_text(json.dumps({
            'global': {'scrape_interval': '1s', 'scrape_timeout': '1s',
                       'evaluation_interval': '1s'},
            'rule_files': [str(monitoring_files.RULES)],
            'scrape_configs': [{
                'job_name': 'gpgpu-conductor', 'static_configs': [
                    {'targets': [f'127.0.0.1:{self._conductor_port}']}]}]}))
        with (folder / 'log').open('w') as output:
            process = subprocess.Popen(
                ['prometheus', f'--config.file={folder}/prometheus.yml',
                 f'--storage.tsdb.path={folder}/data',
                 f'--web.listen-address=127.0.0.1:{port}'],
                stdout=output, stderr=output)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        if not patience.wait_until(
                lambda: process.poll() is not None or self._is_up()):
            raise AssertionError((folder / 'log').read_text())

    def _is_up(self) -> bool:
        try:
            return bool(self.query('up == 1'))
        except (OSError, urllib.error.URLError):
            return False

    def ask(self, path: str, **fields: str) -> dict[str, object]:
        """Return the data that Prometheus answers with."""
        url = f'{self._url}/{path}?{urllib.parse.urlencode(fields)}'
        with urllib.request.urlopen(url, timeout=patience.LONG) as answer:
            return json.load(answer)['data']

    def query(self, expression: str) -> list[dict[str, object]]:
        """Return the series of an expression now."""
        return self.ask('query', query=expression)['result']


class PrometheusTestCase(test_conductor_program.ProgramTestCase):
    """gpgpu-conductor with metrics, and callers of each kind."""

    def setUp(self):
        require_programs(self, 'prometheus')
        self.port = free_port()
        self.lines = ('[gpgpu_conductor]',
                      f'metrics_bind = 127.0.0.1:{self.port}')
        super().setUp()
        self.conf.set_override('topic_prefix', self.prefix, 'gpgpu')
        transport = rpc_transport.get_transport(self.conf)
        self.addCleanup(transport.cleanup)
        self.host, self.scheduler, self.operator = (
            conductor_client.ConductorAPI(
                self.conf, transport, caller=kind, name=name)
            for kind, name in ((Kind.HOST, 'h1'), (Kind.SCHEDULER, None),
                               (Kind.OPERATOR, None)))

    def report(self, functions, number, degraded=()):
        conditions = {
            function.id: health_rules.Condition(
                health=health_rules.Health.DEGRADED,
                reason='its link has 4 of 16 lanes')
            if function in degraded
            else health_rules.Condition(health=health_rules.Health.OK)
            for function in functions}
        self.host.report(
            ADMIN, origin=self.origin, report=dataclasses.replace(
                base.scan(functions), number=number, health=conditions))

    def begin(self):
        """Let the host report eight GPUs, and clean them, as they are new."""
        self.operator.variant_create(ADMIN, variant=admin.VariantInfo(
            name='H100', vendor='10de', device='2330'))
        begun = self.host.begin_session(
            ADMIN, request=report.SessionRequest(
                host='h1', node='h1', node_uuid=base.NODE, version='1',
                start_uuid=hosts.start_uuid('h1'),
                identity=host_rules.MachineIdentity(machine_id='h1')))
        self.origin = hosts.origin('h1', base.NODE, session=begun.number)
        self.report(base.EIGHT, 1)
        self.clean_all()

    def clean_all(self):
        """Let the host clean all its devices that are dirty."""
        while self.host.clean_tasks(ADMIN, host='h1'):
            self.clean(True)

    def claim(self, count, instance):
        return self.host.claim(
            ADMIN, origin=self.origin, request=base.ConductorTestCase.request(
                self, count, instance))

    def clean(self, passed, seconds=0):
        [task, *_] = self.host.clean_tasks(ADMIN, host='h1')
        attempt = {'device_uuid': task.device_uuid,
                   'attempt': str(uuid.uuid4())}
        self.host.clean_started(
            ADMIN, origin=self.origin, token=task.token, **attempt)
        time.sleep(seconds)
        if passed is None:
            self.host.clean_postponed(
                ADMIN, origin=self.origin, reason='no program', **attempt)
        else:
            self.host.clean_finished(
                ADMIN, origin=self.origin, steps=task.steps,
                results=cleaned.results(task.steps) if passed
                else cleaned.failed('looked at'), driver_capacities=None,
                **attempt)


class PrometheusTest(PrometheusTestCase):

    def use(self):
        """Let a conductor do what it counts."""
        claimed = self.claim(3, 'i1')
        self.host.activate(
            ADMIN, origin=self.origin, driver_capacities=None,
            assignments=base.uuids(claimed))
        self.assertRaises(exception.ClaimDenied, self.claim, 8, 'i2')
        self.host.release(ADMIN, origin=self.origin,
                          assignments=base.uuids(claimed))
        for passed in (None, True, False):
            self.clean(passed)
        self.scheduler.changes_since(ADMIN, since=0, known=(), marker=None)
        # The last one is gone.
        self.report(base.EIGHT[:-1], 2)

    def test_alerts_and_dashboard_have_data(self):
        self.begin()
        prometheus = self.useFixture(Prometheus(self.port))
        self.use()
        for series in ('gpgpu_devices{state="missing"}',
                       'gpgpu_devices{state="quarantined"}',
                       'gpgpu_cleanings_total{verdict="failed"} > 0'):
            self.assertTrue(patience.wait_until(
                lambda series=series: prometheus.query(series)), series)
        for title, expression in monitoring_files.queries():
            with self.subTest(panel=title, query=expression):
                self.assertNotEqual([], prometheus.query(expression))
        for rule in monitoring_files.alerts():
            with self.subTest(alert=rule['alert']):
                # The time of the test may not be enough to fire.
                prometheus.query(rule['expr'])
                for name in monitoring_files.metrics(rule['expr']):
                    self.assertNotEqual([], prometheus.query(name), name)
        self.check_rules(prometheus)

    def check_rules(self, prometheus):
        """Wait until the rules are evaluated and those of the test fire."""
        states = {}

        def begun():
            [group] = prometheus.ask('rules')['groups']
            states.update({rule['name']: (rule['health'], rule['state'])
                           for rule in group['rules']})
            return all(states[name][1] != 'inactive' for name in (
                'GPUDeviceQuarantined', 'GPUDeviceMissing',
                'GPUCleaningFailed'))
        self.assertTrue(patience.wait_until(begun), states)
        self.assertEqual(
            {rule['alert']: 'ok' for rule in monitoring_files.alerts()},
            {name: health for name, (health, _) in states.items()})

    def test_endpoint_survives_a_reload_and_ends_with_the_program(self):
        self.assertEqual(1, scrape(self.port)['gpgpu_database_up'])
        before, port = self.port, free_port()
        self.configure(self.prefix, '[gpgpu_conductor]',
                       f'metrics_bind = 127.0.0.1:{port}')
        self.process.send_signal(signal.SIGHUP)
        self.wait_log('with the reloaded configuration')
        self.assertEqual(1, scrape(port)['gpgpu_database_up'])
        self.assertRaises(urllib.error.URLError, scrape, before)
        # The same address again; what is wrong changes nothing.
        self.process.send_signal(signal.SIGHUP)
        self.assertTrue(patience.wait_until(
            lambda: self.log.read_text().count(
                'with the reloaded configuration') == 2))
        self.configure(self.prefix, '[gpgpu_conductor]',
                       'metrics_bind = 192.0.2.1:9464')
        self.process.send_signal(signal.SIGHUP)
        self.wait_log('cannot listen on 192.0.2.1')
        self.assertEqual(1, scrape(port)['gpgpu_database_up'])
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(0, self.process.wait(patience.LONG))
        self.assertRaises(urllib.error.URLError, scrape, port)


class HangingCallsTest(base.ConductorTestCase):
    """All other threads of a conductor hang, each with a connection."""

    threads = 4

    def setUp(self):
        services.require(self, services.POSTGRESQL, services.RABBITMQ)
        super().setUp()
        rpc_transport.register_server_opts(self.conf)
        self.conf.set_override('executor_thread_pool_size', self.threads)
        threads.set_defaults(self.conf)
        self.port = free_port()
        for name, value in (
                ('transport_url', services.RABBITMQ),
                ('topic_prefix', f'test-{uuid.uuid4().hex[:8]}')):
            self.conf.set_override(name, value, 'gpgpu')
        self.conf.set_override(
            'metrics_bind', f'127.0.0.1:{self.port}', 'gpgpu_conductor')

    def database(self):
        self.made = database.ServerDatabase(
            self.conf, services.POSTGRESQL, content=self.content)
        return self.made

    def serve(self):
        transport = rpc_transport.get_transport(self.conf)
        self.addCleanup(transport.cleanup)
        conductor = service.ConductorService(
            self.conf, transport, api.Database(
                self.conf, self.made.connection,
                api.Limits(patience.LONG)))
        conductor.start()
        self.addCleanup(conductor.stop)
        # Those of the threads for leases and for changes of variants.
        for _ in range(2):
            connection = conductor.database.engine.connect()
            self.addCleanup(connection.close)
        return conductor_client.ConductorAPI(self.conf, transport)

    def test_metrics_are_answered(self):
        began, go_on = threading.Semaphore(0), threading.Event()

        def hang(db, *args, **kwargs):
            with db.reader() as session:
                clock.epoch(session)
                began.release()
                go_on.wait(patience.LONG)
            raise exception.NotFound(kind='host', name='h1')
        for module, name in ((sessions, 'digest'), (host_admin, 'list_all')):
            self.useFixture(fixtures.MockPatchObject(module, name, hang))
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.conductor.scheduler_feed.SchedulerFeed'
            '.changes_since', lambda feed, *args: hang(feed._db)))
        client = self.serve()
        self.addCleanup(go_on.set)
        origin = hosts.origin('h1', base.NODE)
        calls = [
            *[lambda: client.digest(ADMIN, origin=origin)] * self.threads,
            *[lambda: client.host_list(ADMIN)]
            * threads.THREADS_OF[Kind.OPERATOR],
            *[lambda: client.changes_since(
                context.admin(), since=0, known=(), marker=None)]
            * threads.THREADS_OF[Kind.SCHEDULER]]
        callers = [threading.Thread(
            target=self.assertRaises, args=(exception.NotFound, call))
            for call in calls]
        for caller in callers:
            caller.start()
        for _ in callers:
            self.assertTrue(began.acquire(timeout=patience.LONG))
        self.assertEqual(
            (1, 1), tuple(scrape(self.port)[name] for name in (
                'gpgpu_database_up', 'gpgpu_hosts')))
        go_on.set()
        for caller in callers:
            caller.join()
