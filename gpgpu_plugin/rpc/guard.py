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
"""Check of each call to gpgpu-conductor before it reaches an endpoint."""

from __future__ import annotations

import collections
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import caller as caller_mod
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import signature as signature_mod

_Kind = gpgpu_context.CallerKind

SIGNATURE = 'signature'
"""Field of the context on the wire."""

WINDOW = 120
"""Seconds by which the clocks of a caller and a conductor, and the time on the
way, may differ. The nonces of older calls need not be kept."""


class Book(typing.Protocol):
    """Keys and executed calls that all conductors share."""

    def is_valid(self, kind: str, name: str, number: int) -> bool:
        """Return whether a key was made and is not revoked."""

    def use(self, nonce: str, until: float) -> bool:
        """Note that a call is executed; return False if it was before.

        :param until: seconds since the epoch after which no conductor
            executes it any more
        """


class Verifier:
    """Verifies signatures for all servers of a conductor. Thread-safe.

    :param masters: the master keys, see rpc.signature
    :param clock: returns the seconds since the epoch
    """

    def __init__(self, masters: Sequence[signature_mod.MasterKey], book: Book,
                 clock: Callable[[], float] = time.time) -> None:
        self._masters = {master.id: master for master in masters}
        self._book = book
        self._clock = clock
        self._lock = threading.Lock()
        self._nonces: set[str] = set()
        self._forget: collections.deque[tuple[float, str]] = (
            collections.deque())

    def verify(self, ctxt: Mapping[str, object], kind: _Kind, topic: str,
               method: str, arguments: Mapping[str, object],
               ) -> signature_mod.Signature:
        """Return the signature of a call, whose fields its signer wrote.

        :param ctxt: context as it was received
        :param kind: whose key it must be
        :raises CallerRefused: the signature is missing, wrong, too old,
            repeated or revoked
        """
        signed = self._signature(ctxt, method)
        if signed.kind != kind:
            raise refused(method, f'{_who(signed)} is no {kind}')
        key = self._key(signed, method)
        try:
            mac = key.mac(signed, topic, method, arguments,
                          typing.cast('float | None', ctxt.get('wanted')))
        except UnicodeEncodeError:
            raise refused(
                method, 'its arguments contain invalid Unicode') from None
        if not signature_mod.same(mac, signed.mac):
            raise refused(method, f'the signature of {_who(signed)} does not '
                                  f'belong to this call')
        self._check_age(signed, method)
        if not self._book.is_valid(signed.kind, signed.name, signed.number):
            raise refused(
                method, f'key {signed.number} of {_who(signed)} was revoked, '
                        f'or the database does not know it')
        return signed

    def use(self, signed: signature_mod.Signature, method: str, *,
            once: bool) -> None:
        """Note that a call with this signature is executed.

        :param once: see caller.Rule
        :raises CallerRefused: it was executed before
        """
        if not self._first(signed, once=once):
            raise refused(
                method, f'it was executed before; a copy of the message of '
                        f'{_who(signed)} came again')

    def _signature(self, ctxt: Mapping[str, object],
                   method: str) -> signature_mod.Signature:
        found = ctxt.get(SIGNATURE)
        if found is None:
            raise refused(
                method, 'it is not signed; remove [gpgpu] sign_calls = false '
                        'from the configuration of the caller, and restart '
                        'it')
        try:
            signed = codec.received(signature_mod.Signature, found)
        except exception.Invalid:
            raise refused(method, 'its signature is malformed') from None
        if not signature_mod.is_nonce(signed.nonce):
            raise refused(method, 'its signature is malformed')
        return signed

    def _key(self, signed: signature_mod.Signature,
             method: str) -> signature_mod.CallerKey:
        master = self._masters.get(signed.master_id)
        if master is None:
            raise refused(
                method, f'the key of {_who(signed)} is derived from another '
                        f'master key, {signed.master_id!a:.50}, than those of '
                        f'this gpgpu-conductor, '
                        f'{", ".join(sorted(self._masters))}')
        try:
            return master.derive(_Kind(signed.kind), signed.name,
                                 signed.number)
        except (ValueError, exception.Invalid):
            raise refused(method, 'its signature has an invalid kind or '
                                  'name') from None

    def _check_age(self, signed: signature_mod.Signature,
                   method: str) -> None:
        age = self._clock() - signed.sent_at
        # Not a number is not within the window either.
        if not abs(age) <= WINDOW:
            raise refused(
                method, f'{_who(signed)} sent it {age:.0f} s ago by its own '
                        f'clock, and at most {WINDOW} s are accepted: the '
                        f'clocks differ, or somebody repeats its messages')

    def _first(self, signed: signature_mod.Signature, *, once: bool) -> bool:
        until = signed.sent_at + WINDOW
        with self._lock:
            while self._forget and self._forget[0][0] < self._clock():
                self._nonces.discard(self._forget.popleft()[1])
            if signed.nonce in self._nonces:
                return False
            self._nonces.add(signed.nonce)
            # Ordered by the time of arrival, so some are kept a little longer.
            self._forget.append((self._clock() + 2 * WINDOW, signed.nonce))
        return not once or self._book.use(signed.nonce, until)


class Guard:
    """Check of the calls that one kind of callers sends to its topic.

    :param contracts: whose methods the server has
    :param verifier: None: nothing is signed, since nobody else can send
    """

    def __init__(self, contracts: Sequence[type[object]],
                 kind: _Kind, topic: str,
                 verifier: Verifier | None) -> None:
        self._kind = kind
        self._topic = topic
        self._verifier = verifier
        self._rules = {
            name: caller_mod.rules(method)[kind]
            for methods in map(contract.methods, contracts)
            for name, method in methods.items()
            if kind in caller_mod.rules(method)}

    def check(self, ctxt: Mapping[str, object], method: str,
              arguments: Mapping[str, object]) -> gpgpu_context.Caller | None:
        """Return who calls; None if calls are not signed.

        :param ctxt: context as it was received
        :param arguments: primitives
        :raises CallerRefused: the caller must not call the method so
        """
        rule = self._rules.get(method)
        if rule is None:
            raise refused(str(method), f'a {self._kind} may not call it')
        if self._verifier is None:
            return None
        signed = self._verifier.verify(
            ctxt, self._kind, self._topic, method, arguments)
        if rule.owner is not None:
            owner = caller_mod.owner(rule, arguments)
            if owner != signed.name:
                raise refused(
                    method, f'{_who(signed)} may call it for itself only, '
                            f'not for {owner!a:.300}')
        self._verifier.use(signed, method, once=rule.once)
        return gpgpu_context.Caller(kind=self._kind, name=signed.name)


def _who(signed: signature_mod.Signature) -> str:
    return f'{signed.kind:.300} {signed.name:.300}'


def refused(method: str, reason: str) -> exception.CallerRefused:
    """Return the error with which a call is refused."""
    return exception.CallerRefused(
        method=method if method.isidentifier() else 'a method', reason=reason)
