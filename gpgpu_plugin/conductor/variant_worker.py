# SPDX-License-Identifier: Apache-2.0
"""Thread that applies changes of variants which their calls did not end.

The call that changes a variant returns after a part of its caller's time. What
is left, also by a conductor that crashed, is done here. Several conductors may
do it at once: the row of the change is locked by one of them at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import casts
from gpgpu_plugin.conductor import variant_changes
from gpgpu_plugin.db import api
from gpgpu_plugin.db import variant_change as change_db
from gpgpu_plugin.rpc import compute_api

LOG = logging.getLogger(__name__)

INTERVAL = 60
"""Seconds between two searches for changes that nobody ends."""


class VariantWorker:
    """Applies changes of variants to the hosts that do not have them."""

    def __init__(self, db: api.Database,
                 compute: compute_api.ComputeAPI) -> None:
        self._db = db
        self._compute = compute
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def run_once(self) -> None:
        """Apply all changes as far as possible; never raises."""
        try:
            with self._db.reader() as session:
                found = [change.id for change in change_db.all(session)]
        except Exception:
            # The database's driver has errors of its own.
            LOG.exception('Cannot search for changes of variants; trying '
                          'again in %s s', INTERVAL)
            return
        for change_id in found:
            self._run(change_id)

    def _run(self, change_id: int) -> None:
        try:
            variant_changes.run(
                self._db, change_id, self._tell, self._stopped.is_set)
        except exception.Conflict:
            # It was undone, which is logged, and what that means for hosts
            # is the next thing to do.
            self.wake()
        except Exception:
            LOG.exception('Cannot apply the change of a variant to all hosts; '
                          'trying again in %s s', INTERVAL)

    def _tell(self, hosts: Sequence[str]) -> None:
        for host in hosts:
            if self._stopped.is_set():
                # They find it with their next digest.
                return
            casts.notify(self._compute.refresh, gpgpu_context.admin(), host)

    def wake(self) -> None:
        """Have the thread search at once."""
        self._woken.set()

    def start(self) -> None:
        """Search in a thread of its own, until ``stop``."""
        self._stopped.clear()
        self._thread = threading.Thread(
            target=self._search, name='gpgpu-variants', daemon=True)
        self._thread.start()

    def _search(self) -> None:
        while not self._stopped.is_set():
            self._woken.clear()
            self.run_once()
            self._woken.wait(INTERVAL)

    def stop(self) -> None:
        """End the thread after the chunk under way."""
        if self._thread is not None:
            self._stopped.set()
            self._woken.set()
            self._thread.join()
            self._thread = None
