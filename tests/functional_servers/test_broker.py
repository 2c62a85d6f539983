# SPDX-License-Identifier: Apache-2.0
"""Outages of RabbitMQ: calls fail in time, and work again afterwards."""

import functools
import time
import uuid

import amqp
import fixtures
import sqlalchemy as sa
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import service
from gpgpu_plugin.conductor import host_messages
from gpgpu_plugin.conductor import service as service_mod
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import ping
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database
from tests.fixtures import proxy
from tests.fixtures import services


class BrokerTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        services.require(self, services.RABBITMQ)
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.conf.set_override(
            'topic_prefix', f'test-{uuid.uuid4().hex[:8]}', 'gpgpu')
        self.db = self.useFixture(database.Database(self.conf)).db
        # The conductor's own way to the broker stays.
        conductor = service_mod.ConductorService(
            self.conf, self._transport(services.RABBITMQ), self.db)
        conductor.start()
        self.addCleanup(conductor.stop)
        url = sa.make_url(services.RABBITMQ)
        self.proxy = self.useFixture(
            proxy.Proxy((url.host, url.port or 5672)))
        self.way = url.set(
            host='127.0.0.1', port=self.proxy.port).render_as_string(
                hide_password=False)

    def _transport(self, url):
        self.conf.set_override('transport_url', url, 'gpgpu')
        return rpc_transport.get_transport(self.conf)

    def test_starts_and_pings_leave_no_new_queues(self):
        declared = set()
        declare = amqp.Channel.queue_declare

        def queue_declare(channel, queue='', *args, **kwargs):
            if 'x-expires' not in (kwargs.get('arguments') or {}):
                declared.add(queue)
            return declare(channel, queue, *args, **kwargs)
        self.useFixture(fixtures.MonkeyPatch(
            'amqp.Channel.queue_declare', queue_declare))

        def queues_of_one_start():
            declared.clear()
            transport = self._transport(services.RABBITMQ)
            conductor = service_mod.ConductorService(
                self.conf, transport, self.db)
            conductor.start()
            ping.ping(self.conf, transport, wait=0.1)
            conductor.stop()
            transport.cleanup()
            return set(declared)
        first = queues_of_one_start()
        self.assertTrue(first)
        self.assertEqual(first, queues_of_one_start())

    def _call_fails_in_time(self, api):
        began = time.monotonic()
        self.assertRaises(exception.ConductorUnavailable,
                          api.variant_list, context.admin())
        # The timeout is 5 s; oslo.messaging itself would wait for ever.
        self.assertLess(time.monotonic() - began, 120)

    def test_calls_succeed_again_after_the_broker_returns(self):
        api = conductor_client.ConductorAPI(
            self.conf, self._transport(self.way), timeout=5)
        self.assertEqual((), api.variant_list(context.admin()))
        self.proxy.down()
        self._call_fails_in_time(api)
        self.proxy.up()
        for _ in range(120):
            try:
                self.assertEqual((), api.variant_list(context.admin()))
                return
            except exception.ConductorUnavailable:
                # The queue for replies finds back by itself, in its time.
                time.sleep(1)
        self.fail('the broker is back, calls still fail')

    def serve(self):
        """Answer as the nova-compute of h1."""
        transport = self._transport(services.RABBITMQ)
        api = conductor_client.ConductorAPI(
            self.conf, transport, caller=context.CallerKind.HOST, name='h1')
        server = rpc_transport.server(
            transport, rpc_transport.compute_topic(self.conf), 'h1',
            [service.ComputeManager(
                lambda: None, lambda: None, lambda assignments: (),
                lambda repairs: (), functools.partial(
                    api.answer, context.admin(), 'h1'))])
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)

    def test_answer_reaches_the_conductor_that_asked(self):
        transport = self._transport(services.RABBITMQ)
        other = service_mod.ConductorService(self.conf, transport, self.db)
        other.start()
        self.addCleanup(other.stop)
        self.serve()
        api = conductor_client.ConductorAPI(self.conf, transport)
        # The broker gives calls to both conductors in turn.
        for _ in range(4):
            self.assertEqual(
                (), api.examine_hosts(context.admin(), ['h1']))

    def test_host_without_nova_compute_does_not_answer(self):
        self.serve()
        self.assertFalse(host_messages.HostQuery(compute_api.ComputeAPI(
            self.conf, self._transport(services.RABBITMQ))).is_answered(
                context.admin(), 'h2'))

    def test_question_without_broker_is_refused(self):
        asking = host_messages.HostQuery(compute_api.ComputeAPI(
            self.conf, self._transport(self.way)))
        self.proxy.down()
        began = time.monotonic()
        self.assertRaises(exception.BrokerUnavailable, asking.is_answered,
                          context.admin(), 'h1')
        self.assertLess(time.monotonic() - began, 30)

    def test_first_call_without_broker_is_refused(self):
        self.proxy.down()
        api = conductor_client.ConductorAPI(
            self.conf, self._transport(self.way), timeout=5)
        self._call_fails_in_time(api)
        self.proxy.up()
        self.assertEqual((), api.variant_list(context.admin()))
