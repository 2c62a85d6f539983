# SPDX-License-Identifier: Apache-2.0
"""Times in which the process was stopped.

The broker goes on to send to a process that is stopped, for example by SIGSTOP
or because its virtual machine is paused. The kernel keeps what it sends, and
when the process goes on, these messages look as if they had just arrived.
"""

from __future__ import annotations

import threading
import time

INTERVAL = 1.0
"""Seconds between two checks of the clock."""

_LONGEST = 3 * INTERVAL
"""Seconds between two checks of the clock in a busy process. It also reads in
this time what the kernel kept."""


class PauseWatch:
    """Thread that notices when the process was stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._running_at = time.monotonic()
        self._stopped_at = self._resumed_at = float('-inf')

    def arrived_at(self) -> float:
        """Return since when a message that is read now may be here.

        :returns: time of the monotonic clock
        """
        now = self.note()
        with self._lock:
            return (self._stopped_at
                    if now - self._resumed_at < _LONGEST else now)

    def note(self) -> float:
        """Note that the process runs, and return the time."""
        with self._lock:
            now = time.monotonic()
            if now - self._running_at > _LONGEST:
                self._stopped_at, self._resumed_at = self._running_at, now
            self._running_at = now
            return now

    def start(self) -> None:
        """Check the clock periodically until ``stop``."""
        with self._lock:
            # Without this thread nobody knows whether the process ran.
            self._running_at = time.monotonic()
        self._ended.clear()
        self._thread = threading.Thread(
            target=self._watch, name='gpgpu-pauses', daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL):
            self.note()

    def stop(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None
