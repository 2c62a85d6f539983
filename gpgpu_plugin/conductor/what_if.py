# SPDX-License-Identifier: Apache-2.0
"""Plan for the instances of hosts that would be drained (what-if drain).

Nothing is claimed, written or locked. The rules are those of
``domain.what_if``.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.conductor import why_not
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import what_if
from gpgpu_plugin.domain import why_not as why_not_rules
from gpgpu_plugin.objects import forecast
from gpgpu_plugin.rpc import conductor_contract

_AT_ONCE = conductor_contract.EXAMINED_HOSTS_AT_ONCE
_Hosts = dict[str, why_not_rules.ExaminedHost]
_Type = tuple[str, str, str]


def leaving(db: api.Database,
            hosts: Sequence[str]) -> tuple[forecast.Leaving, ...]:
    """Return who has devices on hosts (Conductor.what_if_leaving)."""
    with db.reader() as session:
        rows = [host_db.get(session, name) for name in dict.fromkeys(hosts)]
        loaded = host_rows.load(session, rows)
        seconds = ledger.seconds_of_last(session, {
            assignment.device.uuid for found in loaded.values()
            for assignment in found.assignments})
    found: dict[tuple[str, str], list[assignment_db.AssignmentRow]] = {}
    for row in rows:
        for assignment in loaded[row.id].assignments:
            found.setdefault((row.name, assignment.instance_uuid), []).append(
                assignment)
    return tuple(forecast.Leaving(
        instance_uuid=instance, host=host,
        resources=dict(collections.Counter(
            assignment.resource_class for assignment in assignments)),
        exact=any(assignment.exact for assignment in assignments),
        cleaning_seconds=max(
            (seconds[assignment.device.uuid] for assignment in assignments
             if assignment.device.uuid in seconds), default=None))
        for (host, instance), assignments in found.items())


def drain(db: api.Database, question: forecast.DrainQuestion, *,
          silent_after: float | None = None) -> forecast.DrainAnswer:
    """Return where instances would go (Conductor.what_if_drain).

    :param silent_after: see conductor.admin.host
    """
    _check(question)
    names = list(question.leaving)
    with db.reader() as session:
        closed: Collection[str] = (
            frozenset() if silent_after is None else host_db.closed(
                session, clock.epoch(session) - silent_after).keys())
        drained = _load(session, {}, [
            host_db.get(session, name)
            for name in dict.fromkeys(question.hosts)])
        hosts = dict(drained)
        kinds = [_kind(session, kind, len(names), hosts, {
            *question.hosts, *closed, *kind.closed})
            for kind in question.kinds]
        before = group_db.remaining_types(session, {
            group.variant.name for host in hosts.values()
            for group in host.groups}, closed)
    plan = what_if.plan(
        hosts, question.free, kinds, list(question.leaving.values()))
    return forecast.DrainAnswer(
        moves=tuple(forecast.Move(
            instance_uuid=names[number],
            target=None if node is None else hosts[node].name)
            for number, node in plan.targets.items()),
        capacities=_capacities(before, _lost(
            hosts, drained.keys(), closed, plan)), examined=len(hosts))


def _check(question: forecast.DrainQuestion) -> None:
    """Refuse a question that would take too long.

    :raises Invalid: its numbers are too large, or make no sense
    """
    most = conductor_contract.LEAVING_AT_ONCE
    for field, count, limit in (
            ('instances', len(question.leaving), most),
            ('kinds', len(question.kinds), most),
            ('candidates', sum(len(kind.options) for kind in question.kinds),
             conductor_contract.OPTIONS_AT_ONCE),
            *(('kind', number, len(question.kinds) - 1)
              for number in question.leaving.values())):
        if not 0 <= count <= limit:
            raise exception.Invalid(
                field=field, value=count,
                expected=f'at most {limit}; name fewer hosts')


def _load(session: orm.Session,
          known: Mapping[str, why_not_rules.ExaminedHost],
          rows: Iterable[host_db.HostRow]) -> _Hosts:
    """Return hosts that are not known yet, by the UUID of their node."""
    new = [row for row in rows if row.node_uuid not in known]
    found = host_rows.load(session, new)
    return {row.node_uuid: why_not.host_value(
        row.name, found[row.id], None) for row in new}


def _kind(session: orm.Session, asked: what_if.InstanceKind, needed: int,
          hosts: _Hosts, closed: Collection[str]) -> what_if.InstanceKind:
    """Return a kind with options on as many hosts as can matter.

    If as many hosts can take one as there are instances, one of the hosts is
    left, whatever the other instances take: further ones would not help.

    :param needed: number of instances that leave
    :param hosts: those that were loaded; others are added
    :param closed: names of hosts that take none
    """
    request = why_not.own_demands(session, asked.request)
    nodes = list(asked.options)
    taking: dict[str, tuple[what_if.Amounts, ...]] = {}
    for first in range(0, len(nodes), _AT_ONCE):
        if len(taking) >= needed:
            break
        some = nodes[first:first + _AT_ONCE]
        rows = {node: row for node, row in host_db.by_node_uuids(
            session, some).items() if row.name not in closed}
        hosts |= _load(session, hosts, rows.values())
        taking |= {node: asked.options[node] for node in some
                   if node in rows and what_if.after_claim(
                       hosts[node], request, asked.guest_nodes) is not None}
    return dataclasses.replace(asked, request=request, options=taking)


# -- capacity ---------------------------------------------------------------

def _lost(hosts: Mapping[str, why_not_rules.ExaminedHost],
          drained: Collection[str],
          closed: Collection[str], plan: what_if.Plan) -> Mapping[_Type, int]:
    """Return how many units a plan takes from those that all hosts have.

    :param drained: nodes of hosts that have none then
    :param closed: names of hosts whose units do not count
    """
    lost: collections.Counter[_Type] = collections.Counter()
    for node in {*drained, *filter(None, plan.targets.values())}:
        left = ({} if node in drained and hosts[node].name not in closed
                else _available(plan.hosts[node]))
        for key, count in _available(hosts[node]).items():
            lost[key] += count - left.get(key, 0)
    return lost


def _capacities(before: Mapping[tuple[str, str], int],
                lost: Mapping[_Type, int]) -> tuple[forecast.CapacityChange,
                                                    ...]:
    """Return what is left of the types of which something is lost.

    :param before: units of all hosts, by variant and type
    """
    return tuple(
        forecast.CapacityChange(
            variant=variant, vgpu_type=vgpu_type, resource_class=name,
            before=before[variant, vgpu_type],
            after=before[variant, vgpu_type] - count)
        for (variant, vgpu_type, name), count in sorted(lost.items())
        if (variant, vgpu_type) in before)


def _available(host: why_not_rules.ExaminedHost) -> dict[_Type, int]:
    return {
        (group.variant.name, offered.vgpu_type,
         group.resource_class(offered.vgpu_type)): group.available(offered)
        for group in host.groups for offered in group.types}
