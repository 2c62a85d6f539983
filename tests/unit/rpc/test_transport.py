# SPDX-License-Identifier: Apache-2.0
"""Tests of the transport: errors keep their class and values."""

import socket

import oslo_messaging
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.domain.allocation import request as request_rules
from gpgpu_plugin.objects import claim
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import hosts
from tests.fixtures import tenant

CLAIM = claim.ClaimRequest(
    **tenant.TENANT,
    instance_uuid='i1', host='h1', request=request_rules.Request())

ORIGIN = hosts.origin('h1', 'n1')


class _DenyingConductor:

    target = oslo_messaging.Target(version=conductor_contract.VERSION)

    def __init__(self):
        self.contexts = []

    @oslo_messaging.expected_exceptions(exception.ClaimDenied)
    def claim(self, ctxt, origin, request):
        self.contexts.append(ctxt)
        raise exception.ClaimDenied(
            instance=request['instance_uuid'], host=request['host'],
            reason='not_enough_available', detail='2 requested, 1 available')


class RPCTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.transport = rpc_transport.get_transport(self.conf)
        self.addCleanup(self.transport.cleanup)
        self.api = conductor_client.ConductorAPI(self.conf, self.transport)

    def _serve(self):
        endpoint = _DenyingConductor()
        server = rpc_transport.server(
            self.transport,
            rpc_transport.conductor_topic(
                self.conf, context.CallerKind.HOST),
            self.id(),
            [endpoint],
        )
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)
        return endpoint

    def test_refusal_arrives_with_its_reason(self):
        endpoint, ctxt = self._serve(), context.admin()
        exc = self.assertRaises(
            exception.ClaimDenied, self.api.claim, ctxt, ORIGIN, CLAIM)
        self.assertEqual('not_enough_available', exc.reason)
        self.assertEqual('h1', exc.kwargs['host'])
        self.assertEqual(ctxt.request_id, endpoint.contexts[0].request_id)

    def test_in_process_transport_is_refused_where_others_are_meant(self):
        exc = self.assertRaises(
            exception.ConfigInvalid,
            rpc_transport.check_leaves_process,
            self.conf,
        )
        self.assertIn('[gpgpu] transport_url', str(exc))
        self.conf.set_override(
            'transport_url', 'rabbit://guest:guest@127.0.0.1:5672/', 'gpgpu')
        rpc_transport.check_leaves_process(self.conf)

    def test_clouds_on_one_broker_do_not_hear_each_other(self):
        self._serve()
        self.conf.set_override('topic_prefix', 'another-cloud', 'gpgpu')
        other = conductor_client.ConductorAPI(self.conf, self.transport)
        self.assertRaises(exception.ConductorUnavailable, other.claim,
                          context.admin(),
            ORIGIN, CLAIM)

    def test_probe_of_a_broker_that_is_down_names_it_without_password(self):
        with socket.socket() as probe:
            # Bound and not listening: connections are refused.
            probe.bind(('127.0.0.1', 0))
            place = f'127.0.0.1:{probe.getsockname()[1]}'
            self.conf.set_override(
                'transport_url', f'rabbit://me:secret@{place}/', 'gpgpu')
            transport = rpc_transport.get_transport(self.conf)
            self.addCleanup(transport.cleanup)
            exc = self.assertRaises(
                exception.BrokerUnavailable, rpc_transport.probe, self.conf,
                transport)
        self.assertIn(place, str(exc))
        self.assertNotIn('secret', str(exc))

    def test_probe_of_a_broker_that_takes_it_returns(self):
        rpc_transport.probe(self.conf, self.transport)
