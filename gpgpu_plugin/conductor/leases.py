# SPDX-License-Identifier: Apache-2.0
"""Leases of claims that nobody activated.

A claim is granted to a build. If its caller gave up before the answer, or
died, only the host knows that nobody builds with it. It is notified until it
has ended or activated the claim. A silent host is not notified, since the
broker would keep the messages; when it returns, it sees from its digest that
its book lacks the claim.
"""

from __future__ import annotations

import threading

from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.conductor import periodic
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.rpc import compute_api

LOG = logging.getLogger(__name__)

INTERVAL = 60
"""Seconds between two searches for expired leases."""


class LeaseWatch:
    """Tells hosts of expired leases.

    :param silent_after: seconds without a call after which a host is silent
    """

    def __init__(self, db: api.Database, compute: compute_api.ComputeAPI,
                 silent_after: float) -> None:
        self._db = db
        self._compute = compute
        self._silent_after = silent_after
        self._stopping = threading.Event()
        self._searches = periodic.Periodic(
            'gpgpu-leases', (INTERVAL, self.run_once))

    def run_once(self) -> list[str]:
        """Tell every host that has an expired lease; never raises.

        :returns: names of the hosts
        """
        try:
            with self._db.reader() as session:
                hosts = assignment_db.hosts_with_expired_lease(
                    session, self._silent_after)
        except Exception:
            # The database's driver has errors of its own.
            LOG.exception('Cannot search for expired leases; tried again '
                          'in %s s', INTERVAL)
            return []
        for host in hosts:
            if self._stopping.is_set():
                break
            try:
                self._compute.assignments_changed(
                    gpgpu_context.admin(), host)
            except Exception:
                LOG.exception('Cannot notify %s of its expired leases; trying '
                              'again in %s s', host, INTERVAL)
        return hosts

    def start(self) -> None:
        """Search in a thread of its own, until ``stop``."""
        self._stopping.clear()
        self._searches.start()

    def stop(self) -> None:
        """End the thread after the message under way."""
        self._stopping.set()
        self._searches.stop()
