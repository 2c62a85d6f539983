# SPDX-License-Identifier: Apache-2.0
"""Calls of gpgpu-conductor that are duplicated, delayed or unanswered."""

from __future__ import annotations

import enum
import heapq
import logging
import pathlib
import random
import threading
import time
import uuid

import oslo_messaging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.storm import ground_truth
from tests.storm import record_file

LOG = logging.getLogger(__name__)


class MessageFault(enum.StrEnum):
    """Fault of one call; the value is its name in the report."""

    NONE = 'none'
    DUPLICATED = 'duplicated'
    REPEATED = 'repeated later'
    DELAYED = 'delayed'
    UNANSWERED = 'unanswered'
    SLOW = 'slow'


_WEIGHTS = {
    MessageFault.NONE: 90, MessageFault.DUPLICATED: 3,
    MessageFault.REPEATED: 3, MessageFault.DELAYED: 2,
    MessageFault.UNANSWERED: 2, MessageFault.SLOW: 2}

# A delayed result of a cleaning meets the next cleaning of the same GPU.
_CLEANING_WEIGHTS = {
    **_WEIGHTS, MessageFault.REPEATED: 10, MessageFault.DELAYED: 15}

_DELAY = 1.0
"""Mean delay of a delayed message in seconds."""


class DelayedMessages:
    """Messages of one host that are still to be sent.

    They are stored in a file, and are sent although their sender was killed.

    :param folder: folder of the host
    :param client: client that sends them; nobody waits for an answer
    """

    def __init__(self, folder: pathlib.Path, client: rpc_transport.RPCClient,
                 rng: random.Random, truth: ground_truth.GroundTruth) -> None:
        self._file = record_file.RecordFile(folder / 'messages')
        self._client = client
        self._rng = rng
        self._truth = truth
        self._changed = threading.Condition()
        self._due: list[tuple[float, str, str, dict[str, object]]] = []
        self.faults_ended = False
        self._load()
        threading.Thread(target=self._send_late, daemon=True).start()

    def _load(self) -> None:
        waiting: dict[str, tuple[str, dict[str, object]]] = {}
        for number, method, arguments in self._file.read():
            if method is None:
                waiting.pop(number, None)
            else:
                waiting[number] = method, arguments
        for number, (method, arguments) in waiting.items():
            heapq.heappush(
                self._due, (self._when(), number, method, arguments))

    def _when(self) -> float:
        return time.monotonic() + self._rng.expovariate(1 / _DELAY)

    def draw_fault(self, method: str) -> MessageFault:
        """Return the fault of the next call of a method."""
        if self.faults_ended:
            return MessageFault.NONE
        weights = (
            _CLEANING_WEIGHTS if method == 'clean_finished' else _WEIGHTS)
        [fault] = self._rng.choices(
            list(weights), weights=list(weights.values()))
        if fault is not MessageFault.NONE:
            self._truth.count(fault)
        return fault

    def send_later(self, method: str, arguments: dict[str, object]) -> None:
        """Store a message and send it after a delay."""
        number = str(uuid.uuid4())
        with self._changed:
            self._file.append(number, method, arguments)
            heapq.heappush(
                self._due, (self._when(), number, method, arguments))
            self._changed.notify()

    def _send_late(self) -> None:
        while True:
            with self._changed:
                while not self._due or (
                        not self.faults_ended
                        and self._due[0][0] > time.monotonic()):
                    self._changed.wait(
                        self._due[0][0] - time.monotonic() if self._due
                        else None)
                _, number, method, arguments = self._due[0]
            try:
                self._client.cast(
                    gpgpu_context.admin(), method, **arguments)
            except Exception:
                # The broker does not answer. Not each error of a connection
                # that is cut becomes one of oslo.messaging, and ``flush``
                # would wait for ever for a thread that has ended.
                LOG.exception('%s is sent again', method)
                time.sleep(0.1)
                continue
            with self._changed:
                self._due = [item for item in self._due if item[1] != number]
                heapq.heapify(self._due)
                self._file.append(number, None, {})
                self._changed.notify_all()

    def flush(self) -> None:
        """Send all messages now, and inject no fault any more."""
        with self._changed:
            self.faults_ended = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._due)


class UnreliableClient:
    """RPC client whose calls are subject to faults."""

    def __init__(self, client: rpc_transport.RPCClient,
                 messages: DelayedMessages, rng: random.Random) -> None:
        self._client = client
        self._messages = messages
        self._rng = rng

    def prepare(self, **properties: object) -> UnreliableClient:
        """Return a client with other properties for its calls."""
        return UnreliableClient(
            self._client.prepare(**properties),
            self._messages, self._rng)

    def cast(self, ctxt: gpgpu_context.RequestContext, method: str,
             **arguments: object) -> None:
        """Call a method without waiting."""
        self._client.cast(ctxt, method, **arguments)

    def call(self, ctxt: gpgpu_context.RequestContext, method: str,
             **arguments: object) -> object:
        """Call a method.

        :raises oslo_messaging.MessagingTimeout: no answer came
        """
        fault = self._messages.draw_fault(method)
        if fault is MessageFault.DELAYED:
            self._messages.send_later(method, arguments)
            raise oslo_messaging.MessagingTimeout('the call is delayed')
        if fault is MessageFault.REPEATED:
            self._messages.send_later(method, arguments)
        if fault is MessageFault.DUPLICATED:
            # Another conductor receives it at the same time.
            self._client.cast(ctxt, method, **arguments)
        if fault is MessageFault.SLOW:
            time.sleep(self._rng.uniform(0, 1))
        answer = self._client.call(ctxt, method, **arguments)
        if fault is MessageFault.UNANSWERED:
            raise oslo_messaging.MessagingTimeout('the answer was lost')
        return answer
