# SPDX-License-Identifier: Apache-2.0
"""Limit of how far a server reads ahead of its threads.

oslo.messaging acknowledges a call when it reads it from the broker
(RpcAMQPListener), so the prefetch count limits only what was not read yet. A
server whose threads all hang would go on to take its share of the calls,
although other servers could handle them. Therefore the thread that reads waits
while too many calls wait for a thread.

A server that still handles calls quickly is busy, but does not hang. It parks
calls that wait for others of their kind, so that those behind them that wait
for nothing get the threads left for them.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable

LONGEST = 1.0
"""Seconds that the thread that reads waits at once.

It also answers the heartbeats of the broker, but only when it reads.
"""

PARKED = 25
"""Calls per thread that may wait for a thread elsewhere (``waiting``) before a
server that does not hang stops reading."""

_IDLE = 1.0
"""Seconds without a message, after which none can wait to be read."""


class Throttle:
    """The calls that were read and wait for a thread.

    :param limit: how many there may be before the thread that reads waits
    :param ahead: how many messages the broker sends before the first of them
        is read; None: no limit; the last ``limit`` waits are then added up
    :param waiting: returns how many calls wait for a thread elsewhere
    """

    def __init__(self, limit: int, ahead: int | None,
                 waiting: Callable[[], int]) -> None:
        self._limit = limit
        self._waiting = waiting
        self._changed = threading.Condition()
        self._queued = 0
        self._off = False
        self._quick_at = float('-inf')
        self._waits: collections.deque[float] = collections.deque(
            maxlen=ahead if ahead is not None else limit)
        self._reading_since = time.monotonic()

    def receive(self) -> float:
        """Count a call that was read and waits for a thread.

        :returns: seconds that it may have waited to be read
        """
        with self._changed:
            self._queued += 1
            if time.monotonic() - self._reading_since > _IDLE:
                self._waits.clear()
            return sum(self._waits)

    def begin(self) -> None:
        """Note that a call got its thread."""
        with self._changed:
            self._queued -= 1
            self._changed.notify_all()

    def handled(self, seconds: float) -> None:
        """Note how long it took to handle a call."""
        with self._changed:
            if seconds < LONGEST:
                self._quick_at = time.monotonic()
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait while too many calls wait for a thread, at most LONGEST."""
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(self._may_read, LONGEST)
            self._reading_since = time.monotonic()
            # Longer if the process was stopped, which rpc.pause tells.
            self._waits.append(min(self._reading_since - began, LONGEST))

    def _may_read(self) -> bool:
        is_quick = time.monotonic() - self._quick_at < LONGEST
        waiting = self._waiting()
        return (self._off
                or self._queued + waiting < self._limit
                or (is_quick and self._queued < self._limit
                    and waiting < PARKED * self._limit))

    def turn_off(self) -> None:
        """Never wait again, as the server stops."""
        with self._changed:
            self._off = True
            self._changed.notify_all()
