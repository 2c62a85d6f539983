# SPDX-License-Identifier: Apache-2.0
"""Tests of finding all conductors at once."""

import dataclasses
import os
import socket
import threading
import time
import types

import fixtures
import oslo_messaging
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin import version
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import guard
from gpgpu_plugin.rpc import ping
from gpgpu_plugin.rpc import signature
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import patience


def answer(host, pid):
    return ping.PingAnswer(
        host=host, pid=pid, version='1', rpc_version='1.0', started_at=0)


@contract.serve(ping.Pinged)
class _Conductor(ping.Pinged):
    """A conductor of another host."""

    target = oslo_messaging.Target(version=conductor_contract.VERSION)

    def __init__(self, conf, transport, given):
        self._askers = contract.Client(rpc_transport.client(
            transport, rpc_transport.ping_topic(conf), '1.0').prepare(
                fanout=True))
        self._given = given

    def ping(self, ctxt, *, ping_uuid):
        self._askers.cast(ping.Pinger.pong, ctxt, ping_uuid=ping_uuid,
                          answer=self._given)


class PingTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        # The in-process transport keeps what other tests sent.
        self.conf.set_override('topic_prefix', self.id()[-60:], 'gpgpu')
        self.transport = rpc_transport.get_transport(self.conf)
        self.addCleanup(self.transport.cleanup)

    def serve(self, endpoint, name='c'):
        server = rpc_transport.server(
            self.transport, rpc_transport.pinged_topic(
                self.conf), name, [endpoint])
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)

    def ping(self, answers):
        """Listen until so many answered, not until a busy machine had time.
        """
        arrived = threading.Semaphore(0)

        class Collector(ping._Collector):
            def pong(self, *args, **kwargs):
                super().pong(*args, **kwargs)
                arrived.release()

        self.waits = []

        def sleep(seconds):
            self.waits.append(seconds)
            for _ in range(answers):
                self.assertTrue(arrived.acquire(timeout=patience.LONG))
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.ping._Collector', Collector))
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.ping.time',
            types.SimpleNamespace(sleep=sleep, time=time.time)))
        return ping.ping(self.conf, self.transport, wait=7)

    def test_without_conductor_nobody_answers(self):
        self.assertEqual((), self.ping(0))
        self.assertEqual([7], self.waits)

    def test_conductor_says_which_process_it_is_and_since_when(self):
        began = time.time()
        self.serve(ping.PingEndpoint(self.conf, self.transport))
        started = time.time()
        [found] = self.ping(1)
        self.assertEqual(
            (socket.gethostname(), os.getpid(), version.VERSION,
             conductor_contract.VERSION),
            (found.host, found.pid, found.version, found.rpc_version))
        self.assertEqual('', found.unfit)
        self.assertLessEqual(began, found.started_at)
        self.assertLessEqual(found.started_at, started)

    def test_conductor_that_takes_no_calls_says_why(self):
        self.serve(ping.PingEndpoint(
            self.conf, self.transport, lambda: 'its clock is wrong'))
        [found] = self.ping(1)
        self.assertEqual('its clock is wrong', found.unfit)

    def test_signature_of_any_key_is_taken_and_none_is_refused(self):
        master = signature.new_master()
        topic = rpc_transport.pinged_topic(self.conf)
        checks = guard.Guard(
            (ping.Pinged,), context.CallerKind.OPERATOR, topic,
            guard.Verifier([master], guard.AnyKey()))
        self.assertRaises(
            exception.CallerRefused, checks.check, {}, 'ping', {})
        signed = master.derive(context.CallerKind.OPERATOR, 'root', 1).sign(
            topic, 'ping', {}, dict.fromkeys(context.SENT))
        self.assertEqual('root', checks.check(
            {'signature': dataclasses.asdict(signed)}, 'ping', {}).name)

    def test_all_conductors_answer_by_host_and_process(self):
        answers = answer('b', 2), answer('b', 11), answer('a', 7)
        for number, given in enumerate(answers):
            self.serve(_Conductor(
                self.conf, self.transport, given), f'c{number}')
        self.assertEqual(
            (answers[2], answers[0], answers[1]), self.ping(3))

    def test_conductor_of_another_cloud_is_not_asked(self):
        self.serve(_Conductor(
            self.conf, self.transport, answer('a', 1)))
        self.conf.set_override('topic_prefix', 'another-cloud', 'gpgpu')
        self.serve(_Conductor(
            self.conf, self.transport, answer('b', 2)))
        self.assertEqual((answer('b', 2),), self.ping(1))

    def test_listening_that_is_interrupted_stops_the_server(self):
        stopped = []
        original = rpc_transport.server

        def server(*args):
            made = original(*args)
            self.useFixture(fixtures.MockPatchObject(
                made, 'wait', lambda: stopped.append(True)))
            return made
        self.useFixture(fixtures.MockPatchObject(
            rpc_transport, 'server', server))
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.ping.time',
            types.SimpleNamespace(sleep=self._interrupt)))
        self.assertRaises(
            KeyboardInterrupt, ping.ping, self.conf, self.transport)
        self.assertEqual([True], stopped)

    def _interrupt(self, seconds):
        raise KeyboardInterrupt


class EndpointTest(base.BaseTestCase):

    def test_answers_to_another_ping_are_not_collected(self):
        conf = self.useFixture(conductor_fixture.Conf()).conf
        conf.set_override('topic_prefix', self.id()[-60:], 'gpgpu')
        transport = rpc_transport.get_transport(conf)
        self.addCleanup(transport.cleanup)
        collector = ping._Collector('mine')
        arrived = threading.Semaphore(0)

        class Endpoint:
            target = collector.target

            def pong(self, ctxt, **primitives):
                collector.pong(ctxt, **primitives)
                arrived.release()
        server = rpc_transport.server(
            transport, rpc_transport.ping_topic(conf), 's', [Endpoint()])
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)
        endpoint = ping.PingEndpoint(conf, transport)
        for ping_uuid in ('mine', 'of another asker'):
            endpoint.ping(context.admin(), ping_uuid=ping_uuid)
            self.assertTrue(arrived.acquire(timeout=patience.LONG))
        self.assertEqual([os.getpid()], [
            found.pid for found in collector.answers])
