# SPDX-License-Identifier: Apache-2.0
"""Tests of the hosts' client: casts, questions, errors."""

import dataclasses
import functools
import queue
import socket
import time
from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import service
from gpgpu_plugin.objects import claim
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import signature
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
            self.serve(service.ComputeManager(
                functools.partial(seen.put, f'refresh of {host}'),
                functools.partial(seen.put, f'assignments of {host}'),
                seen.put, seen.put, seen.put),
                host=host)
        self.api.assignments_changed(context.admin(), 'h1')
        self.assertEqual('assignments of h1', seen.get(timeout=60))
        self.api.refresh(context.admin(), 'h2')
        self.assertEqual('refresh of h2', seen.get(timeout=60))
        self.assertTrue(seen.empty())

    def test_message_is_taken_if_a_conductor_signed_it_for_this_host(self):
        self.conf.set_override('sign_calls', True, 'gpgpu')
        self.conf.set_override(
            'keys_path', self.useFixture(fixtures.TempDir()).path, 'gpgpu')
        kind = context.CallerKind.HOST
        master = signature.new_master()
        own = master.derive(kind, 'h1', 1)
        signature.write_key(signature.caller_path(self.conf, kind),
                            own.to_text)
        checks = compute_api.guard_of(self.conf, 'h1')
        topic = rpc_transport.compute_topic(self.conf)
        sent = dict.fromkeys(context.SENT)

        def message(key, of_topic=topic, age=0.0):
            with mock.patch('time.time', lambda: time.monotonic() - age):
                signed = key.sign(of_topic, 'refresh', {}, sent)
            return {**sent, 'signature': dataclasses.asdict(signed)}

        good = message(own)
        with mock.patch.object(checks._verifier, '_clock', time.monotonic):
            self.assertEqual(
                'h1', checks.check(good, 'refresh', {}).name)
            for reason, forged in (
                    ('executed before', good), ('not signed', sent),
                    ('sent it', message(own, age=60)),
                    # The host's own call, sent back to it.
                    ('does not belong', message(
                        own, rpc_transport.conductor_topic(self.conf, kind))),
                    ('invalid', message(master.derive(kind, 'h2', 1))),
                    ('invalid', message(master.derive(kind, 'h1', 2))),
                    ('another master', message(
                        signature.new_master().derive(kind, 'h1', 1)))):
                exc = self.assertRaises(
                    exception.MessageRefused, checks.check, forged,
                    'refresh', {})
                self.assertIn('nova-compute refused message refresh',
                              str(exc))
                self.assertIn(reason, str(exc))

    def test_question_reaches_its_host_alone(self):
        asked = queue.Queue()
        for host in ('h1', 'h2'):
            self.serve(service.ComputeManager(
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
