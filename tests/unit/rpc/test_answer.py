# SPDX-License-Identifier: Apache-2.0
"""Tests of signed answers, which nobody else can give."""

import dataclasses
import functools
import json
import typing

import oslo_messaging
from oslo_config import cfg
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import guard
from gpgpu_plugin.rpc import signature
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.unit import test_exception

Kind = context.CallerKind
MASTER = signature.new_master()
KEY = MASTER.derive(Kind.HOST, 'h1', 1)


def mac_of(signed, topic='topic', method='show', key=KEY):
    return functools.partial(key.mac_of_answer, signed, topic, method)


def sign(key=KEY):
    return key.sign('topic', 'show', {}, {})


class AnswerTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.signed = sign()
        self.mac = mac_of(self.signed)

    def open(self, sealed, mac=None):
        # As the broker carries it.
        return signature.open_answer(
            mac or self.mac, 'show', json.loads(json.dumps(sealed)))

    def test_result_is_what_the_method_returned(self):
        for result in (None, [1, 'é'], {'b': 1, 'a': [2.5]}, '\ud800'):
            self.assertEqual(
                result if result != '\ud800' else '\\ud800',
                self.open(signature.result_answer(self.mac, result)))

    def test_errors_keep_class_and_values(self):
        for cls in test_exception.classes():
            error = cls(**test_exception.fields(cls))
            found = self.assertRaises(
                cls, self.open, signature.error_answer(self.mac, error))
            self.assertIs(cls, type(found))
            self.assertEqual((str(error), error.kwargs),
                             (str(found), found.kwargs))

    def test_error_that_is_known_to_one_end_is_its_base(self):
        class Own(exception.NotFound):
            """Error of one module."""
        found = self.assertRaises(
            exception.NotFound, self.open, signature.error_answer(
                self.mac, Own(kind='host', name=ValueError('h1'))))
        self.assertEqual('host h1 does not exist', str(found))

    def test_error_of_another_version_is_said_by_name(self):
        for name, fields in (('Unheard', {'host': 'h1'}),
                             ('NotFound', {'host': 'h1'})):
            found = self.assertRaises(
                oslo_messaging.RemoteError, self.open, signature._sealed(
                    self.mac, {'error': [name, fields]}))
            self.assertEqual(name, found.exc_type)

    def test_method_that_fails_is_said_without_its_class(self):
        found = self.assertRaises(
            oslo_messaging.RemoteError, self.open,
            signature.error_answer(self.mac, KeyError('x')))
        self.assertEqual(('KeyError', "'x'"), (found.exc_type, found.value))

    def test_answer_of_somebody_else_counts_as_none(self):
        good = signature.result_answer(self.mac, 'granted')
        other = MASTER.derive(Kind.HOST, 'h2', 1)
        for forged in (
                None, 'granted', ['granted'], {}, {'text': good['text']},
                {**good, 'mac': None}, {**good, 'mac': 'é'},
                {**good, 'text': good['text'].replace('granted', 'denied')},
                {**good, 'text': 1},
                signature.result_answer(mac_of(self.signed, key=other),
                                        'granted'),
                # Of another call, though it is the same one.
                signature.result_answer(mac_of(sign()), 'granted'),
                signature.result_answer(mac_of(self.signed, method='x'),
                                        'granted'),
                signature.result_answer(mac_of(self.signed, topic='x'),
                                        'granted'),
                # To a copy with the same nonce that somebody changed.
                signature.result_answer(mac_of(dataclasses.replace(
                    self.signed, mac='0')), 'granted'),
                # The MAC that the call itself has.
                {**good, 'mac': self.signed.mac}):
            self.assertRaises(exception.AnswerRefused, self.open, forged)
        self.assertEqual('granted', self.open(good))


class Shown(typing.Protocol):

    @guard.hosts('host')
    def show(self, ctxt: context.RequestContext, *, host: str) -> str:
        """Return a text, or fail."""


class Endpoint:
    target = oslo_messaging.Target(version='1.0')

    def show(self, ctxt, host):
        return f'{ctxt.caller.kind} {ctxt.caller.name}'

    def fail(self, ctxt, host):
        raise ValueError(host)


class ServerTest(base.BaseTestCase):
    """Tests of both ends, on the in-process transport."""

    def setUp(self):
        super().setUp()
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        conf([], project='gpgpu-test')
        conf.set_override('transport_url', 'fake:/', 'gpgpu')
        self.transport = rpc_transport.get_transport(conf)
        self.addCleanup(self.transport.cleanup)

    def serve(self, endpoint, checks=None):
        server = rpc_transport.server(
            self.transport, self.id()[-60:], 'h', [endpoint], guard=checks)
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)

    def guarded(self, endpoint):
        self.serve(endpoint, guard.Guard(
            [Shown], Kind.HOST, self.id()[-60:],
            guard.Verifier([MASTER], guard.AnyKey())))

    def call(self, host='h1', key=KEY):
        return contract.Client(
            rpc_transport.client(self.transport, self.id()[-60:], '1.0'),
            timeout=60, signing=contract.Signing(
                signer=key, topic=self.id()[-60:])).call(
            Shown.show, context.admin(), host=host)

    def test_signed_call_has_a_signed_answer(self):
        self.guarded(Endpoint())
        self.assertEqual('host h1', self.call())

    def test_failure_is_a_signed_answer(self):
        endpoint = Endpoint()
        endpoint.show = endpoint.fail
        self.guarded(endpoint)
        error = self.assertRaises(oslo_messaging.RemoteError, self.call)
        self.assertEqual('ValueError', error.exc_type)

    def test_refusal_has_its_words_though_nobody_signs_it(self):
        self.guarded(Endpoint())
        for wrong in ({'host': 'h2'},
                      {'key': signature.new_master().derive(
                          Kind.HOST, 'h1', 1)}):
            self.assertRaises(
                exception.CallerRefused, self.call, **wrong)

    def test_answers_of_a_server_without_the_key_count_as_none(self):
        class Forger:
            target = oslo_messaging.Target(version='1.0')
            answer = 'granted'

            def show(self, ctxt, host):
                return self.answer

            @oslo_messaging.expected_exceptions(Exception)
            def deny(self, ctxt, host):
                raise self.answer

        forger = Forger()
        self.serve(forger)
        error = self.assertRaises(exception.AnswerRefused, self.call)
        self.assertIn('did not sign it', str(error))
        forger.show = forger.deny
        for forger.answer in (
                exception.ClaimDenied(instance='i', host='h', reason='r',
                                      detail='d'),
                exception.NotFound(kind='host', name='h1'),
                ValueError('x')):
            error = self.assertRaises(exception.AnswerRefused, self.call)
            self.assertIn('it has no signature', str(error))
