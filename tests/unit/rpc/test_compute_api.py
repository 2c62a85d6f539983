# SPDX-License-Identifier: Apache-2.0
"""Tests of the hosts' client: casts, questions, errors."""

import functools
import queue
import socket

from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import manager
from gpgpu_plugin.objects import claim
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import conductor as conductor_fixture
from tests.unit.compute import make


class ComputeAPITest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        # The in-process transport keeps what other tests sent.
        self.conf.set_override('topic_prefix', self.id()[-60:], 'gpgpu')
        self.transport = rpc_transport.get_transport(self.conf)
        self.addCleanup(self.transport.cleanup)
        self.api = compute_api.ComputeAPI(self.conf, self.transport)

    def serve(self, endpoint, host='h1'):
        server = rpc_transport.server(
            self.transport,
            rpc_transport.compute_topic(self.conf),
            host,
            [endpoint],
        )
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)

    def test_cast_calls_one_method_of_one_host(self):
        seen = queue.Queue()
        for host in ('h1', 'h2'):
            self.serve(manager.ComputeManager(
                functools.partial(seen.put, f'refresh of {host}'),
                functools.partial(seen.put, f'assignments of {host}'),
                seen.put, seen.put, seen.put),
                host=host)
        self.api.assignments_changed(context.admin(), 'h1')
        self.assertEqual('assignments of h1', seen.get(timeout=60))
        self.api.refresh(context.admin(), 'h2')
        self.assertEqual('refresh of h2', seen.get(timeout=60))
        self.assertTrue(seen.empty())

    def test_question_reaches_its_host_alone(self):
        asked = queue.Queue()
        for host in ('h1', 'h2'):
            self.serve(manager.ComputeManager(
                lambda: None, lambda: None, lambda assignments: tuple(
                    claim.Usage(uuid=assignment.uuid, used=None, reason='')
                    for assignment in assignments),
                lambda repairs: (),
                lambda *, question, usages, drifts, host=host: asked.put(
                    (host, question, usages))), host=host)
        self.api.ask(context.admin(), 'h2', 'q1', [make.assignment()])
        self.assertEqual(
            ('h2', 'q1', (claim.Usage(
                uuid=make.assignment().uuid, used=None, reason=''),)),
            asked.get(timeout=60))
        self.assertTrue(asked.empty())

    def test_question_while_the_broker_is_down_is_an_error(self):
        with socket.socket() as probe:
            # Bound and not listening: connections are refused.
            probe.bind(('127.0.0.1', 0))
            self.conf.set_override(
                'transport_url',
                f'rabbit://me:secret@127.0.0.1:{probe.getsockname()[1]}/',
                'gpgpu')
            transport = rpc_transport.get_transport(self.conf)
            self.addCleanup(transport.cleanup)
            self.assertRaises(
                exception.BrokerUnavailable,
                compute_api.ComputeAPI(self.conf, transport).probe)
