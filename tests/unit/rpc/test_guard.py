# SPDX-License-Identifier: Apache-2.0
"""Tests of the check of each call."""

import dataclasses
import typing

from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.rpc import guard
from gpgpu_plugin.rpc import signature

Kind = context.CallerKind
NOW = 1_000_000.0
ORIGIN = {'origin': {'host': 'h1'}}


class Contract(typing.Protocol):

    @guard.hosts('origin.host')
    def claim(self, ctxt, *, origin):
        """For hosts."""

    @guard.hosts('host')
    @guard.operators()
    def show(self, ctxt, *, host):
        """For hosts and operators."""

    @guard.operators(once=True)
    def change(self, ctxt):
        """For operators."""


class Book:
    """What conductors know, in memory."""

    def __init__(self):
        self.revoked = set()
        self.used = {}

    def is_valid(self, kind, name, number):
        return (kind, name, number) not in self.revoked

    def serve(self, nonce, seconds, again):
        # As if the call had no other statement.
        if nonce in self.used:
            raise again
        if nonce is not None:
            self.used[nonce] = seconds


class GuardCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.now = NOW
        self.passed = 0.0
        self.master = signature.new_master()
        self.book = Book()
        self.verifier = self.make_verifier()

    def make_verifier(self, *masters):
        return guard.Verifier(
            masters or [self.master], self.book, lambda: self.now,
            lambda: self.passed)

    def guard(self, kind, verifier=None):
        return guard.Guard([Contract], kind, f'topic-{kind}',
                           verifier or self.verifier)

    def key(self, kind=Kind.HOST, name='h1', number=1):
        return self.master.derive(kind, name, number)

    def sign(self, key, method, arguments, wanted=10, topic=None, age=0):
        """Return the context of a signed call."""
        sent = {**dict.fromkeys(context.SENT), 'wanted': wanted,
                'actor': 'root@c1', 'request_id': 'req-1'}
        signed = dataclasses.replace(
            key.sign('', method, arguments, sent),
            sent_at=self.now - age)
        signed = dataclasses.replace(signed, mac=key.mac(
            signed, topic or f'topic-{key.kind}', method, arguments, sent))
        return {**sent, 'signature': dataclasses.asdict(signed)}

    def refused(self, ctxt, method, arguments, kind=Kind.HOST,
                verifier=None):
        return str(self.assertRaises(
            exception.CallerRefused, self.guard(kind, verifier).check, ctxt,
            method, arguments))

    def accepted(self, ctxt, method, arguments, kind=Kind.HOST,
                 verifier=None):
        return self.guard(kind, verifier).check(ctxt, method, arguments)


class GuardTest(GuardCase):

    def test_signed_call_is_its_callers(self):
        self.assertEqual(
            context.Caller(
                kind=Kind.HOST, name='h1', number=1, answer_mac=str),
            self.accepted(
                self.sign(self.key(), 'claim', ORIGIN), 'claim', ORIGIN))

    def test_call_for_another_host_is_refused(self):
        for method, arguments in (
                ('claim', {'origin': {'host': 'h2'}}), ('claim', {}),
                ('show', {'host': 'h2'}), ('show', {'host': None})):
            said = self.refused(self.sign(self.key(), method, arguments),
                                method, arguments)
            self.assertIn('host h1 may call it for itself only', said)
        self.assertEqual(set(), self.verifier._nonces)

    def test_method_of_another_kind_is_refused(self):
        said = self.refused(self.sign(self.key(), 'change', {}), 'change', {})
        self.assertIn('a host may not call it', said)
        for method in ('unknown', '__init__', None):
            self.refused(self.sign(self.key(), method, {}), method, {})

    def test_method_of_another_kind_is_refused_without_signatures_too(self):
        unsigned = guard.Guard([Contract], Kind.HOST, 't', None)
        self.assertIsNone(unsigned.check({}, 'claim', {}))
        self.assertRaises(exception.CallerRefused, unsigned.check, {},
                          'change', {})

    def test_key_of_another_kind_is_refused_on_the_topic(self):
        key = self.key(Kind.OPERATOR, 'root')
        ctxt = self.sign(key, 'show', {'host': 'h2'}, topic='topic-host')
        self.assertIn('operator root is no host',
                      self.refused(ctxt, 'show', {'host': 'h2'}))
        # Who may not change anything writes nothing into the database.
        self.refused(
            self.sign(self.key(), 'change', {}, topic='topic-operator'),
            'change', {}, Kind.OPERATOR)
        self.assertEqual({}, self.book.used)
        self.accepted(self.sign(key, 'show', {'host': 'h2'}), 'show',
                      {'host': 'h2'}, Kind.OPERATOR)


class VerifierTest(GuardCase):

    def test_call_without_signature_says_what_to_set(self):
        said = self.refused({}, 'claim', ORIGIN)
        self.assertIn('[gpgpu] sign_calls', said)

    def test_malformed_signature_is_refused(self):
        good = self.sign(self.key(), 'claim', ORIGIN)['signature']
        for bad in ('', 7, [], {}, {**good, 'number': 'one'},
                    {**good, 'nonce': None}, {**good, 'nonce': ''},
                    {**good, 'nonce': 'a' * 33}, {**good, 'nonce': 'G' * 32},
                    {**good, 'master_id': 'm' * 10000},
                    {**good, 'kind': 'guest'}, {**good, 'name': 'a:b'},
                    {**good, 'name': '\x1b]0;x'}, {**good, 'mac': 'é'},
                    {**good, 'mac': ''}, {**good, 'sent_at': 'now'}):
            said = self.refused({'signature': bad, 'wanted': 10}, 'claim',
                                ORIGIN)
            self.assertNotIn('\x1b', said)
            self.assertLess(len(said), 1000)

    def test_change_on_the_way_is_refused(self):
        ctxt = self.sign(self.key(), 'claim', ORIGIN)
        other = {'origin': {'host': 'h1'}, 'more': 1}
        for changed, method, arguments in (
                (ctxt, 'claim', other), (ctxt, 'show', ORIGIN),
                ({**ctxt, 'wanted': 1000}, 'claim', ORIGIN),
                ({**ctxt, 'wanted': 10.0}, 'claim', ORIGIN),
                ({**ctxt, 'actor': 'root@c2'}, 'claim', ORIGIN),
                ({**ctxt, 'request_id': 'req-2'}, 'claim', ORIGIN),
                ({**ctxt, 'global_request_id': 'req-3'}, 'claim', ORIGIN),
                (ctxt, 'claim', {'origin': {'host': 'h1', 'more': None}}),
                ({**ctxt, 'signature': {
                    **ctxt['signature'], 'sent_at': NOW + 1}},
                 'claim', ORIGIN),
                ({**ctxt, 'signature': {
                    **ctxt['signature'], 'number': 2}}, 'claim', ORIGIN)):
            self.assertIn('does not belong to this call', self.refused(
                changed, method, arguments))
        # What was refused does not use up the call.
        self.accepted(ctxt, 'claim', ORIGIN)

    def test_text_that_cannot_be_encoded_is_refused(self):
        arguments = {**ORIGIN, 'text': '\ud800'}
        ctxt = self.sign(self.key(), 'claim', ORIGIN)
        self.refused(ctxt, 'claim', arguments)

    def test_call_of_another_topic_is_refused(self):
        ctxt = self.sign(self.key(), 'claim', ORIGIN, topic='topic-scheduler')
        self.refused(ctxt, 'claim', ORIGIN)

    def test_key_of_another_master_is_refused(self):
        other = signature.new_master()
        ctxt = self.sign(other.derive(Kind.HOST, 'h1', 1), 'claim', ORIGIN)
        self.assertIn(self.master.id, self.refused(ctxt, 'claim', ORIGIN))
        self.accepted(ctxt, 'claim', ORIGIN,
                      verifier=self.make_verifier(self.master, other))

    def test_revoked_key_is_refused(self):
        self.book.revoked.add((Kind.HOST, 'h1', 1))
        said = self.refused(
            self.sign(self.key(), 'claim', ORIGIN), 'claim', ORIGIN)
        self.assertIn('key 1 of host h1 was revoked', said)
        self.accepted(self.sign(self.key(number=2), 'claim', ORIGIN),
                      'claim', ORIGIN)

    def test_old_and_future_calls_are_refused(self):
        for wanted in (10, 0.5, None):
            oldest = (wanted or 0) + guard.SLACK
            for age in (oldest + 1, -guard.SLACK - 1, 1e300):
                said = self.refused(
                    self.sign(self.key(), 'claim', ORIGIN, wanted, age=age),
                    'claim', ORIGIN)
                self.assertIn('by its own clock', said)
            for age in (oldest - 1, 1 - guard.SLACK):
                self.accepted(
                    self.sign(self.key(), 'claim', ORIGIN, wanted, age=age),
                    'claim', ORIGIN)

    def test_value_that_no_json_has_is_signed_and_accepted_by_nobody(self):
        deep = []
        for _ in range(100_000):
            deep = [deep]
        for value in (float('nan'), float('inf'), -float('inf'), deep):
            arguments = {'origin': {'host': 'h1', 'more': value}}
            self.assertRaises(exception.Invalid, self.sign, self.key(),
                              'claim', arguments)
            ctxt = self.sign(self.key(), 'claim', {
                'origin': {'host': 'h1', 'more': None}})
            self.refused(ctxt, 'claim', arguments)
            self.refused({**ctxt, 'wanted': value}, 'claim', ORIGIN)
            self.refused({**ctxt, 'signature': {
                **ctxt['signature'], 'sent_at': value}}, 'claim', ORIGIN)

    def test_repeated_call_is_refused_as_long_as_it_is_not_too_old(self):
        for age in (0, -guard.SLACK + 1, guard.SLACK - 1):
            ctxt = self.sign(self.key(), 'claim', ORIGIN, age=age)
            self.accepted(ctxt, 'claim', ORIGIN)
            for seconds in (0, 1, guard.SLACK, guard.SLACK):
                self.now += seconds
                self.passed += seconds
                self.refused(ctxt, 'claim', ORIGIN)

    def test_clock_that_is_set_forward_has_no_call_forgotten(self):
        ctxt = self.sign(self.key(), 'claim', ORIGIN)
        self.accepted(ctxt, 'claim', ORIGIN)
        self.now += 3600
        self.accepted(self.sign(self.key(), 'claim', ORIGIN), 'claim', ORIGIN)
        self.now -= 3600
        self.assertIn('executed before', self.refused(ctxt, 'claim', ORIGIN))

    def test_calls_that_are_too_old_are_forgotten(self):
        for _ in range(10):
            self.accepted(self.sign(self.key(), 'claim', ORIGIN), 'claim',
                          ORIGIN)
        self.now += 100
        self.passed += 100
        self.accepted(self.sign(self.key(), 'claim', ORIGIN), 'claim', ORIGIN)
        self.assertEqual(1, len(self.verifier._nonces))

    def test_change_by_an_operator_is_repeated_by_no_conductor(self):
        key = self.key(Kind.OPERATOR, 'root')
        ctxt = self.sign(key, 'change', {})
        self.accepted(ctxt, 'change', {}, Kind.OPERATOR)
        self.assertIn('it was executed before', self.refused(
            ctxt, 'change', {}, Kind.OPERATOR, self.make_verifier()))
        self.assertEqual([10 + 2 * guard.SLACK], list(self.book.used.values()))
