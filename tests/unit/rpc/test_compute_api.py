#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Tests of the hosts' client: ping, casts, errors."""

import functools
import queue
import socket
import time

import fixtures
import oslo_messaging
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import manager
from gpgpu_plugin.objects import claim
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import conductor as conductor_fixture
from tests.unit.compute import make


class _OtherVersion:
    """A nova-compute that has no ping."""

    target = oslo_messaging.Target(version='1.0')


class PingTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        # The in-process transport keeps what other tests sent.
        self.conf.set_override('topic_prefix', self.id()[-60:], 'gpgpu')
        # A busy machine answers late.
        self.limit(60)
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

    def limit(self, seconds):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.compute_api.PING_TIMEOUT', seconds))

    def test_ping_of_a_running_nova_compute_answers(self):
        calls = []
        self.serve(manager.ComputeManager(
            lambda: calls.append(1), lambda: calls.append(2),
            calls.append))
        self.assertTrue(self.api.ping(context.admin(), 'h1'))
        # It is asked whether it lives, not to do anything.
        self.assertEqual([], calls)

    def test_cast_calls_one_method_of_one_host(self):
        seen = queue.Queue()
        for host in ('h1', 'h2'):
            self.serve(manager.ComputeManager(
                functools.partial(seen.put, f'refresh of {host}'),
                functools.partial(seen.put, f'assignments of {host}'),
                seen.put),
                host=host)
        self.api.assignments_changed(context.admin(), 'h1')
        self.assertEqual('assignments of h1', seen.get(timeout=60))
        self.api.refresh(context.admin(), 'h2')
        self.assertEqual('refresh of h2', seen.get(timeout=60))
        self.assertTrue(seen.empty())

    def test_assignment_usage_is_answered_by_the_host(self):
        for host in ('h1', 'h2'):
            self.serve(manager.ComputeManager(
                lambda: None, lambda: None, functools.partial(
                    self.judge, host)), host=host)
        self.assertEqual(
            (claim.Usage(uuid='a1', used=None, reason='h2 says'),),
            self.api.assignment_usage(
                context.admin(), 'h2', [make.assignment()]))

    def judge(self, host, assignments):
        return tuple(claim.Usage(uuid=assignment.uuid, used=None,
                                 reason=f'{host} says')
                     for assignment in assignments)

    def test_ping_of_another_host_is_not_answered(self):
        self.serve(manager.ComputeManager(
            lambda: None, lambda: None, tuple), host='h2')
        self.limit(0.2)
        self.assertFalse(self.api.ping(context.admin(), 'h1'))

    def test_ping_without_any_nova_compute_ends_in_time(self):
        self.limit(0.2)
        began = time.monotonic()
        self.assertFalse(self.api.ping(context.admin(), 'h1'))
        # oslo.messaging's own limit is 60 s.
        self.assertLess(time.monotonic() - began, 50)

    def test_ping_that_is_answered_with_an_error_is_answered(self):
        self.serve(_OtherVersion())
        self.assertTrue(self.api.ping(context.admin(), 'h1'))

    def test_ping_while_the_broker_is_down_is_an_error(self):
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
                compute_api.ComputeAPI(self.conf, transport).ping,
                context.admin(), 'h1')

    def test_broker_that_goes_while_the_answer_is_awaited_is_an_error(self):
        self.limit(0.2)
        probes = []

        def probe(conf, transport):
            probes.append(1)
            if len(probes) > 1:
                raise exception.BrokerUnavailable(hosts='b', reason='gone')
        self.useFixture(fixtures.MockPatchObject(
            rpc_transport, 'probe', probe))
        self.assertRaises(exception.BrokerUnavailable, self.api.ping,
                          context.admin(), 'h1')
