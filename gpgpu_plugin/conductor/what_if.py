# SPDX-License-Identifier: Apache-2.0
"""Plan for the instances of hosts that would be drained (what-if drain).

Nothing is claimed, written or locked. The rules are those of
``domain.what_if``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.conductor import what_if_hosts
from gpgpu_plugin.conductor import what_if_reasons
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import vgpu_type as vgpu_type_db
from gpgpu_plugin.domain.what_if import plan as plan_mod
from gpgpu_plugin.domain.why_not import host as host_mod
from gpgpu_plugin.objects import what_if as objects
from gpgpu_plugin.rpc import why_not_contract

_Type = tuple[str, str, str]


def leaving(db: api.Database,
            hosts: Sequence[str]) -> tuple[objects.Leaving, ...]:
    """Return who has devices on hosts (Conductor.what_if_leaving)."""
    with db.reader() as session:
        rows = [host_db.get(session, name) for name in dict.fromkeys(hosts)]
        loaded = host_rows.load(session, rows)
        seconds = ledger.seconds_of_last(session, {
            assignment.device.uuid for found in loaded.values()
            for assignment in found.assignments})
        return tuple(
            _leaving(row.name, instance, assignments, seconds)
            for row in rows for instance, assignments in _by_instance(
                loaded[row.id].assignments).items())


def _by_instance(assignments: Iterable[assignment_db.AssignmentRow],
                 ) -> dict[str, list[assignment_db.AssignmentRow]]:
    found: dict[str, list[assignment_db.AssignmentRow]] = {}
    for assignment in assignments:
        found.setdefault(assignment.instance_uuid, []).append(assignment)
    return found


def _leaving(host: str, instance: str,
             assignments: Sequence[assignment_db.AssignmentRow],
             seconds: Mapping[str, float]) -> objects.Leaving:
    resources: dict[str, int] = {}
    for assignment in assignments:
        name = assignment.resource_class
        resources[name] = resources.get(name, 0) + 1
    return objects.Leaving(
        instance_uuid=instance, host=host, resources=resources,
        exact=any(assignment.exact for assignment in assignments),
        cleaning_seconds=max(
            (seconds[assignment.device.uuid] for assignment in assignments
             if assignment.device.uuid in seconds), default=None))


def drain(db: api.Database, question: objects.DrainQuestion, *,
          silent_after: float | None = None, seconds: float = 10.0,
          clock: Callable[[], float] = time.monotonic,
          ) -> objects.DrainAnswer:
    """Return where instances would go (Conductor.what_if_drain).

    :param silent_after: see conductor.host_states
    :param seconds: after which nothing is searched any more; hosts have half
        of them, and the plan a quarter
    """
    _check(question)
    began_at = clock()

    def has_time(share: float = 1.0) -> bool:
        return clock() < began_at + share * seconds
    with db.reader() as session:
        hosts = what_if_hosts.Hosts(session, question, silent_after)
        kinds = [hosts.kind(session, kind, len(question.leaving),
                            lambda: has_time(0.5))
                 for kind in question.kinds]
    examined = {name: hosts.values[name]
                for kind in kinds for name in kind.options}
    found = plan_mod.Planner(examined, question.free, kinds).plan(
        list(question.leaving.values()), lambda: has_time(0.75))
    with db.reader() as session:
        left_over = {question.leaving[name] for name, target in _targets(
            question, found).items() if target is None}
        reasons = {number: what_if_reasons.of(
            session, hosts, kinds[number], found, has_time)
            for number in sorted(left_over)}
        return objects.DrainAnswer(
            moves=_moves(question, found, reasons),
            capacities=_capacities(session, hosts, found),
            orders=found.orders, examined=len(hosts.values),
            cut=hosts.cut)


def _check(question: objects.DrainQuestion) -> None:
    """Refuse a question that would take too long.

    :raises Invalid: its numbers are too large, or make no sense
    """
    most = why_not_contract.LEAVING_AT_ONCE
    if len(question.leaving) > most:
        raise exception.Invalid(
            field='instances', value=len(question.leaving),
            expected=f'at most {most}; name fewer hosts')
    if len(question.kinds) > most:
        raise exception.Invalid(
            field='kinds', value=len(question.kinds),
            expected=f'at most {most}')
    most = why_not_contract.OPTIONS_AT_ONCE
    for kind in question.kinds:
        if len(kind.options) > most:
            raise exception.Invalid(
                field='candidates', value=len(kind.options),
                expected=f'at most {most}')
    for number in question.leaving.values():
        if not 0 <= number < len(question.kinds):
            raise exception.Invalid(
                field='kind', value=number,
                expected=f'a number below {len(question.kinds)}')


def _targets(question: objects.DrainQuestion,
             plan: plan_mod.Plan) -> dict[str, str | None]:
    """Return the target of each instance, in the order of the plan."""
    names = list(question.leaving)
    return {names[one]: plan.targets.get(one) for one in plan.order}


def _moves(question: objects.DrainQuestion, plan: plan_mod.Plan,
           reasons: Mapping[int, objects.Move],
           ) -> tuple[objects.Move, ...]:
    return tuple(
        objects.Move(instance_uuid=name, target=target)
        if target is not None
        else dataclasses.replace(
            reasons[question.leaving[name]], instance_uuid=name)
        for name, target in _targets(question, plan).items())


# -- capacity ---------------------------------------------------------------

def _capacities(session: orm.Session, hosts: what_if_hosts.Hosts,
                plan: plan_mod.Plan) -> tuple[objects.Capacity, ...]:
    """Return what is left of the variants that hosts or plan concern."""
    lost: dict[_Type, int] = {}
    drained = [hosts.values[name] for name in hosts.drained]
    for host in drained:
        for key, count in _available(host).items():
            lost[key] = lost.get(key, 0) + (
                0 if host.name in hosts.closed else count)
    for name in sorted(set(plan.targets.values())):
        after = _available(plan.hosts[name])
        for key, count in _available(hosts.values[name]).items():
            lost[key] = lost.get(key, 0) + count - after[key]
    before = vgpu_type_db.remaining(
        session, {variant for variant, _, _ in lost}, hosts.closed)
    return tuple(
        objects.Capacity(
            variant=variant, vgpu_type=vgpu_type, resource_class=name,
            before=before[variant, vgpu_type],
            after=before[variant, vgpu_type] - count)
        for (variant, vgpu_type, name), count in sorted(lost.items())
        if (variant, vgpu_type) in before)


def _available(host: host_mod.Host) -> dict[_Type, int]:
    return {
        (group.variant.name, offered.vgpu_type,
         group.resource_class(offered.vgpu_type)): group.available(offered)
        for group in host.groups for offered in group.types}
