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
"""Limits on the calls that a server handles at once, in total and per key.

Without them, calls that wait for one locked host could occupy all threads of a
conductor.
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

    :ivar key: what it may wait for, such as a host
    """

    key: str
    call: T


class Bulkhead(typing.Generic[T]):
    """Calls that run, and calls that wait for those to end.

    A call that waits here has no thread. The keys take turns; the calls of
    one key begin in the order in which they came.

    :param limit: calls of one key that run at once
    :param total: calls that run at once
    """

    def __init__(self, limit: int, total: int) -> None:
        self._limit = limit
        self._total = total
        self._lock = threading.Lock()
        self._running: collections.Counter[str] = collections.Counter()
        self._waiting: dict[str, collections.deque[T]] = {}

    def enter(self, key: str, call: T) -> Turn[T] | None:
        """Return the call, or None if it has to wait.

        A later leave() returns a call that has to wait.
        """
        with self._lock:
            if self._may_begin(key):
                return self._begin(key, call)
            self._waiting.setdefault(key, collections.deque()).append(call)
            return None

    def leave(self, turn: Turn[T]) -> Turn[T] | None:
        """End a call, and return the one that begins instead, if any."""
        with self._lock:
            self._running[turn.key] -= 1
            if not self._running[turn.key]:
                del self._running[turn.key]
            key = next(filter(self._may_begin, self._waiting), None)
            if key is None:
                return None
            calls = self._waiting.pop(key)
            call = calls.popleft()
            if calls:
                # The last one in line.
                self._waiting[key] = calls
            return self._begin(key, call)

    def without_thread(self) -> int:
        """Return how many calls wait for nothing but a thread."""
        with self._lock:
            if self._running.total() < self._total:
                return 0
            return sum(
                min(len(calls), self._limit - self._running[key])
                for key, calls in self._waiting.items())

    def _may_begin(self, key: str) -> bool:
        return (self._running[key] < self._limit
                and self._running.total() < self._total)

    def _begin(self, key: str, call: T) -> Turn[T]:
        self._running[key] += 1
        return Turn(key=key, call=call)
