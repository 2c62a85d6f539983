# SPDX-License-Identifier: Apache-2.0
"""Threads of one process that start together with those of others."""

from __future__ import annotations

import gc
import threading
import typing
from collections.abc import Callable


class Barrier(typing.Protocol):
    """A barrier of threads or of processes."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the others."""


def run(barrier: Barrier, threads: int, warm_up: Callable[[], object],
        work: Callable[[int], None]) -> None:
    """Run ``work`` in threads and wait until all have ended.

    :param barrier: shared by the processes; they wait for each other there
    :param warm_up: called once by every thread, in all threads at the same
        time, so that every thread has its connections when the race starts
    :param work: takes the thread's number
    """
    warm = threading.Barrier(threads + 1)
    start = threading.Event()

    def claimer(number: int) -> None:
        warm_up()
        warm.wait(120)
        start.wait()
        work(number)

    crowd = [threading.Thread(target=claimer, args=(number,))
             for number in range(threads)]
    for thread in crowd:
        thread.start()
    warm.wait(120)
    # As a service does that begins to serve. Otherwise the first collection
    # looks at all of Nova's modules, in each process and within the race.
    gc.collect()
    gc.freeze()
    barrier.wait()
    start.set()
    for thread in crowd:
        thread.join()
