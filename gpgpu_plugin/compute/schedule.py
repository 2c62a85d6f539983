# SPDX-License-Identifier: Apache-2.0
"""Schedule of the resource tracker: its due tasks, and when others follow."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable

from gpgpu_plugin.compute import tasks

_T = tasks.Task

ITERATION = (
    _T.BEGIN,
    _T.AWAIT_ALLOCATION_REMOVAL,
    _T.RELEASE,
    _T.DIGEST,
    _T.REPORT,
    # The report may have found assigned devices at other addresses.
    _T.RECONCILE,
    _T.GUEST_ADDRESSES,
    _T.FETCH,
    _T.CLEAN,
)
"""Order in which an iteration runs the tasks that are due."""

AFTER_REPORT = (_T.DIGEST, _T.RECONCILE, _T.GUEST_ADDRESSES, _T.FETCH,
                _T.CLEAN)
"""Tasks that wait until the first report of the session was accepted: until
then the conductor may not know what is assigned here."""

_FULL_RECONCILE_INTERVAL = 24 * 3600
"""Seconds, on average, between two comparisons that nothing has asked for."""


class Schedule:
    """Tasks that are due. Thread-safe.

    :param clock: seconds that only grow
    :param reconcile_later: seconds after which a comparison is repeated whose
        outcome may have come too early
    :param digest_interval: seconds, on average, between two digests
    """

    def __init__(self, clock: Callable[[], float], reconcile_later: float,
                 digest_interval: float) -> None:
        self._clock = clock
        self._reconcile_later = reconcile_later
        self._digest_interval = digest_interval
        self._lock = threading.Lock()
        self._due: set[tasks.Task] = set()
        self._reconcile_at = math.inf
        self._digest_at = math.inf

    def require(self, *due: tasks.Task) -> None:
        """Make tasks due."""
        with self._lock:
            self._due.update(due)

    def take(self, task: tasks.Task) -> None:
        """Note that a task begins; what happens from now on makes it due."""
        with self._lock:
            self._due.discard(task)
            if task is _T.DIGEST:
                self._digest_at = self._after(self._digest_interval)

    def is_due(self, task: tasks.Task) -> bool:
        """Return whether a task is due."""
        with self._lock:
            if task is _T.RECONCILE and self._clock() >= self._reconcile_at:
                self._due.add(task)
                self._due.discard(_T.RECONCILE_LATER)
            return task in self._due or (
                task is _T.DIGEST and self._clock() >= self._digest_at)

    def begin(self) -> None:
        """Make due what follows the begin of a session.

        A predecessor may have died in the middle of anything.
        """
        self.take(_T.DIGEST)
        self.require(_T.REPORT, _T.CLEAN, _T.RECONCILE, _T.RECONCILE_LATER)

    def reconciled(self) -> None:
        """Note that a comparison was done."""
        with self._lock:
            self._reconcile_at = (
                self._clock() + self._reconcile_later
                if _T.RECONCILE_LATER in self._due
                else self._after(_FULL_RECONCILE_INTERVAL))

    def _after(self, interval: float) -> float:
        """Return a time after about an interval.

        It differs from host to host, so that they do not call together.
        """
        return self._clock() + interval * random.uniform(0.5, 1.5)
