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
"""The one thread of ours in nova-compute.

It looks every interval, and at once when it is woken; wakes that come while
it works become one more look, so nothing queues up. futurist's periodic
worker knows no wake, which is why it is not used here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


class Worker:
    """Calls ``work`` again and again in a thread of its own.

    :param work: returns after how many seconds it wants to look again, None:
        after the interval
    :param interval: seconds between two looks
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
        """Begin; the first look is an interval away, or a wake."""
        self._thread = threading.Thread(
            target=self._loop, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look now."""
        self._wake.set()

    def run_once(self) -> float | None:
        """One look in the calling thread, never beside another one.

        :returns: what ``work`` returned
        """
        with self._busy:
            return self._work()

    def _loop(self) -> None:
        soon: float | None = None
        while True:
            self._wake.wait(self._interval if soon is None else soon)
            self._wake.clear()
            if self._stopping:
                return
            try:
                soon = self.run_once()
            except Exception:
                soon = None
                LOG.exception('%s failed; it goes on', self._name)

    def stop(self, timeout: float = 10) -> None:
        """End the thread after the look under way.

        :param timeout: seconds to wait for it
        """
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None
