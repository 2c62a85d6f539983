# SPDX-License-Identifier: Apache-2.0
"""The end of assignments: by abort before a guest ran, by release after.

Every writing transaction locks its host first.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import types
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import driver_capacity
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import event as event_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import ledger as ledger_rules
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.objects import session as session_obj

_Event = device_rules.DeviceEvent
_State = device_rules.DeviceState
_Events = Mapping[device_rules.DeviceState, device_rules.DeviceEvent]

_OLDEST = 366 * 86400
"""Seconds. A host may send any number as the age of a release."""

_NO_AGES: Mapping[str, int] = types.MappingProxyType({})

_ABORT_TOUCHED: _Events = {_State.PROVISIONING: _Event.RELEASE}
_RELEASE: _Events = {
    _State.PROVISIONING: _Event.RELEASE, _State.ASSIGNED: _Event.RELEASE}


def host_id_of(db: api.Database, uuids: Sequence[str]) -> int | None:
    """Return the id of the assignments' host; None if none ever existed.

    Read before the writing transaction, whose first statement must lock the
    host; an assignment's host never changes.

    :raises Invalid: they are on several hosts
    """
    with db.reader() as session:
        ids = assignment_db.host_ids(session, uuids)
    if len(ids) > 1:
        raise exception.Invalid(
            field='assignments', value=list(uuids),
            expected='assignments of one host')
    return next(iter(ids), None)


def abort(
    db: api.Database,
    uuids: Sequence[str],
    *,
    touched: bool,
    fault: str | None,
    driver_capacities: report_obj.DriverCapacities | None = None,
    origin: session_obj.Origin | None = None,
) -> inventory_obj.HostInventory | None:
    """End claims that were not activated (ConductorAPI.abort)."""
    is_untouched = not touched and fault is None
    return _end(db, uuids, 'abort', {
        _State.PROVISIONING: _Event.ABORT_UNTOUCHED} if is_untouched
        else _ABORT_TOUCHED, origin, fault, driver_capacities)


def release(db: api.Database, uuids: Sequence[str],
            origin: session_obj.Origin | None = None,
            ages: Mapping[str, int] = _NO_AGES,
            ) -> inventory_obj.HostInventory | None:
    """End assignments (ConductorAPI.release)."""
    return _end(db, uuids, 'release', _RELEASE, origin, ages={
        uuid: min(max(age, 0), _OLDEST) for uuid, age in ages.items()})


def end(db: api.Database, uuids: Sequence[str], detail: str,
        ) -> inventory_obj.HostInventory | None:
    """End assignments for an operator (Conductor.assignment_end).

    :param detail: who ended them, and why, for the events
    """
    return _end(db, uuids, 'operator_end', _RELEASE, None, detail=detail)


def other_hosts(db: api.Database, uuids: Sequence[str]) -> list[str]:
    """Return the other hosts on which the same instances have devices.

    An instance that moves has devices on two hosts. If Nova deletes the
    instance, it calls the driver on only one of them.
    """
    with db.reader() as session:
        return assignment_db.other_hosts(session, uuids)


def left_hosts(db: api.Database, uuids: Sequence[str]) -> list[str]:
    """Return the other hosts on which instances have devices after a build.

    Each of them knows from Nova whether the instance is still there.

    :param uuids: UUIDs of the assignments that were activated
    """
    with db.reader() as session:
        return assignment_db.other_hosts(
            session, uuids, [claim_obj.ClaimRole.INSTANCE])


def _end(
    db: api.Database,
    uuids: Sequence[str],
    kind: event_rules.Kind,
    events: _Events,
    origin: session_obj.Origin | None,
    fault: str | None = None,
    driver_capacities: report_obj.DriverCapacities | None = None,
    detail: str | None = None,
    ages: Mapping[str, int] = _NO_AGES,
) -> inventory_obj.HostInventory | None:
    """End assignments; skip those that have ended already.

    :param kind: kind of the events that record it
    :param events: events for the device, by its state
    :param ages: see assignment_db.end; only their own host knows
    :returns: None if no such assignment ever existed, or if those of another
        host have ended
    :raises Conflict: a device is in another state
    """
    host_id = host_id_of(db, uuids)
    if host_id is None:
        return None

    def work(session: orm.Session) -> inventory_obj.HostInventory | None:
        [host] = host_db.lock_ids(session, [host_id])
        loaded = capacity.load_host(session, host.id)
        # The UUIDs name one claim, so that a late call ends nothing else. The
        # device of one that ended may be another instance's now.
        ended = [row for row in loaded.rows.assignments if row.uuid in uuids]
        is_own = origin is not None and origin.host == host.name
        if origin is None or is_own:
            sessions.check(host, origin, reported=False)
        else:
            sessions.refuse(host_db.find(session, origin.host), origin,
                            reported=False)
            _check_foreign(ended, events, fault, driver_capacities, origin)
            if not ended:
                return None
        devices = _end_all(
            session, host, ended, kind, events, fault, detail,
            policies={group.rows.id: group.rows.variant.cleaning_policy
                      for group in loaded.groups},
            alive_since=(host.session_began_at if is_own else None),
            ages=ages if is_own else _NO_AGES)
        if driver_capacity.store(session, host, driver_capacities):
            return inventory.refresh(session, host)
        return inventory.refresh(
            session, host, loaded.after(devices, ended=uuids).groups)
    return db.write(work)


def _check_foreign(rows: Iterable[assignment_db.AssignmentRow],
                   events: _Events, fault: str | None,
                   driver_capacities: report_obj.DriverCapacities | None,
                   origin: session_obj.Origin) -> None:
    """Refuse a host that ends assignments of another one.

    The source of a migration that failed ends what was claimed for it. It does
    not know the devices, so they are cleaned.

    :raises NotOwner: it does more than that
    """
    for row in rows:
        if not is_source(row, origin):
            raise sessions.not_owner(origin, f'assignment {row.uuid}')
    if (events != _ABORT_TOUCHED or fault is not None
            or driver_capacities is not None):
        raise sessions.not_owner(origin, 'the state of a device')


def is_source(row: assignment_db.AnyAssignment,
              origin: session_obj.Origin) -> bool:
    """Return whether another host claimed a device for a migration from here.

    Then the caller may end the claim, or confirm the migration.
    """
    return (row.role == claim_obj.ClaimRole.DESTINATION
            and row.source_host == origin.host)


def _end_all(session: orm.Session, host: models.Host,
             rows: Sequence[assignment_db.AssignmentRow],
             kind: event_rules.Kind, events: _Events, fault: str | None = None,
             detail: str | None = None,
             policies: Mapping[int, str] = types.MappingProxyType({}),
             at: datetime.datetime | None = None,
             alive_since: datetime.datetime | None = None,
             ages: Mapping[str, int] = _NO_AGES,
             ) -> list[device_db.DeviceRow]:
    """End assignments of a (locked) host; return their devices afterwards.

    :param policies: cleaning policies by the group's id
    :param at: when they end; None: now
    :param alive_since: when the host, which ends them, began its session
    :param ages: see assignment_db.end
    :raises Conflict: a device is in a state without an event
    """
    if not rows:
        return []
    changes = [
        (row.device, _after(
            row, kind, events, policies.get(row.device.group_id or 0),
            failed=fault is not None))
        for row in rows]
    if fault is not None:
        for row in rows:
            hold_db.add(session, row.device.id, hold.HoldKind.FAILED,
                        cleaning.shortened(fault))
    device_db.swap(session, changes)
    assignment_db.end(
        session, rows, at or clock.utc(session), alive_since, ages)
    event_db.add_all(session, kind, host.name,
                     [(row.device, row) for row in rows], fault or detail,
                     level=logging.WARNING if fault is not None else None)
    if fault is not None:
        for _, now in changes:
            ledger.add(session, host, now, ledger_rules.Verdict.QUARANTINED,
                       reason=cleaning.shortened(fault))
    host_db.changed(host)
    return [now for _, now in changes]


def _after(row: assignment_db.AssignmentRow, kind: str, events: _Events,
           policy: str | None, *, failed: bool) -> device_db.DeviceRow:
    """Return the device of an assignment after its end.

    :param policy: its cleaning policy, which may have become stricter
    :param failed: whether it failed, and is held
    """
    state = device_rules.DeviceState(row.device.state)
    if state not in events:
        raise exception.Conflict(
            kind='assignment', name=row.uuid,
            reason=f'{kind} is not possible for a device in state {state}')
    event = events[state]
    if (event is _Event.ABORT_UNTOUCHED and policy is not None
            and not capacity.is_proven(row.device, policy)):
        event = _Event.RELEASE
    now = device_db.after(row.device, event)
    if now.state == _State.DIRTY:
        now = dataclasses.replace(now, clean_token=row.uuid)
    return dataclasses.replace(
        now, holds=now.holds | {hold.HoldKind.FAILED}) if failed else now


def release_active(session: orm.Session, host: models.Host,
                   row: models.Assignment, *,
                   at: datetime.datetime | None = None,
                   by_host: bool = False) -> None:
    """Release one active assignment in a transaction that locked its host.

    :param at: when it ends; None: now
    :param by_host: its host, where the guest was, says so
    """
    session.flush()
    _end_all(session, host, assignment_db.active(session, [row.uuid]),
             'release', _RELEASE, at=at,
             alive_since=host.session_began_at if by_host else None)
    for changed in (row.device, row):
        session.expire(changed)
