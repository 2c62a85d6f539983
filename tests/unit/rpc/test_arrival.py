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
"""Tests of calls that arrive after their callers gave up."""

import threading

import fixtures
import oslo_messaging
from oslo_config import cfg
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.rpc import arrival
from gpgpu_plugin.rpc import transport as rpc_transport

TOPIC = 'arrival'


class Endpoint:
    """Endpoint with one worker, whose first call waits."""

    target = oslo_messaging.Target(version='1.0')

    def __init__(self):
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.expired = []
        self.done = threading.Event()

    def wait(self, ctxt):
        self.began.set()
        self.go_on.wait(300)

    def late(self, ctxt, wanted):
        try:
            arrival.check_wanted('late', 'i1', wanted)
        except exception.RequestExpired as exc:
            self.expired.append(exc)
        self.done.set()


class ArrivalTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.seconds = 1000.0
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.rpc.arrival.time.monotonic', lambda: self.seconds))

    def test_call_outside_a_server_is_wanted(self):
        arrival.check_wanted('claim', 'i1', 0)

    def serve(self):
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        conf([], project='gpgpu-test')
        conf.set_override('transport_url', 'fake:/', 'gpgpu')
        transport = rpc_transport.get_transport(conf)
        self.addCleanup(transport.cleanup)
        endpoint = Endpoint()
        server = rpc_transport.server(transport, TOPIC, self.id(), [endpoint])
        server.start(override_pool_size=1)
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)
        self.addCleanup(endpoint.go_on.set)
        return endpoint, server, rpc_transport.client(transport, TOPIC, '1.0')

    def test_wait_for_a_thread_of_the_server_counts(self):
        endpoint, server, client = self.serve()
        arrived = threading.Event()
        noted = server._on_incoming

        def incoming(messages):
            noted(messages)
            if messages[0].message['method'] == 'late':
                arrived.set()
        server.listener.on_incoming_callback = incoming
        client.cast(context.admin(), 'wait')
        self.assertTrue(endpoint.began.wait(300))
        client.cast(context.admin(), 'late', wanted=3)
        self.assertTrue(arrived.wait(300))
        self.seconds += 4
        endpoint.go_on.set()
        self.assertTrue(endpoint.done.wait(300))
        [exc] = endpoint.expired
        self.assertIn('late for i1 was wanted for 3 s and handled after 4.0 s',
                      str(exc))

    def test_call_that_waits_less_than_its_caller_is_wanted(self):
        endpoint, _, client = self.serve()
        client.cast(context.admin(), 'late', wanted=3)
        self.assertTrue(endpoint.done.wait(300))
        self.assertEqual([], endpoint.expired)
