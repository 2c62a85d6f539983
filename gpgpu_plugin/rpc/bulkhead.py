# SPDX-License-Identifier: Apache-2.0
"""Limits on the calls that a server handles at once, in total and per key.

Without them, calls that wait for one locked host could occupy all threads of a
conductor. Nor could a caller that repeats a call which takes long.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import typing

T = typing.TypeVar('T')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn(typing.Generic[T]):
    """A call that may begin.

    :ivar key: what it may wait for, such as a host; None: nothing
    :ivar identity: equal for all repeats of one call
    """

    key: str | None
    identity: object
    call: T


class Bulkhead(typing.Generic[T]):
    """Calls that run, and calls that wait for those to end.

    A call that waits here has no thread. The keys take turns; the calls of
    one key begin in the order in which they came. A call takes the place of an
    earlier one that it repeats, whose caller waits for it no longer, and
    begins after that one if it runs: then it finds what that one has done.

    :param limit: calls of one key that run at once
    :param total: calls with a key that run at once
    """

    def __init__(self, limit: int, total: int) -> None:
        self._limit = limit
        self._total = total
        self._lock = threading.Lock()
        self._running: collections.Counter[str] = collections.Counter()
        self._waiting: dict[str, dict[object, T]] = {}
        # What runs, and the last repeat of it.
        self._repeats: dict[object, T | None] = {}

    def enter(self, key: str | None, call: T,
              identity: object = None) -> Turn[T] | None:
        """Return the call, or None if it has to wait.

        A later leave() returns a call that has to wait.

        :param identity: see Turn; None: the call is never repeated
        """
        identity = object() if identity is None else identity
        with self._lock:
            if identity in self._repeats:
                self._repeats[identity] = call
                return None
            if key is None or self._may_begin(key):
                return self._begin(key, identity, call)
            self._waiting.setdefault(key, {})[identity] = call
            return None

    def leave(self, turn: Turn[T]) -> Turn[T] | None:
        """End a call, and return the one that begins instead, if any."""
        with self._lock:
            repeat = self._repeats.pop(turn.identity)
            if turn.key is not None:
                self._running[turn.key] -= 1
                if not self._running[turn.key]:
                    del self._running[turn.key]
            if repeat is not None:
                return self._begin(turn.key, turn.identity, repeat)
            key = next(filter(self._may_begin, self._waiting), None)
            if key is None:
                return None
            calls = self._waiting.pop(key)
            identity = next(iter(calls))
            call = calls.pop(identity)
            if calls:
                # The last one in line.
                self._waiting[key] = calls
            return self._begin(key, identity, call)

    def _may_begin(self, key: str) -> bool:
        return (self._running[key] < self._limit
                and self._running.total() < self._total)

    def _begin(self, key: str | None, identity: object, call: T) -> Turn[T]:
        if key is not None:
            self._running[key] += 1
        self._repeats[identity] = None
        return Turn(key=key, identity=identity, call=call)
