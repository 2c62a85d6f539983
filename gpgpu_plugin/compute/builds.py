# SPDX-License-Identifier: Apache-2.0
"""Instances whose guests are created or destroyed on this host now."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from collections.abc import Iterator


class Builds:
    """Builds under way, and those that began during a comparison.

    A build is a call of the driver that creates or destroys a guest.
    Thread-safe.

    :param left_out: called with an instance's UUID at the end of a build that
        a comparison has left out
    :ivar lock: no build begins or ends while it is held
    """

    def __init__(self, left_out: Callable[[str], None]) -> None:
        self.lock = threading.RLock()
        self._report_left_out = left_out
        # Whether a comparison has left them out, by the instance's UUID.
        self._running: dict[str, bool] = {}
        self._begun: set[str] = set()

    @contextlib.contextmanager
    def running(self, instance_uuid: str) -> Iterator[None]:
        """Keep an instance out of comparisons until its build is over."""
        with self.lock:
            self._running[instance_uuid] = False
            self._begun.add(instance_uuid)
        try:
            yield
        finally:
            with self.lock:
                left_out = self._running.pop(instance_uuid)
            if left_out:
                self._report_left_out(instance_uuid)

    def current(self) -> set[str]:
        """Return the UUIDs of instances with a build under way."""
        with self.lock:
            return set(self._running)

    def begin_comparison(self) -> None:
        """Note that a comparison begins, which has read nothing yet."""
        with self.lock:
            self._begun.clear()

    def leave_out(self) -> set[str]:
        """Return the builds under way, which the comparison leaves out."""
        with self.lock:
            self._running = dict.fromkeys(self._running, True)
            return set(self._running)

    def since_begin(self) -> set[str]:
        """Return the builds that ran at any time during the comparison."""
        return self.leave_out() | self._begun
