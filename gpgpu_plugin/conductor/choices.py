# SPDX-License-Identifier: Apache-2.0
"""Hosts that schedulers chose a moment ago, for the other schedulers.

They are kept in memory. Schedulers send each choice to all conductors, so that
each conductor can answer without the database or the other conductors. A
conductor that has just started lacks some, which costs at most a denied claim.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable

from gpgpu_plugin.objects import scheduling

_MOST = 2000


class Choices:
    """Choices of the last minute, the newest ones only. Thread-safe.

    :param clock: seconds of a clock that never goes back
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: collections.deque[tuple[float, scheduling.Choice]] = (
            collections.deque(maxlen=_MOST))

    def add(self, choices: Iterable[scheduling.Choice]) -> None:
        """Keep choices that have just arrived."""
        with self._lock:
            now = self._clock()
            while self._known and (
                    self._known[0][0] < now - scheduling.LIFETIME):
                self._known.popleft()
            self._known.extend((now, choice) for choice in choices)

    def newer_than(self, seconds: float) -> tuple[scheduling.Choice, ...]:
        """Return the choices that are not older, in order of arrival."""
        found = []
        with self._lock:
            oldest = self._clock() - min(
                seconds, scheduling.LIFETIME)
            # A scheduler that asks often needs only the last few.
            for at, choice in reversed(self._known):
                if at < oldest:
                    break
                found.append(choice)
        return tuple(reversed(found))
