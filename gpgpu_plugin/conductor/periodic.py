# SPDX-License-Identifier: Apache-2.0
"""A function that the conductor calls again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable

from futurist import periodics


class Periodic:
    """Calls a function in a thread of its own, at once and then repeatedly.

    :param name: of the thread
    :param interval: seconds between two calls
    """

    def __init__(self, name: str, interval: float,
                 run: Callable[[], object]) -> None:
        self._name = name
        self._interval = interval
        self._run = run
        self._worker: periodics.PeriodicWorker | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to call the function."""
        @periodics.periodic(self._interval, run_immediately=True)
        def call() -> None:
            self._run()
        self._worker = periodics.PeriodicWorker([(call, (), {})])
        self._thread = threading.Thread(
            target=self._worker.start, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the call under way."""
        if self._worker is not None and self._thread is not None:
            self._worker.stop()
            self._thread.join()
            self._worker = self._thread = None
