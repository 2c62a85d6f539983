# SPDX-License-Identifier: Apache-2.0
"""Quota of what is recorded of refusals.

Whoever boots what no host has, as fast as Nova's API answers, must neither
fill the database nor decide what the cloud is taken to need.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from collections.abc import Hashable

LIMIT = 100
"""Refusals of one key that are recorded in WINDOW."""

WINDOW = 3600.0
"""Seconds."""

_KEYS = 10_000


class Quota:
    """Quota for each of many keys, the newest ones. Not thread-safe.

    :param clock: seconds of a clock that never goes back
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When the window of a key began, and how many there were since.
        self._used: collections.OrderedDict[Hashable, tuple[float, int]] = (
            collections.OrderedDict())

    def take(self, key: Hashable) -> bool:
        """Return whether another refusal is within the quota, and count it."""
        now = self._clock()
        since, used = self._used.get(key, (now, 0))
        if now - since >= WINDOW:
            since, used = now, 0
        if used >= LIMIT:
            return False
        self._used[key] = since, used + 1
        self._used.move_to_end(key)
        if len(self._used) > _KEYS:
            self._used.popitem(last=False)
        return True
