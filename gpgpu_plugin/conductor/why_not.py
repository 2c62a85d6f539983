# SPDX-License-Identifier: Apache-2.0
"""Where a request fits, and why not elsewhere (gpgpu-manage why-not).

What is read of a host is what the claim would read; the rules are those of
``domain.why_not``.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import host_states
from gpgpu_plugin.db import api
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import host_state
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.why_not import change as change_mod
from gpgpu_plugin.domain.why_not import host as host_mod
from gpgpu_plugin.domain.why_not import smallest
from gpgpu_plugin.objects import why_not as objects
from gpgpu_plugin.rpc import why_not_contract


def page(db: api.Database, request: request_mod.Request,
         guest_nodes: int | None, host: str | None, limit: int,
         marker: str | None, *, silent_after: float | None = None,
         ) -> tuple[objects.HostAnswer, ...]:
    """Return a page of answers (Conductor.why_not).

    :param silent_after: see conductor.host_states
    """
    if limit < 1:
        raise exception.Invalid(
            field='limit', value=limit, expected='a number of hosts above 0')
    with db.reader() as session:
        ours = own_demands(session, request)
        hosts = ([host_db.get(session, host)] if host is not None
                 else host_db.listed(session, min(
                     limit, why_not_contract.HOSTS_AT_ONCE), marker))
        loaded = host_rows.load(session, hosts)
        states = host_states.HostStates(session, silent_after)
        return tuple(_answer(
            row, capacity.LoadedHost.of(loaded[row.id]), states.of(row.name),
            ours, guest_nodes) for row in hosts)


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


def _answer(row: host_db.HostRow, loaded: capacity.LoadedHost,
            state: host_state.HostState | None,
            request: request_mod.Request,
            guest_nodes: int | None) -> objects.HostAnswer:
    host = host_value(row.name, loaded, state)
    found = host_mod.findings(host, request, guest_nodes)
    devices = {device.stable_id: device for device in loaded.rows.devices}
    return objects.HostAnswer(
        host=row.name, node_uuid=row.node_uuid, findings=found,
        proposals=tuple(
            tuple(change_info(change, devices) for change in proposal)
            for proposal in smallest.proposals(host, request, guest_nodes)
        ) if found else ())


def host_value(name: str, loaded: capacity.LoadedHost,
               state: host_state.HostState | None) -> host_mod.Host:
    """Return a host as ``domain.why_not`` takes it.

    :param state: None: not known
    """
    return host_mod.Host(
        name=name, state=state or host_state.HostState.UP,
        groups=tuple(group.value for group in loaded.groups
                     if group.value.devices),
        users={assignment.device.stable_id: assignment.instance_uuid
               for assignment in loaded.rows.assignments})


def change_info(change: change_mod.Change,
                devices: Mapping[str, device_db.DeviceRow],
                ) -> objects.ChangeInfo:
    """Return a change as it crosses RPC.

    :param devices: of its host, by stable id
    """
    device = devices.get(change.subject)
    return objects.ChangeInfo(
        kind=change.kind,
        subject=device.uuid if device else change.subject,
        address=device.address if device else None)
