# SPDX-License-Identifier: Apache-2.0
"""Search for live conductors: a call to all of them, and their answers.

Nothing is registered, so nothing can be out of date: a conductor that answers
is alive. All askers share one topic, since a broker keeps a queue of each
topic and of each server's name for ever.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import time
import typing
import uuid
from collections.abc import Callable

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import version as version_mod
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import guard
from gpgpu_plugin.rpc import transport as rpc_transport

_ANSWER_VERSION = '1.0'
_Context = gpgpu_context.RequestContext
_OPERATOR = gpgpu_context.CallerKind.OPERATOR


@dataclasses.dataclass(frozen=True, kw_only=True)
class PingAnswer:
    """One live conductor.

    :ivar started_at: seconds since the epoch
    :ivar unfit: why it takes no calls; empty: it does
    """

    host: str
    pid: int
    version: str
    rpc_version: str
    started_at: float
    unfit: str = ''


class Pinged(typing.Protocol):
    """The RPC endpoint by which a conductor is found."""

    @guard.operators()
    def ping(self, ctxt: _Context, *, ping_uuid: str) -> None:
        """Cast an answer to all askers (Pinger.pong)."""


class Pinger(typing.Protocol):
    """The RPC endpoint that collects the answers of conductors."""

    def pong(self, ctxt: _Context, *, ping_uuid: str,
             answer: PingAnswer) -> None:
        """Collect the answer of one conductor to one ping."""


def ping(conf: cfg.ConfigOpts,
         transport: rpc_transport.Transport | None = None,
         wait: float = 2.0) -> tuple[PingAnswer, ...]:
    """Ask all conductors and return the answers that arrive in time.

    :param wait: seconds to listen
    :raises ConfigInvalid: calls are signed, and operators have no key here
    """
    topic = rpc_transport.pinged_topic(conf)
    signing = conductor_client.signing(conf, _OPERATOR, topic)
    transport = transport or rpc_transport.get_transport(conf)
    collector = _Collector(str(uuid.uuid4()))
    server = rpc_transport.server(
        transport, rpc_transport.ping_topic(conf), socket.gethostname(),
        [collector])
    server.start()
    try:
        conductors = rpc_transport.client(
            transport, topic, conductor_contract.VERSION)
        contract.Client(
            conductors.prepare(fanout=True), signing=signing).cast(
            Pinged.ping, gpgpu_context.admin(),
            ping_uuid=collector.ping_uuid)
        time.sleep(wait)
    finally:
        server.stop()
        server.wait()
    with collector.lock:
        return tuple(sorted(
            collector.answers, key=lambda answer: (answer.host, answer.pid)))


@contract.serve(Pinger)
class _Collector(Pinger):
    target = oslo_messaging.Target(version=_ANSWER_VERSION)

    def __init__(self, ping_uuid: str) -> None:
        self.ping_uuid = ping_uuid
        self.lock = threading.Lock()
        self.answers: list[PingAnswer] = []

    def pong(self, ctxt: _Context, *, ping_uuid: str,
             answer: PingAnswer) -> None:
        # Every asker of the cloud receives the answers to all pings.
        if ping_uuid == self.ping_uuid:
            with self.lock:
                self.answers.append(answer)


@contract.serve(Pinged)
class PingEndpoint(Pinged):
    """The endpoint by which a conductor is found.

    :param unfit: returns why it takes no calls
    """

    target = oslo_messaging.Target(version=conductor_contract.VERSION)

    def __init__(self, conf: cfg.ConfigOpts,
                 transport: rpc_transport.Transport,
                 unfit: Callable[[], str] = lambda: '') -> None:
        self._unfit = unfit
        self._askers = contract.Client(rpc_transport.client(
            transport, rpc_transport.ping_topic(conf),
            _ANSWER_VERSION).prepare(fanout=True))
        self._started_at = time.time()

    def ping(self, ctxt: _Context, *, ping_uuid: str) -> None:
        """Cast an answer to all askers (Pinger.pong)."""
        self._askers.cast(
            Pinger.pong, ctxt, ping_uuid=ping_uuid, answer=PingAnswer(
                host=socket.gethostname(), pid=os.getpid(),
                version=version_mod.VERSION,
                rpc_version=conductor_contract.VERSION,
                started_at=self._started_at, unfit=self._unfit()))
