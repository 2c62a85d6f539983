# SPDX-License-Identifier: Apache-2.0
"""Keys of callers, and the signature that each call carries.

All keys are derived from a master key, which only conductors have::

    key = HMAC-SHA256(master key, kind, name and number of the caller's key)

so that a conductor stores no caller's key, and a database that somebody read
signs nothing. The signature is the HMAC-SHA256 of one text under the caller's
key: the topic, the method, its arguments, the fields of the context, the time
and a nonce. An answer has a MAC under the same key, of itself and of the
call's signature. The receiver makes the text of what it received, and two
values never have the same. A compute host can therefore speak for itself
alone, and nobody can answer its calls, whatever can be sent to the message
broker.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import hmac
import json
import re
import secrets
import time
import typing
from collections.abc import Mapping

import msgspec

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception

_Kind = gpgpu_context.CallerKind

KEY_BYTES = 32
"""Length of all keys."""

_NONCE_BYTES = 16

_SCHEME = 'gpgpu-call-2'
_CALLER_PREFIX = 'gpgpu-caller-1'
_MASTER_PREFIX = 'gpgpu-master-1'

_NONCE = re.compile(rf'[0-9a-f]{{{2 * _NONCE_BYTES}}}')

_NAME = re.compile(r'[!-.0-9;-~]{1,255}')
"""Printable ASCII without space, slash and colon: a key's file may have the
name of its caller, and colons separate the fields of a key's text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MasterKey:
    """Key from which those of all callers are derived.

    :ivar secret: KEY_BYTES random bytes
    """

    secret: bytes = dataclasses.field(repr=False)

    @property
    def id(self) -> str:
        """Return the ID of this master key."""
        return hashlib.sha256(self.secret).hexdigest()[:16]

    def derive(self, kind: _Kind, name: str, number: int) -> CallerKey:
        """Return a key of a caller.

        :raises Invalid: the name cannot be written into a key file
        """
        check_name(name)
        return CallerKey(
            kind=kind, name=name, number=number, master_id=self.id,
            secret=hmac.digest(self.secret, msgspec.json.encode(
                [_CALLER_PREFIX, kind, name, number]), 'sha256'))

    def to_text(self) -> str:
        """Return the line of a master key file."""
        return f'{_MASTER_PREFIX}:{_base64(self.secret)}'


def check_name(name: str) -> None:
    """Refuse a name of a caller that a key cannot have.

    :raises Invalid: it cannot be written into a key file, or be its name
    """
    if not _NAME.fullmatch(name):
        raise exception.Invalid(
            field='name', value=name,
            expected='1 to 255 printable ASCII characters without space, '
                     'slash and colon')


def new_master() -> MasterKey:
    """Return a new master key."""
    return MasterKey(secret=secrets.token_bytes(KEY_BYTES))


def parse_master(text: str) -> MasterKey:
    """Return the key of a line of a master key file.

    :raises Invalid: the text is no master key; the message does not contain
        it
    """
    prefix, _, secret = text.strip().partition(':')
    if prefix != _MASTER_PREFIX:
        raise _not_a_key('master')
    return MasterKey(secret=_secret(secret, 'master'))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallerKey:
    """Key of one caller.

    :ivar number: tells it from other keys of the same caller
    :ivar master_id: of the master key that it was derived from
    """

    kind: _Kind
    name: str
    number: int
    master_id: str
    secret: bytes = dataclasses.field(repr=False)

    def to_text(self) -> str:
        """Return the line of a key file."""
        return ':'.join((_CALLER_PREFIX, self.kind, self.name,
                         str(self.number), self.master_id,
                         _base64(self.secret)))

    @property
    def id(self) -> str:
        """Return the ID of the master key."""
        return self.master_id

    def derive(self, kind: _Kind, name: str, number: int) -> CallerKey:
        """Return this key.

        :raises Invalid: another one is asked for
        """
        if (kind, name, number) != (self.kind, self.name, self.number):
            raise exception.Invalid(
                field='key', value=number,
                expected=f'{self.number} of {self.kind} {self.name}')
        return self

    def sign(self, topic: str, method: str, arguments: Mapping[str, object],
             context: Mapping[str, object]) -> Signature:
        """Return the signature of a call that is sent now.

        :param arguments: primitives
        :param context: fields of the context, context.SENT
        :raises Invalid: they have a number that is not finite
        """
        unsigned = Signature(
            kind=self.kind, name=self.name, number=self.number,
            master_id=self.master_id, sent_at=time.time(),
            nonce=secrets.token_hex(_NONCE_BYTES))
        return dataclasses.replace(unsigned, mac=self.mac(
            unsigned, topic, method, arguments, context))

    def mac(self, signature: Signature, topic: str, method: str,
            arguments: Mapping[str, object],
            context: Mapping[str, object]) -> str:
        """Return the ``mac`` that a signature must have.

        :raises Invalid: no JSON has such a value
        """
        return hmac.digest(self.secret, _text([
            _SCHEME, topic, method, arguments, context, signature.kind,
            signature.name, signature.number, signature.master_id,
            signature.sent_at, signature.nonce]), 'sha256').hex()

    def mac_of_answer(self, signature: Signature, topic: str, method: str,
                      text: str) -> str:
        """Return the MAC that the answer to a signed call must have.

        No call has it: the topic is none to which calls are sent.
        """
        return self.mac(signature, f'{topic}-answer', method,
                        {'call': signature.mac, 'text': text}, {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signature:
    """Signature of a call, which its context carries.

    :ivar sent_at: seconds since the epoch, by the caller's clock
    :ivar nonce: 128 random bits, so that no two calls are equal
    :ivar mac: HMAC in hex
    """

    kind: str
    name: str
    number: int
    master_id: str
    sent_at: float
    nonce: str
    mac: str = ''


def _text(call: object) -> bytes:
    """Return the one text of a call.

    msgspec writes null for NaN and infinity.

    :raises Invalid: no JSON has such a value
    """
    try:
        return json.dumps(call, allow_nan=False, sort_keys=True,
                          separators=(',', ':')).encode()
    except (ValueError, RecursionError) as exc:
        raise exception.Invalid(
            field='call', value='(not shown)', expected=str(exc)) from None


def is_nonce(text: str) -> bool:
    """Return whether a text has the form of a nonce.

    Nonces are stored, so they must not be longer.
    """
    return _NONCE.fullmatch(text) is not None


def parse_caller(text: str) -> CallerKey:
    """Return the key of a key file.

    :raises Invalid: the text is no caller's key; the message does not
        contain it
    """
    try:
        prefix, kind, name, number, master_id, secret = (
            text.strip().split(':'))
        if prefix != _CALLER_PREFIX or not _NAME.fullmatch(name):
            raise ValueError
        return CallerKey(
            kind=_Kind(kind), name=name, number=int(number),
            master_id=master_id, secret=_secret(secret, 'caller'))
    except ValueError:
        raise _not_a_key('caller') from None


def _base64(secret: bytes) -> str:
    return base64.urlsafe_b64encode(secret).decode('ascii')


def _secret(text: str, kind: str) -> bytes:
    try:
        secret = base64.b64decode(text, altchars=b'-_', validate=True)
    except (binascii.Error, ValueError):
        raise _not_a_key(kind) from None
    if len(secret) != KEY_BYTES:
        raise _not_a_key(kind)
    return secret


def _not_a_key(kind: str) -> exception.Invalid:
    # Never the text: half of a key is a secret as well.
    return exception.Invalid(
        field='content', value='(not shown)',
        expected=f'a {kind} key as "gpgpu-manage key" writes it')


def same(first: str, second: object) -> bool:
    """Compare a MAC with what a caller sent, in constant time."""
    return isinstance(second, str) and hmac.compare_digest(
        first.encode(), second.encode('utf-8', 'replace'))


class Signer(typing.Protocol):
    """Signer of the calls of a client."""

    def sign(self, topic: str, method: str, arguments: Mapping[str, object],
             context: Mapping[str, object]) -> Signature:
        """Return the signature of a call (CallerKey.sign)."""

    def mac_of_answer(self, signature: Signature, topic: str, method: str,
                      text: str) -> str:
        """Return the MAC of its answer (CallerKey.mac_of_answer)."""
