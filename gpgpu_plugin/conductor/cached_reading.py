# SPDX-License-Identifier: Apache-2.0
"""A value whose reading may be slow or hang, for callers who must not."""

from __future__ import annotations

import threading
import time
import typing
from collections.abc import Callable
from concurrent import futures

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

T = typing.TypeVar('T')


class CachedReading(typing.Generic[T]):
    """A value that one thread of its own reads when somebody asks for it.

    However many ask, there is one reading at a time, and at most one in
    ``lifetime``. One that failed counts as well.

    :param name: of the value, for the log and the thread
    :param read: may raise anything
    :param lifetime: seconds for which a value is not read again
    :param patience: seconds for which a caller waits for a reading
    :param clock: seconds of a clock that never goes back
    """

    def __init__(self, name: str, read: Callable[[], T], lifetime: float,
                 patience: float,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._read = read
        self._lifetime = lifetime
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._executor = futures.ThreadPoolExecutor(
            1, thread_name_prefix=f'gpgpu-{name}')
        self._reading: futures.Future[T | None] | None = None
        self._ended_at = float('-inf')

    def get(self) -> T | None:
        """Return the value; None if it cannot be read in time."""
        with self._lock:
            if self._reading is None or self._is_old(self._reading):
                self._reading = self._executor.submit(self._run)
            reading = self._reading
        try:
            return reading.result(self._patience)
        except futures.TimeoutError:
            return None

    def _is_old(self, reading: futures.Future[T | None]) -> bool:
        return (reading.done()
                and self._clock() - self._ended_at > self._lifetime)

    def _run(self) -> T | None:
        try:
            return self._read()
        # The database's driver has errors of its own.
        except Exception as exc:  # noqa: BLE001
            LOG.warning('Cannot read the %(name)s: %(error)s', {
                'name': self._name, 'error': str(exc).partition('\n')[0]})
            return None
        finally:
            self._ended_at = self._clock()

    def stop(self) -> None:
        """Wait until the reading under way has ended, and begin none."""
        self._executor.shutdown()
