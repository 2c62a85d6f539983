# SPDX-License-Identifier: Apache-2.0
"""Tests of keys and signatures."""

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.rpc import signature

Kind = context.CallerKind
MASTER = signature.MasterKey(secret=bytes(range(32)))
KEY = MASTER.derive(Kind.HOST, 'h1', 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2**53, 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=['Cs'])),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.text(st.characters(exclude_categories=['Cs'])), inner),
    max_leaves=10)


class KeyTest(base.BaseTestCase):

    def test_keys_of_callers_and_masters_differ(self):
        other = signature.new_master()
        keys = [MASTER.derive(Kind.HOST, 'h1', 1),
                MASTER.derive(Kind.HOST, 'h1', 2),
                MASTER.derive(Kind.HOST, 'h2', 1),
                MASTER.derive(Kind.OPERATOR, 'h1', 1),
                other.derive(Kind.HOST, 'h1', 1)]
        self.assertEqual(len(keys), len({key.secret for key in keys}))
        self.assertNotEqual(MASTER.id, other.id)

    def test_key_is_derived_again_the_same(self):
        self.assertEqual(KEY, MASTER.derive(Kind.HOST, 'h1', 1))
        # Changing how keys are derived would refuse all that exist.
        self.assertEqual(
            '34c1cada', KEY.secret.hex()[:8])

    def test_key_survives_its_text(self):
        self.assertEqual(KEY, signature.parse_caller(KEY.to_text() + '\n'))
        self.assertEqual(MASTER, signature.parse_master(MASTER.to_text()))

    def test_text_that_is_no_key_is_refused_without_its_content(self):
        half = KEY.to_text()[:-20]
        for text in ('', 'x', half, KEY.to_text().replace('host', 'guest'),
                     KEY.to_text().replace(':1:', ':one:'),
                     MASTER.to_text(), KEY.to_text() + '!'):
            exc = self.assertRaises(
                exception.Invalid, signature.parse_caller, text)
            self.assertIn('gpgpu-manage key', str(exc))
            self.assertNotIn(half[-10:], str(exc))
        for text in ('', KEY.to_text(), MASTER.to_text()[:-8],
                     MASTER.to_text() + 'é'):
            self.assertRaises(
                exception.Invalid, signature.parse_master, text)

    def test_secret_is_not_shown(self):
        for key in (KEY, MASTER):
            self.assertNotIn('secret', repr(key))

    def test_name_with_a_separator_is_refused(self):
        for name in ('', 'a:b', 'a b', 'a\nb', 'é', 'x' * 256):
            self.assertRaises(exception.Invalid, MASTER.derive, Kind.HOST,
                              name, 1)


SENT = {**dict.fromkeys(context.SENT), 'wanted': 10, 'actor': 'a'}


class SignatureTest(base.BaseTestCase):

    def mac(self, signed, topic='t', method='claim', arguments=None,
            **sent):
        return KEY.mac(signed, topic, method, arguments or {'a': 1},
                       {**SENT, **sent})

    def test_all_that_counts_is_signed(self):
        signed = KEY.sign('t', 'claim', {'a': 1}, SENT)
        self.assertEqual(signed.mac, self.mac(signed))
        macs = [signed.mac,
                self.mac(signed, topic='u'), self.mac(signed, method='abort'),
                self.mac(signed, arguments={'a': 2}),
                self.mac(signed, wanted=11), self.mac(signed, wanted=None),
                self.mac(signed, actor='b'), self.mac(signed, request_id='r'),
                self.mac(signed, global_request_id='r')]
        for field in ('kind', 'name', 'number', 'master_id', 'sent_at',
                      'nonce'):
            macs.append(self.mac(dataclasses.replace(
                signed, **{field: 'x'})))
        self.assertEqual(len(macs), len(set(macs)))

    def test_two_calls_never_have_the_same_signature(self):
        self.assertNotEqual(KEY.sign('t', 'claim', {}, SENT).mac,
                            KEY.sign('t', 'claim', {}, SENT).mac)

    @given(st.dictionaries(st.text(st.characters(
        exclude_categories=['Cs'])), JSON))
    def test_signature_survives_the_way_over_json(self, arguments):
        signed = KEY.sign('t', 'claim', arguments, SENT)
        received = json.loads(json.dumps(arguments))
        # Whatever the order in which a peer writes the fields.
        received = dict(reversed(received.items()))
        self.assertEqual(
            signed.mac, KEY.mac(signed, 't', 'claim', received, SENT))

    def test_only_an_equal_text_is_the_same(self):
        self.assertTrue(signature.same('ab', 'ab'))
        for other in ('abc', 'a', '', 'é', None, 7, '\ud800'):
            self.assertFalse(signature.same('ab', other))
