# SPDX-License-Identifier: Apache-2.0
"""Tests of two conductors beside one part that hangs or is silent."""

import concurrent.futures
import threading
import uuid

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import service
from gpgpu_plugin.conductor import threads
from gpgpu_plugin.db import api
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import database
from tests.fixtures import hosts
from tests.fixtures import patience
from tests.fixtures import proxy
from tests.fixtures import services
from tests.unit.conductor import base

THREADS = 8
CALLS = 40


class TwoConductorsCase(base.ConductorTestCase):
    """Two conductors with a client.

    :cvar rpc_timeout: seconds that callers wait, which the limits follow
    """

    server = ''
    rpc_timeout = 300

    def setUp(self):
        services.require(self, self.server, services.RABBITMQ)
        super().setUp()
        self.report_second_host()
        rpc_transport.register_server_opts(self.conf)
        self.conf.set_override('executor_thread_pool_size', THREADS)
        threads.set_defaults(self.conf)
        for name, value in (
                ('rpc_timeout', self.rpc_timeout),
                ('topic_prefix', f'test-{uuid.uuid4().hex[:8]}')):
            self.conf.set_override(name, value, 'gpgpu')
        self.conductors = [
            self.start(self.first_database(), self.first_broker()),
            self.start(self.made.connection, services.RABBITMQ)]
        self.api = conductor_client.ConductorAPI(
            self.conf, self.transport(services.RABBITMQ))

    def database(self):
        self.made = database.ServerDatabase(
            self.conf, self.server, content=self.content)
        return self.made

    def first_database(self):
        return self.made.connection

    def first_broker(self):
        return services.RABBITMQ

    def proxied(self, url, port):
        """Return a proxy before a server, and the URL that leads to it."""
        url = sa.make_url(url)
        way = self.useFixture(proxy.Proxy((url.host, url.port or port)))
        return way, url.set(
            host='127.0.0.1', port=way.port).render_as_string(
                hide_password=False)

    def transport(self, url):
        self.conf.set_override('transport_url', url, 'gpgpu')
        transport = rpc_transport.get_transport(self.conf)
        self.addCleanup(transport.cleanup)
        return transport

    def start(self, database_url, broker_url):
        conductor = service.ConductorService(
            self.conf, self.transport(broker_url), api.Database(
                self.conf, database_url,
                api.Limits(self.conf.gpgpu.rpc_timeout)))
        conductor.start()
        self.addCleanup(conductor.stop)
        return conductor

    def claim_by_rpc(self, host, instance):
        return self.api.claim(
            context.admin(), hosts.origin(host, self.node(host)),
            self.request(1, instance, host=host))

    @staticmethod
    def node(host):
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, host))

    def calls(self, count, call, *args):
        """Return the results of calls at the same time."""
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            return [done.result() for done in [
                pool.submit(call, *args) for _ in range(count)]]


class PostgreSQLHungWriterTest(TwoConductorsCase):

    server = services.POSTGRESQL

    def test_other_hosts_are_served_beside_a_hung_writer(self):
        waiting, ended = threading.Semaphore(0), []
        claim = claims.claim

        def counted(db, request, *args):
            waiting.release()
            try:
                return claim(db, request, *args)
            finally:
                ended.append(request.host)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.claims.claim', counted))
        with concurrent.futures.ThreadPoolExecutor(CALLS) as pool:
            with self.db.writer() as session:
                host_db.lock(session, 'h1')
                hung = [pool.submit(self.claim_by_rpc, 'h1', f'h1-{number}')
                        for number in range(CALLS)]
                for _ in range(8):
                    self.assertTrue(waiting.acquire(timeout=patience.LONG))
                for number in range(8):
                    self.claim_by_rpc('h2', f'h2-{number}')
                for host in ('h1', 'h2'):
                    self.api.digest(context.admin(), hosts.origin(
                        host, self.node(host)))
                self.assertEqual(['h2'] * 8, ended)
            granted = [call for call in hung if call.exception() is None]
        # In the end each was handled, and as many as there are GPUs granted.
        self.assertEqual(8, len(granted))
        self.assertEqual(CALLS, ended.count('h1'))


class MariaDBHungWriterTest(PostgreSQLHungWriterTest):

    server = services.MARIADB


class PostgreSQLSilentDatabaseTest(TwoConductorsCase):

    server = services.POSTGRESQL
    rpc_timeout = 20

    def first_database(self):
        self.way, url = self.proxied(self.made.connection, 0)
        return url

    def digest(self):
        return self.api.digest(
            context.admin(), hosts.origin('h1', base.NODE))

    def test_calls_go_on_beside_silent_database_connections(self):
        self.calls(CALLS, self.digest)
        self.way.silence()
        # Idle connections are checked first, so that no call fails.
        self.calls(CALLS, self.digest)
        self.conductors[1].stop()
        self.digest()


class MariaDBSilentDatabaseTest(PostgreSQLSilentDatabaseTest):

    server = services.MARIADB


class SilentBrokerTest(TwoConductorsCase):

    server = services.POSTGRESQL
    rpc_timeout = 20

    def first_broker(self):
        self.conf.set_override('heartbeat_timeout_threshold', 4,
                               'oslo_messaging_rabbit')
        self.way, url = self.proxied(services.RABBITMQ, 5672)
        return url

    def answered(self):
        try:
            self.api.host_list(
                context.admin(), limit=1, marker=None)
        except exception.ConductorUnavailable:
            return False
        return True

    def all_answered(self):
        return all(self.calls(CALLS, self.answered))

    def test_calls_go_on_beside_a_silent_broker_connection(self):
        self.assertTrue(patience.wait_until(self.all_answered))
        self.way.silence()
        # Lost are those that the broker sends before it notices.
        self.assertTrue(patience.wait_until(self.all_answered))
        self.conductors[1].stop()
        self.assertTrue(patience.wait_until(self.answered))
