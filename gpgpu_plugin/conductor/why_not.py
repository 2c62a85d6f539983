# SPDX-License-Identifier: Apache-2.0
"""Hosts that fit a request, and reasons of the others (gpgpu-manage why-not).

The rows that are read of a host are those that the claim would read; the
rules are those of ``domain.why_not``.
"""

from __future__ import annotations

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor.admin import host as host_mod
from gpgpu_plugin.db import api
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.domain import why_not as rules
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import forecast
from gpgpu_plugin.rpc import conductor_contract


def page(db: api.Database, request: request_mod.Request,
         guest_nodes: int | None, host: str | None, limit: int,
         marker: str | None, *, silent_after: float | None = None,
         ) -> tuple[forecast.HostAnswer, ...]:
    """Return a page of answers (Conductor.why_not).

    :param silent_after: see conductor.admin.host
    """
    if limit < 1:
        raise exception.Invalid(
            field='limit', value=limit, expected='a number of hosts above 0')
    with db.reader() as session:
        ours = own_demands(session, request)
        hosts = ([host_db.get(session, host)] if host is not None
                 else host_db.listed(session, min(
                     limit, conductor_contract.EXAMINED_HOSTS_AT_ONCE),
                                     marker))
        loaded = host_rows.load(session, hosts)
        states = host_mod.HostStates(session, silent_after)
        values = [host_value(row.name, loaded[row.id], states.of(row.name))
                  for row in hosts]
    return tuple(forecast.HostAnswer(
        host=row.name, node_uuid=row.node_uuid,
        findings=rules.findings(value, ours, guest_nodes),
        advice=rules.advice(value, ours, guest_nodes))
        for row, value in zip(hosts, values, strict=True))


def own_demands(session: orm.Session,
                 request: request_mod.Request) -> request_mod.Request:
    """Return the part of a request that is for the plugin's classes.

    :raises Invalid: it has none
    """
    known = variant_db.classes(session)
    ours = request.own(known)
    if not ours:
        raise exception.Invalid(
            field='request', value=request_mod.describe(request) or 'nothing',
            expected=f'"resources:CLASS" for a class of a variant '
                     f'({", ".join(known) or "there is no variant"}) or of a '
                     f'vGPU type')
    return ours


def host_value(name: str, rows: host_rows.HostRows,
               state: host_rules.HostState | None) -> rules.ExaminedHost:
    """Return a host as ``domain.why_not`` takes it.

    :param state: None: not known
    """
    return rules.ExaminedHost(
        name=name, state=state or host_rules.HostState.UP,
        groups=tuple(group.value for group in capacity.groups(rows)
                     if group.value.devices),
        users={assignment.device.stable_id: assignment.instance_uuid
               for assignment in rows.assignments})
