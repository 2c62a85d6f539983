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
"""Threads of one process that are warm, and begin at once with those of the
others."""

from __future__ import annotations

import threading
import typing
from collections.abc import Callable


def run(barrier: typing.Any, threads: int, warm_up: Callable[[], object],
        work: Callable[[int], None]) -> None:
    """Run ``work`` in threads until all are done.

    :param barrier: where the processes wait for each other
    :param warm_up: one call in each thread before; all of them at the same
        time, so that each has its connections when the race begins
    :param work: gets the thread's number
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
    for process in crowd:
        process.start()
    warm.wait(120)
    barrier.wait()
    start.set()
    for process in crowd:
        process.join()
