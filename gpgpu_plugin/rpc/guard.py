# SPDX-License-Identifier: Apache-2.0
"""Check of each call to the conductor: who calls, and whether they may."""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import signature as signature_mod

_Kind = gpgpu_context.CallerKind

SIGNATURE = 'signature'
"""Field of the context on the wire."""

SLACK = 30
"""Seconds by which the clocks of a caller and a conductor may differ.

A call is refused if it is so much older than its caller waits."""

MAX_SECONDS = 3600
"""Seconds that a caller may wait at most."""


class KeyStore(typing.Protocol):
    """Keys and executed calls that all conductors share."""

    def is_valid(self, kind: str, name: str, number: int) -> bool:
        """Return whether a key was made and is not revoked."""

    def serve(self, nonce: str | None, seconds: float,
              again: exception.CallerRefused) -> None:
        """Prepare for the call that this thread executes next.

        Its first transaction notes the nonce, and raises an error if another
        call had it.

        :param nonce: None: the call may be executed again
        :param seconds: within which a copy would be executed
        :param again: the error
        """


class AnyKey:
    """Key store without a database: for pings, and on hosts.

    A ping changes nothing, so a ping signed with a revoked key is answered,
    too. A host has its own key alone.
    """

    def is_valid(self, _kind: str, _name: str, _number: int) -> bool:
        """Take the signature of any key that was made."""
        return True

    def serve(self, _nonce: str | None, _seconds: float,
              _again: exception.CallerRefused) -> None:
        """Note nothing that others could see."""


class Keys(typing.Protocol):
    """Source of keys: a master key, or a host's own key."""

    @property
    def id(self) -> str:
        """Return the ID of the master key from which they are derived."""

    def derive(self, kind: _Kind, name: str,
               number: int) -> signature_mod.CallerKey:
        """Return a key.

        :raises Invalid: there is no such key
        """


class Verifier:
    """Verifies signatures for all servers of a conductor. Thread-safe.

    :param masters: the master keys, see rpc.signature; on a host its own key
    :param clock: returns the seconds since the epoch
    :param passed: returns seconds that only grow
    """

    def __init__(self, masters: Sequence[Keys], book: KeyStore,
                 clock: Callable[[], float] = time.time,
                 passed: Callable[[], float] = time.monotonic) -> None:
        self._masters = {master.id: master for master in masters}
        self._book = book
        self._clock = clock
        self._passed = passed
        self._lock = threading.Lock()
        self._nonces: set[str] = set()
        self._forget: collections.deque[tuple[float, str]] = (
            collections.deque())

    def verify(self, ctxt: Mapping[str, object], kind: _Kind, topic: str,
               method: str, arguments: Mapping[str, object],
               ) -> tuple[signature_mod.Signature, signature_mod.CallerKey]:
        """Return the signature of a call, and the key that made it.

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
            mac = key.mac(signed, topic, method, arguments, {
                name: ctxt.get(name) for name in gpgpu_context.SENT})
        except exception.Invalid:
            raise refused(method, 'it contains what JSON has not') from None
        if not signature_mod.same(mac, signed.mac):
            raise refused(method, f'the signature of {_who(signed)} does not '
                                  f'belong to this call')
        self._check_age(signed, method, _limit(ctxt))
        if not self._book.is_valid(signed.kind, signed.name, signed.number):
            raise refused(
                method, f'key {signed.number} of {_who(signed)} was revoked, '
                        f'or the database does not know it')
        return signed, key

    def use(self, ctxt: Mapping[str, object],
            signed: signature_mod.Signature, method: str, *,
            once: bool) -> None:
        """Note that a call with this signature is executed.

        :param once: see CallerRule
        :raises CallerRefused: it was executed before
        """
        # It may come from the future.
        seconds = _limit(ctxt) + SLACK
        again = refused(
            method, f'it was executed before; a copy of the message of '
                    f'{_who(signed)} came again')
        if not self._is_first(signed.nonce, seconds):
            raise again
        self._book.serve(signed.nonce if once else None, seconds, again)

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
                        f'master key, {signed.master_id!a:.50}, than those '
                        f'here, {", ".join(sorted(self._masters))}')
        try:
            return master.derive(_Kind(signed.kind), signed.name,
                                 signed.number)
        except (ValueError, exception.Invalid):
            raise refused(method, 'its signature has an invalid kind, name '
                                  'or number') from None

    def _check_age(self, signed: signature_mod.Signature, method: str,
                   limit: float) -> None:
        age = self._clock() - signed.sent_at
        # Not a number is not within the limits either.
        if not -SLACK <= age <= limit:
            raise refused(
                method, f'{_who(signed)} sent it {age:.0f} s ago by its own '
                        f'clock, and {-SLACK} to {limit:.0f} s are accepted: '
                        f'the clocks differ, or somebody repeats its messages')

    def _is_first(self, nonce: str, seconds: float) -> bool:
        now = self._passed()
        with self._lock:
            while self._forget and self._forget[0][0] < now:
                self._nonces.discard(self._forget.popleft()[1])
            if nonce in self._nonces:
                return False
            self._nonces.add(nonce)
            # Ordered by the time of arrival, so some are kept longer.
            self._forget.append((now + seconds, nonce))
        return True


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
            name: caller_rules(method)[kind]
            for methods in map(contract.methods, contracts)
            for name, method in methods.items()
            if kind in caller_rules(method)}

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
        signed, key = self._verifier.verify(
            ctxt, self._kind, self._topic, method, arguments)
        if rule.owner is not None:
            owner = host_argument(rule, arguments)
            if owner != signed.name:
                raise refused(
                    method, f'{_who(signed)} may call it for itself only, '
                            f'not for {owner!a:.300}')
        self._verifier.use(ctxt, signed, method, once=rule.once)
        return gpgpu_context.Caller(
            kind=self._kind, name=signed.name, number=signed.number,
            answer_mac=functools.partial(
                key.mac_of_answer, signed, self._topic, method))


def _limit(ctxt: Mapping[str, object]) -> float:
    """Return the age in seconds up to which a call is executed.

    Whoever casts a message does not wait.
    """
    wanted = ctxt.get('wanted')
    return SLACK + (min(wanted, MAX_SECONDS)
                    if isinstance(wanted, float | int) else 0)


def _who(signed: signature_mod.Signature) -> str:
    return f'{signed.kind:.300} {signed.name:.300}'


def refused(method: str, reason: str) -> exception.CallerRefused:
    """Return the error with which a call is refused."""
    return exception.CallerRefused(
        method=method if method.isidentifier() else 'a method', reason=reason)


# -- Who may call which method of gpgpu-conductor.
#
# A contract declares it next to each method, with the decorators ``hosts``,
# ``schedulers`` and ``operators``. Each kind of caller has a topic and a key
# of its own (rpc.signature).


_Method = typing.TypeVar('_Method', bound=Callable[..., object])


_RULES = 'gpgpu_rules'


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallerRule:
    """Rule for the calls of a method by one kind of callers.

    :ivar owner: argument that must be the caller's name, such as ``host`` or
        ``origin.host``; None: the method needs none, or checks rows itself
    :ivar once: a second conductor must not execute the same call again
    """

    owner: str | None = None
    once: bool = False


def hosts(owner: str | None, *,
          once: bool = False) -> Callable[[_Method], _Method]:
    """Return a decorator: hosts may call the method.

    :param owner: see CallerRule
    :param once: see CallerRule; where the same call, later, changes something
        again
    """
    return _allowed(_Kind.HOST, CallerRule(owner=owner, once=once))


def conductors() -> Callable[[_Method], _Method]:
    """Return a decorator: conductors send it to a host, with the host's key.

    Host and conductor have this key, and no call of the host has this topic.
    """
    return _allowed(_Kind.HOST, CallerRule())


def schedulers() -> Callable[[_Method], _Method]:
    """Return a decorator: schedulers may call the method."""
    return _allowed(_Kind.SCHEDULER, CallerRule())


def operators(*, once: bool = False) -> Callable[[_Method], _Method]:
    """Return a decorator: operators may call the method.

    :param once: see CallerRule; for each method that changes something
    """
    return _allowed(_Kind.OPERATOR, CallerRule(once=once))


def _allowed(kind: _Kind, rule: CallerRule) -> Callable[[_Method], _Method]:
    def decorate(method: _Method) -> _Method:
        setattr(method, _RULES, {**caller_rules(method), kind: rule})
        return method
    return decorate


def caller_rules(method: Callable[..., object]) -> Mapping[_Kind, CallerRule]:
    """Return who may call a method of a contract."""
    found: Mapping[_Kind, CallerRule] = getattr(method, _RULES, {})
    return found


def host_argument(rule: CallerRule, arguments: Mapping[str, object]) -> object:
    """Return the argument that must be the caller's name.

    :param arguments: primitives, of which nothing is known yet
    :returns: None also if there is no such argument
    """
    found: object = arguments
    for name in (rule.owner or '').split('.'):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
