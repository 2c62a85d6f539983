# SPDX-License-Identifier: Apache-2.0
"""Tests of RPC contracts: both ends use the same arguments."""

import inspect
import traceback
import typing
from collections.abc import Callable
from unittest import mock

import oslo_messaging
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import service
from gpgpu_plugin.conductor import manager as conductor_manager
from gpgpu_plugin.domain.allocation import request as request_rules
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import ping
from tests.fixtures import tenant

CONTRACTS = {
    conductor_contract.Conductor: conductor_manager.ConductorManager,
    compute_api.Compute: service.ComputeManager,
    ping.Pinged: ping.PingEndpoint,
}


def arguments(method: Callable[..., object]) -> dict[str, object]:
    """Return the types of the wire's arguments, by name."""
    hints = typing.get_type_hints(method)
    return {name: hints[name]
            for name in inspect.signature(method).parameters
            if name not in ('self', 'ctxt')}


class ContractsTest(base.BaseTestCase):
    """Tests of the rules that every contract follows."""

    def test_endpoint_takes_a_context_and_keywords_without_defaults(self):
        # A client sends what a call leaves out.
        for served, endpoint in CONTRACTS.items():
            for name in contract.methods(served):
                _, ctxt, *rest = inspect.signature(
                    vars(endpoint)[name]).parameters.values()
                self.assertEqual('ctxt', ctxt.name, name)
                for parameter in rest:
                    self.assertIs(parameter.KEYWORD_ONLY, parameter.kind)
                    self.assertIs(parameter.empty, parameter.default)

    def test_endpoint_has_every_method_with_its_arguments(self):
        for served, endpoint in CONTRACTS.items():
            for name, method in contract.methods(served).items():
                implementation = vars(endpoint)[name]
                self.assertEqual(
                    arguments(method), arguments(implementation), name)
                self.assertEqual(
                    typing.get_type_hints(method)['return'],
                    typing.get_type_hints(implementation)['return'], name)

    def test_endpoint_serves_no_other_method(self):
        for served, endpoint in CONTRACTS.items():
            self.assertEqual(
                set(contract.methods(served)),
                {name for name, _ in inspect.getmembers(
                    endpoint, inspect.isfunction) if name[0] != '_'})


class _Echo(typing.Protocol):

    def repeat(self, ctxt: context.RequestContext, *,
               request: claim.ClaimRequest) -> tuple[claim.ClaimRequest, ...]:
        ...


@contract.serve(_Echo)
class _EchoEndpoint:

    target = oslo_messaging.Target(version='1.0')

    def repeat(self, ctxt, *, request):
        if request.host == 'unknown':
            raise exception.NotFound(kind='host', name=request.host)
        return request, request


class ServeTest(base.BaseTestCase):
    """Tests of the primitives at an endpoint."""

    REQUEST = claim.ClaimRequest(
        **tenant.TENANT,
        instance_uuid='i1', host='h1', request=request_rules.Request())

    def serve(self, **arguments):
        return _EchoEndpoint().repeat(context.admin(), **arguments)

    def test_text_that_controls_a_terminal_arrives_escaped(self):
        [answer, _] = self.serve(request={
            **codec.to_primitive(self.REQUEST),
            'instance_uuid': '\x1b[2J', 'host': 'h\n1'})
        self.assertEqual((r'\x1b[2J', r'h\n1'),
                         (answer['instance_uuid'], answer['host']))

    def test_endpoint_takes_and_returns_primitives(self):
        answers = self.serve(request=codec.to_primitive(self.REQUEST))
        self.assertEqual(2, len(answers))
        self.assertIsInstance(answers[0], dict)
        self.assertEqual('i1', answers[0]['instance_uuid'])

    def test_client_returns_the_type_of_the_contract(self):
        class Direct:
            def call(self, ctxt, method, **arguments):
                return getattr(_EchoEndpoint(), method)(ctxt, **arguments)
        self.assertEqual(
            (self.REQUEST, self.REQUEST),
            contract.Client(Direct()).call(
                _Echo.repeat, context.admin(), request=self.REQUEST))

    def test_argument_of_another_type_is_refused(self):
        refusal = self.assertRaises(
            oslo_messaging.ExpectedException, self.serve, request='h1')
        self.assertIsInstance(refusal.exc_info[1], exception.Invalid)

    def test_argument_that_the_contract_does_not_have_is_refused(self):
        self.assertRaises(
            TypeError, self.serve, mark='x',
            request=codec.to_primitive(self.REQUEST))

    def test_our_error_is_an_answer(self):
        refusal = self.assertRaises(
            oslo_messaging.ExpectedException, self.serve, request={
                **codec.to_primitive(self.REQUEST), 'host': 'unknown'})
        self.assertIsInstance(refusal.exc_info[1], exception.NotFound)

    def test_traceback_of_our_error_is_not_sent(self):
        refusal = self.assertRaises(
            oslo_messaging.ExpectedException, self.serve, request={
                **codec.to_primitive(self.REQUEST), 'host': 'unknown'})
        _, error, frames = refusal.exc_info
        self.assertNotIn('repeat', [
            frame.name for frame in traceback.extract_tb(frames)])
        self.assertIsNone(error.__context__)

    def test_annotations_are_evaluated_once(self):
        class Direct:
            def call(self, ctxt, method, **arguments):
                return getattr(_EchoEndpoint(), method)(ctxt, **arguments)
        client = contract.Client(Direct())
        client.call(_Echo.repeat, context.admin(), request=self.REQUEST)
        with mock.patch.object(typing, '_eval_type') as evaluate:
            client.call(_Echo.repeat, context.admin(), request=self.REQUEST)
        evaluate.assert_not_called()
