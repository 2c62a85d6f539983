# SPDX-License-Identifier: Apache-2.0
"""The thread in nova-compute that runs the plugin's tasks.

It runs an iteration every interval, and at once when it is woken. Any number
of wakes during an iteration cause one more iteration, so they cannot queue up.
futurist's periodic worker cannot be woken, so it is not used here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


class Worker:
    """Thread that calls ``work`` periodically and when it is woken.

    :param work: one iteration; returns the seconds until the next one, None:
        the interval
    :param interval: seconds between two iterations
    """

    def __init__(self, work: Callable[[], float | None], interval: float,
                 name: str) -> None:
        self._work = work
        self._interval = interval
        self._name = name
        self._wake = threading.Event()
        self._stopping = False
        self._busy = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, which waits for the interval or a wake."""
        self._thread = threading.Thread(
            target=self._loop, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Begin the next iteration now."""
        self._wake.set()

    def run_once(self) -> float | None:
        """Run one iteration in the calling thread, never beside another.

        :returns: what ``work`` returned
        """
        with self._busy:
            return self._work()

    def _loop(self) -> None:
        pause: float | None = None
        while True:
            self._wake.wait(self._interval if pause is None else pause)
            self._wake.clear()
            if self._stopping:
                return
            try:
                pause = self.run_once()
            except Exception:
                pause = None
                LOG.exception('An iteration of %s failed; the next one comes '
                              'after the interval', self._name)

    def stop(self, timeout: float = 10) -> None:
        """End the thread after the current iteration.

        :param timeout: seconds to wait for it
        """
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None
