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
"""Messages to gpgpu-conductor that are repeated, late, slow or unanswered."""

from __future__ import annotations

import enum
import heapq
import json
import pathlib
import random
import threading
import time
import uuid

import oslo_messaging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.storm import truth as truth_mod


class Fate(enum.StrEnum):
    """Fate of one call; the value is its name in the report."""

    USUAL = 'usual'
    TWICE = 'twice'
    REPEATED = 'repeated later'
    LATE = 'late'
    UNANSWERED = 'unanswered'
    SLOW = 'slow'


_WEIGHTS = {Fate.USUAL: 90, Fate.TWICE: 3, Fate.REPEATED: 3, Fate.LATE: 2,
            Fate.UNANSWERED: 2, Fate.SLOW: 2}

# A verdict that is late meets the next cleaning of the same GPU.
_OF_CLEANING = {**_WEIGHTS, Fate.REPEATED: 10, Fate.LATE: 15}

_DELAY = 1.0
"""Seconds, on average, after which a late message is sent."""


class Mail:
    """Messages of one host that are still on their way.

    They are in a file, and are delivered although their sender was killed.

    :param folder: of the host
    :param client: delivers them; nobody waits for an answer
    """

    def __init__(self, folder: pathlib.Path, client: rpc_transport.RPCClient,
                 rng: random.Random, truth: truth_mod.Truth) -> None:
        self._path = folder / 'mail'
        self._client = client
        self._rng = rng
        self._truth = truth
        self._changed = threading.Condition()
        self._due: list[tuple[float, str, str, dict[str, object]]] = []
        self.is_calm = False
        self._load()
        threading.Thread(target=self._send_late, daemon=True).start()

    def _load(self) -> None:
        waiting: dict[str, tuple[str, dict[str, object]]] = {}
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                number, method, arguments = json.loads(line)
                if method is None:
                    waiting.pop(number, None)
                else:
                    waiting[number] = method, arguments
        for number, (method, arguments) in waiting.items():
            heapq.heappush(
                self._due, (self._when(), number, method, arguments))

    def _when(self) -> float:
        return time.monotonic() + self._rng.expovariate(1 / _DELAY)

    def fate(self, method: str) -> Fate:
        """Return the fate of the next call of a method."""
        if self.is_calm:
            return Fate.USUAL
        weights = _OF_CLEANING if method == 'clean_finished' else _WEIGHTS
        [fate] = self._rng.choices(
            list(weights), weights=list(weights.values()))
        if fate is not Fate.USUAL:
            self._truth.count(fate)
        return fate

    def send_later(self, method: str, arguments: dict[str, object]) -> None:
        """Send a message after the sender has given up, or got its answer."""
        number = str(uuid.uuid4())
        self._note(number, method, arguments)
        with self._changed:
            heapq.heappush(
                self._due, (self._when(), number, method, arguments))
            self._changed.notify()

    def _note(self, number: str, method: str | None,
              arguments: dict[str, object]) -> None:
        with self._path.open('a', encoding='utf-8') as file:
            file.write(f'{json.dumps((number, method, arguments))}\n')

    def _send_late(self) -> None:
        while True:
            with self._changed:
                while not self._due or (
                        not self.is_calm
                        and self._due[0][0] > time.monotonic()):
                    self._changed.wait(
                        self._due[0][0] - time.monotonic() if self._due
                        else None)
                _, number, method, arguments = self._due[0]
            try:
                self._client.cast(
                    gpgpu_context.admin(), method, **arguments)
            except oslo_messaging.MessagingException:
                # The broker is away.
                time.sleep(0.1)
                continue
            with self._changed:
                self._due = [item for item in self._due if item[1] != number]
                heapq.heapify(self._due)
                self._note(number, None, {})
                self._changed.notify_all()

    def flush(self) -> None:
        """Send all now, and let all further calls pass as usual."""
        with self._changed:
            self.is_calm = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._due)


class UnreliableClient:
    """RPC client whose calls meet their fate."""

    def __init__(self, client: rpc_transport.RPCClient, mail: Mail,
                 rng: random.Random) -> None:
        self._client = client
        self._mail = mail
        self._rng = rng

    def prepare(self, **properties: object) -> UnreliableClient:
        """Return a client with other properties for its calls."""
        return UnreliableClient(
            self._client.prepare(**properties),
            self._mail, self._rng)

    def cast(self, ctxt: gpgpu_context.RequestContext, method: str,
             **arguments: object) -> None:
        """Call a method without waiting."""
        self._client.cast(ctxt, method, **arguments)

    def call(self, ctxt: gpgpu_context.RequestContext, method: str,
             **arguments: object) -> object:
        """Call a method.

        :raises oslo_messaging.MessagingTimeout: no answer came
        """
        fate = self._mail.fate(method)
        if fate is Fate.LATE:
            self._mail.send_later(method, arguments)
            raise oslo_messaging.MessagingTimeout('it is late')
        if fate is Fate.REPEATED:
            self._mail.send_later(method, arguments)
        if fate is Fate.TWICE:
            # Another conductor gets it at the same time.
            self._client.cast(ctxt, method, **arguments)
        if fate is Fate.SLOW:
            time.sleep(self._rng.uniform(0, 1))
        answer = self._client.call(ctxt, method, **arguments)
        if fate is Fate.UNANSWERED:
            raise oslo_messaging.MessagingTimeout('its answer was lost')
        return answer
