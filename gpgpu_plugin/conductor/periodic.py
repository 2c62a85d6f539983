# SPDX-License-Identifier: Apache-2.0
"""Functions that the conductor calls again and again."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from futurist import periodics


class Periodic:
    """Calls functions in a thread of its own, at once and then repeatedly.

    :param name: of the thread
    :param calls: seconds between two calls of each function; none of them
        raises
    """

    def __init__(self, name: str,
                 *calls: tuple[float, Callable[[], object]]) -> None:
        self._name = name
        self._calls = calls
        self._worker: periodics.PeriodicWorker | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to call the functions."""
        self._worker = periodics.PeriodicWorker([
            (periodics.periodic(seconds, run_immediately=True)(
                functools.partial(run)), (), {})
            for seconds, run in self._calls])
        self._thread = threading.Thread(
            target=self._worker.start, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the call under way."""
        if self._worker is not None and self._thread is not None:
            self._worker.stop()
            self._thread.join()
            self._worker = self._thread = None
