# SPDX-License-Identifier: Apache-2.0
"""Hosts that are loaded for a question of gpgpu-manage what-if.

For each kind of instance, hosts are loaded until as many can take one as there
are instances. At least one of them is then left, whatever the other instances
take, so further hosts would not help.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import host_states
from gpgpu_plugin.conductor import why_not
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain.what_if import claim
from gpgpu_plugin.domain.what_if import plan as plan_mod
from gpgpu_plugin.domain.why_not import host as host_mod
from gpgpu_plugin.objects import what_if as objects
from gpgpu_plugin.rpc import why_not_contract

_AT_ONCE = why_not_contract.HOSTS_AT_ONCE


class Hosts:
    """Hosts that were loaded for a question.

    :ivar values: by name
    :ivar loaded: their rows, by name
    :ivar drained: names of the hosts that are to be drained
    :ivar closed: names of hosts that take no instance
    :ivar cut: whether time was over before all that matter were loaded
    """

    def __init__(self, session: orm.Session, question: objects.DrainQuestion,
                 silent_after: float | None) -> None:
        self._states = host_states.HostStates(session, silent_after)
        self.values: dict[str, host_mod.Host] = {}
        self.loaded: dict[str, capacity.LoadedHost] = {}
        self.cut = False
        self.drained = tuple(dict.fromkeys(question.hosts))
        self.closed: Collection[str] = (
            frozenset() if silent_after is None else host_db.closed(
                session, clock.epoch(session) - silent_after).keys())
        self.load(session, [host_db.get(session, name)
                            for name in self.drained])

    def load(self, session: orm.Session,
             rows: Iterable[host_db.HostRow]) -> None:
        """Load hosts that were not loaded yet."""
        new = [row for row in rows if row.name not in self.values]
        found = host_rows.load(session, new)
        for row in new:
            loaded = self.loaded[row.name] = capacity.LoadedHost.of(
                found[row.id])
            self.values[row.name] = why_not.host_value(
                row.name, loaded, self._states.of(row.name))

    def is_target(self, name: str) -> bool:
        """Return whether instances may go to a host."""
        return name not in self.drained and name not in self.closed

    def kind(self, session: orm.Session, asked: objects.Kind,
             needed: int, has_time: Callable[[], bool] = lambda: True,
             ) -> plan_mod.Kind:
        """Return a kind with as many hosts as can matter.

        :param needed: number of instances that leave
        :param has_time: whether more hosts are loaded
        """
        request = why_not.own_demands(session, asked.request)
        options: dict[str, Sequence[plan_mod.Amounts]] = {}
        for first in range(0, len(asked.options), _AT_ONCE):
            if not has_time():
                self.cut = True
                break
            some = asked.options[first:first + _AT_ONCE]
            rows = host_db.by_node_uuids(
                session, [option.node_uuid for option in some])
            self.load(session, (row for row in rows.values()
                                if self.is_target(row.name)))
            for option in some:
                row = rows.get(option.node_uuid)
                if row is not None and self.is_target(row.name) and (
                        row.name not in asked.closed) and (
                        claim.after(self.values[row.name], request,
                                    asked.guest_nodes) is not None):
                    options[row.name] = option.allocations
            if len(options) >= needed:
                break
        return plan_mod.Kind(request=request, guest_nodes=asked.guest_nodes,
                             options=options)
