# SPDX-License-Identifier: Apache-2.0
"""Tests of times in which the process was stopped."""

import socket
import time
import types

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.rpc import patience
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import conductor as conductor_fixture


class Connection:

    waits: list[float | None] = []

    def consume(self, timeout=None):
        self.waits.append(timeout)


class PatienceTest(base.BaseTestCase):

    def test_connecting_to_a_silent_broker_is_limited(self):
        conf = self.useFixture(conductor_fixture.Conf()).conf
        with socket.create_server(('127.0.0.1', 0)) as silent:
            port = silent.getsockname()[1]
            conf.set_override(
                'transport_url', f'rabbit://me@127.0.0.1:{port}/', 'gpgpu')
            conf.set_override('rpc_timeout', 1, 'gpgpu')
            transport = rpc_transport.get_transport(conf)
            self.addCleanup(transport.cleanup)
            began = time.monotonic()
            exc = self.assertRaises(
                exception.BrokerUnavailable, rpc_transport.probe, conf,
                transport)
        self.assertIn(f'127.0.0.1:{port} cannot be reached', str(exc))
        # kombu alone waits for five seconds.
        self.assertLess(time.monotonic() - began, 4)

    def test_waits_are_neither_too_short_nor_too_long(self):
        pool = types.SimpleNamespace(connection_cls=Connection)
        patience.apply(types.SimpleNamespace(
            _driver=types.SimpleNamespace(_connection_pool=pool)), 60)
        connection = pool.connection_cls()
        for timeout in (0.001, 5.0, None):
            connection.consume(timeout=timeout)
        self.assertEqual(
            [patience.WAIT, patience.WAIT, None], Connection.waits)

    def test_transport_to_rabbitmq_is_patient(self):
        conf = self.useFixture(conductor_fixture.Conf()).conf
        conf.set_override(
            'transport_url', 'rabbit://nobody@127.0.0.1:1/', 'gpgpu')
        transport = rpc_transport.get_transport(conf)
        self.addCleanup(transport.cleanup)
        # What oslo.messaging itself calls, or nothing would be gained.
        made = transport._driver._connection_pool.connection_cls
        self.assertEqual('PatientConnection', made.__name__)
        self.assertEqual('Connection', made.__mro__[1].__name__)

    def test_other_transports_stay_as_they_are(self):
        conf = self.useFixture(conductor_fixture.Conf()).conf
        transport = rpc_transport.get_transport(conf)
        self.addCleanup(transport.cleanup)
        self.assertFalse(hasattr(transport._driver, '_connection_pool'))
