# SPDX-License-Identifier: Apache-2.0
"""RPC API that nova-compute serves for its host: contract and client.

``compute.service`` implements the contract. All methods are casts, signed with
the host's key. The answer to a question is a message to the conductors,
Conductor.answer: the host's user of the broker needs
no permission to write to the exchange of replies (``amq.default``), by which
it could put messages into any queue.
"""

from __future__ import annotations

import time
import typing
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import guard
from gpgpu_plugin.rpc import signature
from gpgpu_plugin.rpc import transport as rpc_transport

VERSION = '2.0'

USAGE_TIMEOUT = 10
"""Seconds within which a nova-compute must say which assignments are used."""

# Seconds. A nova-compute that does not answer in this time counts as not
# running: long enough for a busy one, short for an operator who waits.
PING_TIMEOUT = 5

EXAMINE_TIMEOUT = 20
"""Seconds within which a nova-compute must say what it found."""

REPAIR_TIMEOUT = 60
"""Seconds within which a nova-compute must say what it repaired."""

_Context = gpgpu_context.RequestContext


class Compute(typing.Protocol):
    """Methods that one host's nova-compute serves."""

    @guard.conductors()
    def refresh(self, ctxt: _Context) -> None:
        """Fetch the inventory, update Placement and clean dirty devices.

        The conductor casts it after a change that concerns the host.
        """

    @guard.conductors()
    def assignments_changed(self, ctxt: _Context) -> None:
        """Fetch the host's assignments, then do what ``refresh`` does.

        The conductor casts it after it changed assignments for another host,
        for example when the source of a migration confirms it.
        """

    @guard.conductors()
    def ask(self, ctxt: _Context, *, question: str, asked_at: float,
            assignments: Sequence[claim_obj.Assignment]) -> None:
        """Answer whether the host's instances use their assignments.

        Any answer also shows that the host's nova-compute runs. A question
        that has waited in the host's queue while it was down is dropped.

        :param question: UUID of this question
        :param asked_at: seconds since the epoch
        :param assignments: all that each of these instances has on the host;
            may be empty
        """

    @guard.conductors()
    def examine(self, ctxt: _Context, *, question: str, asked_at: float,
                repairs: Sequence[drift.Repair]) -> None:
        """Answer with the drifts of this host, after some repairs.

        :param question: as for ``ask``
        :param asked_at: as for ``ask``
        :param repairs: some of drift.OF_HOST
        """


class _Guard(guard.Guard):
    """Guard of a host, whose messages are signed with its own key."""

    def check(self, ctxt: Mapping[str, object], method: str,
              arguments: Mapping[str, object]) -> gpgpu_context.Caller | None:
        """Return whose key signed a message; None: they are not signed.

        :raises MessageRefused: it is not signed for this host, or too old
        """
        try:
            return super().check(ctxt, method, arguments)
        except exception.CallerRefused as exc:
            raise exception.MessageRefused(
                None, **exc.kwargs) from None


def guard_of(conf: cfg.ConfigOpts, host: str) -> guard.Guard:
    """Return the check of messages to a host.

    :raises ConfigInvalid: messages are signed, and the host has no key
    """
    kind = gpgpu_context.CallerKind.HOST
    return _Guard(
        (Compute,), kind, rpc_transport.compute_topic(conf),
        guard.Verifier([signature.read_caller_key(conf, kind, host)],
                       guard.AnyKey())
        if signature.is_required(conf) else None)


class ComputeAPI:
    """Messages to the nova-compute of a host.

    :param key_of: returns the key of a host's nova-compute, with which it
        verifies messages; None: they are not signed
    """

    def __init__(self, conf: cfg.ConfigOpts,
                 transport: rpc_transport.Transport | None = None,
                 key_of: Callable[[str], signature.CallerKey | None] = (
                     lambda host: None)) -> None:
        self._conf = conf
        self._key_of = key_of
        self._transport = transport or rpc_transport.get_transport(conf)
        self._client = rpc_transport.client(
            self._transport, rpc_transport.compute_topic(conf), VERSION)

    def _host(self, host: str) -> contract.Client:
        key = self._key_of(host)
        return contract.Client(
            self._client.prepare(server=host),
            signing=None if key is None else contract.Signing(
                signer=key, topic=rpc_transport.compute_topic(self._conf)))

    def refresh(self, ctxt: _Context, host: str) -> None:
        """Notify a host that its data in the conductor changed; do not wait.

        See Compute.refresh.
        """
        self._host(host).cast(Compute.refresh, ctxt)

    def assignments_changed(self, ctxt: _Context, host: str) -> None:
        """Notify a host that its assignments changed; do not wait.

        See Compute.assignments_changed.
        """
        self._host(host).cast(Compute.assignments_changed, ctxt)

    def ask(self, ctxt: _Context, host: str, question: str,
            assignments: Sequence[claim_obj.Assignment]) -> None:
        """Send a question to a host; do not wait for the answer.

        See Compute.ask. The caller probes the broker.
        """
        self._host(host).cast(
            Compute.ask, ctxt, question=question, asked_at=time.time(),
            assignments=assignments)

    def examine(self, ctxt: _Context, host: str, question: str,
                repairs: Sequence[drift.Repair]) -> None:
        """Send a question about drifts; do not wait for the answer.

        See Compute.examine. The caller probes the broker.
        """
        self._host(host).cast(
            Compute.examine, ctxt, question=question, asked_at=time.time(),
            repairs=repairs)

    def probe(self) -> None:
        """Check that the broker takes messages.

        :raises BrokerUnavailable: it does not
        """
        rpc_transport.probe(self._conf, self._transport)
