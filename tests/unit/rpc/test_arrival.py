# SPDX-License-Identifier: Apache-2.0
"""Tests of calls that arrive after their callers gave up."""

import contextlib
import logging
import threading
from unittest import mock

import fixtures
import oslo_messaging
from oslo_config import cfg
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.rpc import server as server_mod
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import patience

TOPIC = 'arrival'


class Endpoint:
    """Endpoint with one worker, whose first call waits."""

    target = oslo_messaging.Target(version='1.0')

    def __init__(self):
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.expired = []
        self.done = threading.Event()
        self.running = []
        self.all_run = threading.Semaphore(0)

    def run(self, ctxt, host, number):
        self.running.append((host, number))
        self.all_run.release()
        self.go_on.wait(300)

    def wait(self, ctxt):
        self.began.set()
        self.go_on.wait(300)

    def late(self, ctxt, wanted):
        try:
            server_mod.check_wanted('late', 'i1', wanted)
        except exception.RequestExpired as exc:
            self.expired.append(exc)
        self.done.set()

    def fail(self, ctxt, wanted):
        raise ValueError(wanted)

    @oslo_messaging.expected_exceptions(exception.NotFound)
    def deny(self, ctxt, wanted):
        raise exception.NotFound(kind='host', name='h9')


class ArrivalTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.seconds = 1000.0
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.rpc.server.time.monotonic', lambda: self.seconds))

    def test_call_outside_a_server_is_wanted(self):
        server_mod.check_wanted('claim', 'i1', 0)

    def test_call_outside_a_server_has_just_arrived(self):
        self.assertEqual(0, server_mod.seconds_left())

    def serve(self, threads=1):
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        conf([], project='gpgpu-test')
        conf.set_override('transport_url', 'fake:/', 'gpgpu')
        transport = rpc_transport.get_transport(conf)
        self.addCleanup(transport.cleanup)
        endpoint = Endpoint()
        rpc_transport.register_server_opts(conf)
        conf.set_override('executor_thread_pool_size', threads)
        server = rpc_transport.server(
            transport, TOPIC, self.id(), [endpoint],
            lambda method, arguments: arguments.get('host'),
            repeated={'run'})
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)
        self.addCleanup(endpoint.go_on.set)
        return endpoint, server, rpc_transport.client(transport, TOPIC, '1.0')

    def test_malformed_message_is_refused_and_forges_no_line_of_the_log(self):
        log = self.useFixture(fixtures.FakeLogger('gpgpu_plugin.rpc.server'))
        dispatcher = server_mod.Dispatcher(
            [Endpoint()], context.ContextSerializer(),
            oslo_messaging.DefaultRPCAccessPolicy)
        good = {'method': 'late', 'args': {'wanted': 3}}
        for number, (ctxt, message) in enumerate((
                ({'wanted': 'x'}, good), ({}, {**good, 'method': ['late']}),
                ({}, {**good, 'method': 'a\nb'}), ({}, {'args': {}}),
                ({}, {**good, 'method': 'm' * 10 ** 6}),
                ({}, {**good, 'args': None}),
                ({'wanted': -1, 'request_id': 'r\n' * 10 ** 6}, good))):
            signature = {'name': f'{number}'}
            incoming = mock.Mock(
                ctxt={**ctxt, 'signature': signature}, message=message,
                gpgpu_arrived_at=self.seconds)
            self.assertRaises(oslo_messaging.ExpectedException,
                              dispatcher.dispatch, incoming)
        lines = log.output.splitlines()
        self.assertEqual(7, len(lines))
        self.assertLess(max(map(len, lines)), 400)

    def test_refused_calls_fill_no_log(self):
        log = self.useFixture(fixtures.FakeLogger('gpgpu_plugin.rpc.server'))
        dispatcher = server_mod.Dispatcher(
            [Endpoint()], context.ContextSerializer(),
            oslo_messaging.DefaultRPCAccessPolicy)

        def lines(*signatures, message=None):
            before = len(log.output.splitlines())
            for signature in signatures:
                self.assertRaises(
                    oslo_messaging.ExpectedException, dispatcher.dispatch,
                    mock.Mock(ctxt={'signature': signature, 'wanted': -1},
                              message=message or {'method': ['malformed']},
                              gpgpu_arrived_at=self.seconds))
            return len(log.output.splitlines()) - before

        gpu1 = {'name': 'gpu1'}
        self.assertEqual(1, lines(gpu1, gpu1))
        self.assertEqual(2, lines({'name': 'gpu2'}, [], None, {'name': []}))
        late = {'method': 'late', 'args': {'wanted': 1}}
        self.assertEqual(1, lines(gpu1, gpu1, message=late))
        self.seconds += 61
        self.assertEqual(1, lines(gpu1, gpu1))
        self.assertEqual(63, lines(*(
            {'name': f'invented{number}'} for number in range(1000))))

    def observed(self, endpoint, message, ctxt=None):
        """Return with what an observer is called for a message."""
        found = []
        dispatcher = server_mod.Dispatcher(
            [endpoint], context.ContextSerializer(),
            oslo_messaging.DefaultRPCAccessPolicy, observer=found.append)
        incoming = mock.Mock(ctxt=ctxt or {}, message=message,
                             gpgpu_arrived_at=self.seconds - 2)
        with contextlib.suppress(
                oslo_messaging.ExpectedException, ValueError,
                oslo_messaging.NoSuchMethod):
            dispatcher.dispatch(incoming)
        [handled] = found
        return handled

    def test_each_call_is_observed_once(self):
        endpoint = Endpoint()
        for method, kind in (('late', type(None)), ('fail', ValueError),
                             ('deny', exception.NotFound),
                             ('none', oslo_messaging.NoSuchMethod)):
            handled = self.observed(
                endpoint, {'method': method, 'args': {'wanted': 9}})
            self.assertIsInstance(handled.error, kind)
            self.assertEqual((method, {'wanted': 9}, 2), (
                handled.method, handled.arguments, handled.seconds))

    def test_call_that_reaches_no_endpoint_is_observed(self):
        expired = self.observed(
            Endpoint(), {'method': 'late', 'args': {}}, {'wanted': 1})
        self.assertIsInstance(expired.error, exception.RequestExpired)
        malformed = self.observed(Endpoint(), {'method': ['late']})
        self.assertIsInstance(malformed.error, exception.CallerRefused)
        self.assertEqual((['late'], None), (
            malformed.method, malformed.arguments))

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
        self.assertIn('late for i1 was not executed: its caller waits for 3 '
                      's, and 4.0 s have passed', str(exc))

    def test_call_that_waits_less_than_its_caller_is_wanted(self):
        endpoint, _, client = self.serve()
        client.cast(context.admin(), 'late', wanted=3)
        self.assertTrue(endpoint.done.wait(300))
        self.assertEqual([], endpoint.expired)

    def test_call_that_nobody_waits_for_is_dropped(self):
        endpoint, server, client = self.serve()
        logged = self.useFixture(fixtures.FakeLogger(level=logging.INFO))
        handled = self.count(server)
        client.cast(context.admin(), 'wait')
        self.assertTrue(endpoint.began.wait(300))
        client.cast(context.admin('req-old').for_call(3), 'run', host='h1',
                    number=1)
        client.cast(context.admin(), 'run', host='h1', number=2)
        self.assertTrue(patience.wait_until(lambda: len(handled) == 3))
        self.seconds += 4
        endpoint.go_on.set()
        self.assertTrue(endpoint.all_run.acquire(timeout=300))
        self.assertEqual([('h1', 2)], endpoint.running)
        self.assertIn("run for request 'req-old' was not executed: its caller "
                      'waits for 3 s', logged.output)
        self.assertNotIn('Traceback', logged.output)

    @staticmethod
    def count(server):
        """Return the messages that arrive from now on."""
        found = []
        noted = server._on_incoming

        def incoming(messages):
            noted(messages)
            found.extend(messages)
        server.listener.on_incoming_callback = incoming
        return found

    def test_host_whose_calls_hang_leaves_threads_to_others(self):
        endpoint, server, client = self.serve(threads=8)
        arrived = self.count(server)
        for number in range(20):
            client.cast(context.admin(), 'run', host='h1', number=number)
        client.cast(context.admin(), 'run', host='h2', number=0)
        # Casts to no host are never late.
        client.cast(context.admin(), 'wait')
        for _ in range(5):
            self.assertTrue(endpoint.all_run.acquire(timeout=300))
        self.assertTrue(endpoint.began.wait(300))
        self.assertTrue(patience.wait_until(lambda: len(arrived) == 22))
        self.assertEqual(
            {*(('h1', number) for number in range(4)), ('h2', 0)},
            set(endpoint.running))
        endpoint.go_on.set()
        for _ in range(16):
            self.assertTrue(endpoint.all_run.acquire(timeout=300))
        self.assertEqual(21, len(set(endpoint.running)))

    def test_calls_that_wait_leave_threads_to_calls_that_only_read(self):
        endpoint, _, client = self.serve(threads=8)
        for host in range(20):
            client.cast(context.admin(), 'run', host=f'h{host}', number=0)
        for _ in range(6):
            self.assertTrue(endpoint.all_run.acquire(timeout=300))
        client.cast(context.admin(), 'wait')
        self.assertTrue(endpoint.began.wait(300))
        self.assertEqual(6, len(endpoint.running))

    def test_server_that_stops_works_on_the_calls_that_wait(self):
        endpoint, server, client = self.serve(threads=2)
        arrived = self.count(server)
        for number in range(3):
            client.cast(context.admin(), 'run', host='h1', number=number)
        self.assertTrue(patience.wait_until(lambda: len(arrived) == 3))
        endpoint.go_on.set()
        server.stop()
        server.wait()
        self.assertEqual([('h1', number) for number in range(3)],
                         endpoint.running)

    def test_repeat_waits_for_the_call_that_runs_and_takes_no_thread(self):
        endpoint, server, client = self.serve(threads=4)
        arrived = self.count(server)
        repeated = context.admin()
        for _ in range(10):
            client.cast(repeated, 'run', host='h1', number=0)
        # Another call of the same request is none of the repeats.
        client.cast(repeated, 'run', host='h1', number=10)
        client.cast(context.admin(), 'run', host='h2', number=11)
        # Three of four threads may wait for locks.
        for _ in range(3):
            self.assertTrue(endpoint.all_run.acquire(timeout=300))
        self.assertTrue(patience.wait_until(lambda: len(arrived) == 12))
        self.assertEqual([('h1', 0), ('h1', 10), ('h2', 11)],
                         sorted(endpoint.running))
        endpoint.go_on.set()
        self.assertTrue(endpoint.all_run.acquire(timeout=300))
        server.stop()
        server.wait()
        # For the others nobody waits any more.
        self.assertEqual([('h1', 0)], endpoint.running[3:])
