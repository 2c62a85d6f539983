# SPDX-License-Identifier: Apache-2.0
"""Tests of servers that stop while calls come, over RabbitMQ."""

import concurrent.futures
import dataclasses
import itertools
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid

import fixtures
import oslo_messaging
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database
from tests.fixtures import hosts
from tests.fixtures import keys
from tests.fixtures import patience
from tests.fixtures import proxy
from tests.fixtures import services
from tests.fixtures import tenant
from tests.unit.conductor import base as conductor_base


class Endpoint:
    """Endpoint that notes its calls; each takes a moment."""

    target = oslo_messaging.Target(version='1.0')

    def __init__(self):
        self.executed = []
        self.has_begun = threading.Event()
        self.go_on = threading.Event()

    def run(self, ctxt, number):
        self.executed.append(number)
        self.has_begun.set()
        self.go_on.wait(60)
        return number


class DrainTest(base.BaseTestCase):
    """Parts of oslo.messaging's driver on which the plugin relies."""

    def setUp(self):
        super().setUp()
        services.require(self, services.RABBITMQ)
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.conf.set_override('transport_url', services.RABBITMQ, 'gpgpu')
        rpc_transport.register_server_opts(self.conf)
        self.conf.set_override('rabbit_qos_prefetch_count', 5,
                               'oslo_messaging_rabbit')
        self.conf.set_override('heartbeat_timeout_threshold', 20,
                               'oslo_messaging_rabbit')
        self.topic = f'test-{uuid.uuid4().hex[:8]}'

    def transport(self):
        transport = rpc_transport.get_transport(self.conf)
        self.addCleanup(transport.cleanup)
        return transport

    def server(self, endpoint):
        server = rpc_transport.server(
            self.transport(), self.topic, 'h1', [endpoint], threads=2)
        server.start()
        return server

    def test_server_that_stops_answers_what_it_took(self):
        first, second = Endpoint(), Endpoint()
        second.go_on.set()
        server = self.server(first)
        client = rpc_transport.client(
            self.transport(), self.topic, '1.0').prepare(timeout=20)
        with concurrent.futures.ThreadPoolExecutor(40) as callers:
            def call(numbers):
                return [callers.submit(
                    client.call, context.admin(), 'run', number=number)
                    for number in numbers]
            calls = call(range(20))
            self.assertTrue(first.has_begun.wait(60))
            server.stop()
            other = self.server(second)
            # On a busy machine the first one may have taken all others.
            calls += call(range(20, 40))
            first.go_on.set()
            server.wait()
            answers = [call.result() for call in calls]
        other.stop()
        other.wait()
        self.assertEqual(list(range(40)), answers)
        self.assertEqual(
            list(range(40)), sorted(first.executed + second.executed))
        self.assertTrue(second.executed)

    def test_driver_without_what_is_relied_on_is_refused_by_name(self):
        self.useFixture(fixtures.MonkeyPatch(
            'oslo_messaging._drivers.impl_rabbit.Consumer.cancel',
            fixtures.MonkeyPatch.delete))
        server = rpc_transport.server(
            self.transport(), self.topic, 'h1', [Endpoint()])
        exc = self.assertRaises(exception.HostNotReady, server.start)
        self.assertIn('cancel', str(exc))
        self.assertIn('oslo.messaging ', str(exc))

    def test_server_whose_broker_is_silent_stops(self):
        way = self.useFixture(proxy.Proxy(('127.0.0.1', 5672)))
        self.conf.set_override(
            'transport_url', f'rabbit://guest:guest@127.0.0.1:{way.port}/',
            'gpgpu')
        endpoint = Endpoint()
        endpoint.go_on.set()
        server = self.server(endpoint)
        client = rpc_transport.client(self.transport(), self.topic, '1.0')
        # Now it consumes.
        self.assertEqual(
            1, client.call(context.admin(), 'run', number=1))
        way.silence()
        began = time.monotonic()
        server.stop()
        # oslo.messaging itself would wait for a minute.
        self.assertLess(time.monotonic() - began, 40)
        # A call may have its answer before the broker confirms that to the
        # server, which then sends it again until there is a broker.
        way.down()
        way.up()
        server.wait()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """A call that has ended, with an answer or without.

    :ivar during: what happened to a conductor when it began
    :ivar seconds: that it took
    """

    during: str
    seconds: float


class RestartTest(base.BaseTestCase):
    """Conductors as processes, reloaded and restarted under load.

    :cvar rate: jobs per second, each of one call or two
    """

    conductors = 3
    rate = 50
    gpus = 8

    def setUp(self):
        super().setUp()
        services.require(self, services.RABBITMQ, services.POSTGRESQL)
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.conf.set_override('transport_url', services.RABBITMQ, 'gpgpu')
        self.conf.set_override(
            'topic_prefix', f'test-{uuid.uuid4().hex[:8]}', 'gpgpu')
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        made = self.useFixture(database.ServerDatabase(
            self.conf, services.POSTGRESQL,
            content=conductor_base.Content(
                conductor_base.EIGHT, admin.VariantInfo(
                    name='H100', vendor='10de', device='2330'))))
        self.db = made.db
        key = self.useFixture(keys.Keys(self.conf, made.db))
        (self.folder / 'gpgpu.conf').write_text('\n'.join((
            '[gpgpu]', f'transport_url = {services.RABBITMQ}',
            f'topic_prefix = {self.conf.gpgpu.topic_prefix}',
            f'keys_path = {self.conf.gpgpu.keys_path}',
            '[database]', f'connection = {made.connection}', '')))
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.notified.close)
        self.notified.bind(str(self.folder / 'notify'))
        self.notified.settimeout(patience.LONG)
        self.useFixture(fixtures.EnvironmentVariable(
            'NOTIFY_SOCKET', str(self.folder / 'notify')))
        self.logs = []
        self.during = 'nothing'
        self.calls = []
        self.free = threading.Semaphore(self.gpus)
        self.numbers = itertools.count(2)
        transport = rpc_transport.get_transport(self.conf)
        self.addCleanup(transport.cleanup)
        self.host, self.scheduler, self.operator = (
            self.client(key, transport, kind)
            for kind in (context.CallerKind.HOST, context.CallerKind.SCHEDULER,
                         context.CallerKind.OPERATOR))

    def client(self, key, transport, kind):
        key.make(kind, 'h1')
        return conductor_client.ConductorAPI(
            self.conf, transport, timeout=patience.LONG, caller=kind,
            name='h1')

    def start(self):
        self.logs.append(self.folder / f'log-{len(self.logs)}')
        with self.logs[-1].open('w') as output:
            process = subprocess.Popen(
                [sys.executable, '-m', 'gpgpu_plugin.cmd.conductor',
                 '--config-file', str(self.folder / 'gpgpu.conf')],
                stdout=output, stderr=output)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(b'READY=1', self.notified.recv(100))
        process.log = self.logs[-1]
        return process

    def call(self, method, **arguments):
        """Return the answer to a call, and note how long it took."""
        during, began = self.during, time.monotonic()
        try:
            return method(context.admin(), **arguments)
        finally:
            self.calls.append(Call(
                during=during, seconds=time.monotonic() - began))

    def claim(self):
        """Claim a GPU of the host and give it back."""
        instance = str(uuid.uuid4())
        origin = hosts.origin('h1', conductor_base.NODE)
        with self.free:
            claim = self.call(
                self.host.claim, origin=origin,
                request=claim_obj.ClaimRequest(
                    **tenant.TENANT,
                    instance_uuid=instance, host='h1', request=request.Request(
                        demands=(request.Demand(
                            resource_class='CUSTOM_GPU_H100', count=1),))))
            self.call(
                self.host.abort, origin=origin, touched=False,
                assignments=[given.uuid for given in claim.assignments])

    def report(self):
        self.call(self.host.report,
                  origin=hosts.origin('h1', conductor_base.NODE),
                  report=conductor_base.scan(
                      conductor_base.EIGHT, number=next(self.numbers)))

    def assignments(self):
        """Make a call that its client does not repeat."""
        self.call(self.host.instance_assignments, instance_uuid='i1')

    def changes(self):
        self.call(self.scheduler.changes_since,
                  since=0.0, known=(), marker=None)

    def list_hosts(self):
        self.call(self.operator.host_list, limit=10, marker=None)

    def load(self, callers, ended):
        """Return the jobs that were begun until an event, at a steady rate."""
        jobs, due = [], time.monotonic()
        kinds = itertools.cycle((
            self.claim, self.report, self.assignments, self.changes,
            self.list_hosts))
        while not ended.wait(max(0, due - time.monotonic())):
            jobs.append(callers.submit(next(kinds)))
            due += 1 / self.rate
        return jobs

    def restart(self, process):
        self.during = 'restart'
        process.send_signal(signal.SIGTERM)
        self.assertEqual(0, process.wait(patience.LONG),
                         process.log.read_text())
        return self.start()

    def reload(self, process):
        self.during = 'reload'
        said = process.log.read_text().count('with the reloaded')
        process.send_signal(signal.SIGHUP)
        self.assertTrue(patience.wait_until(
            lambda: process.log.read_text().count(
                'with the reloaded') > said), process.log.read_text())

    def under_load(self, change):
        """Let calls come during a change; return the errors of all."""
        ended = threading.Event()
        with (concurrent.futures.ThreadPoolExecutor(200) as callers,
              concurrent.futures.ThreadPoolExecutor(1) as loader):
            load = loader.submit(self.load, callers, ended)
            try:
                change()
            finally:
                ended.set()
            return [job.exception() for job in load.result()
                    if job.exception() is not None]

    def show(self):
        """Print how long calls took; how fast that is, no test asserts."""
        for during in ('reload', 'restart'):
            took = sorted(call.seconds for call in self.calls
                          if call.during == during)
            sys.stdout.write(
                f'conductors: {self.conductors}, {during}: {len(took)} '
                f'calls, longest {took[-1]:.2f} s, '
                f'p99 {took[len(took) * 99 // 100]:.2f} s\n')

    def test_no_call_is_lost_by_a_reload_and_a_restart(self):
        running = [self.start() for _ in range(self.conductors)]

        def change():
            for number, process in enumerate(running):
                self.reload(process)
                running[number] = self.restart(process)
        errors = self.under_load(change)
        self.show()
        self.assertEqual([], errors)
        # Otherwise a message was lost, and its client sent another one.
        self.assertLess(
            max(call.seconds for call in self.calls), patience.LONG / 4)
        self.assertEqual({'available'}, {
            device.shown_state for device in device_admin.list_all(self.db)})
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            self.assertEqual(0, process.wait(patience.LONG))
        for log in self.logs:
            self.assertNotIn('Traceback', log.read_text())


class OnlyConductorTest(RestartTest):
    """Nobody answers while it restarts: calls wait in the broker."""

    conductors = 1
    rate = 20
