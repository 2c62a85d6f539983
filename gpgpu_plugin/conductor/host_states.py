# SPDX-License-Identifier: Apache-2.0
"""State of hosts, as lists show it."""

from __future__ import annotations

from sqlalchemy import orm

from gpgpu_plugin.db import clock
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.domain import host_state


class HostStates:
    """States of hosts at one time.

    :param silent_after: seconds without a call after which a host is silent;
        None: the states are not known
    """

    def __init__(self, session: orm.Session,
                 silent_after: float | None) -> None:
        self._closed = None if silent_after is None else host_db.closed(
            session, clock.epoch(session) - silent_after)

    def of(self, host: str) -> host_state.HostState | None:
        """Return the state of a host."""
        if self._closed is None:
            return None
        return (self._closed[host].state if host in self._closed
                else host_state.HostState.UP)

    def is_closed(self, host: str) -> bool:
        """Return whether it is silent, restored or disabled.

        Nothing can be claimed on it then. That it is to be drained is another
        reason, which has a remedy of its own.
        """
        return self.of(host) in (
            host_state.HostState.SILENT, host_state.HostState.RESTORED,
            host_state.HostState.DISABLED)
