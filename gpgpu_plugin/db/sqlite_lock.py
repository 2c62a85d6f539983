# SPDX-License-Identifier: Apache-2.0
"""Lock that lets one gpgpu-conductor at a time use an SQLite file.

SQLite has one writer at a time. Within a conductor the writers wait for each
other in order; between two processes SQLite refuses some of them at once.
"""

from __future__ import annotations

import fasteners
import sqlalchemy as sa

from gpgpu_plugin import exception


class SQLiteLock:
    """Lock of a conductor on its SQLite file; not used for a server."""

    def __init__(self, url: sa.URL) -> None:
        self._database = url.database
        self._lock = None
        if url.get_backend_name() == 'sqlite' and url.database not in (
                None, '', ':memory:'):
            self._lock = fasteners.InterProcessLock(f'{url.database}.lock')

    def acquire(self) -> None:
        """Take the lock until it is released or this process ends.

        :raises ConfigInvalid: another process has it
        """
        if self._lock is not None and not self._lock.acquire(blocking=False):
            raise exception.ConfigInvalid(
                option='[database] connection',
                reason=f'another gpgpu-conductor uses {self._database}, and '
                       f'only one at a time may use an SQLite file. Stop the '
                       f'other one, or use PostgreSQL or MariaDB')

    def release(self) -> None:
        """Give the lock back, if it was taken."""
        if self._lock is not None and self._lock.acquired:
            self._lock.release()
