# SPDX-License-Identifier: Apache-2.0
"""The end of assignments, and of their allocations.

Every writing transaction locks its host first.
"""

from __future__ import annotations

import dataclasses
import logging as std_logging
import types
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import event as event_rules
from gpgpu_plugin.domain import ledger as ledger_rules
from gpgpu_plugin.domain import placement
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj

LOG = logging.getLogger(__name__)

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
    origin: report_obj.Origin | None = None,
) -> inventory_obj.HostInventory | None:
    """End claims that were not activated (ConductorAPI.abort)."""
    is_untouched = not touched and fault is None
    return _end(db, uuids, 'abort', {
        _State.PROVISIONING: _Event.ABORT_UNTOUCHED} if is_untouched
        else _ABORT_TOUCHED, origin, fault, driver_capacities)


def release(db: api.Database, uuids: Sequence[str],
            origin: report_obj.Origin | None = None,
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
    origin: report_obj.Origin | None,
    fault: str | None = None,
    driver_capacities: report_obj.DriverCapacities | None = None,
    detail: str | None = None,
    ages: Mapping[str, int] = _NO_AGES,
) -> inventory_obj.HostInventory | None:
    """End assignments; skip those that have ended already.

    :param kind: kind of the events that record it
    :param events: events for the device, by its state
    :param ages: see settle.Ending; only their own host knows
    :returns: None if no such assignment ever existed, or if those of another
        host have ended
    :raises Conflict: a device is in another state
    """
    host_id = host_id_of(db, uuids)
    if host_id is None:
        return None

    def work(session: orm.Session) -> inventory_obj.HostInventory | None:
        [host] = host_db.lock_ids(session, [host_id])
        before = host_rows.load_one(session, host)
        # The UUIDs name one claim, so that a late call ends nothing else. The
        # device of one that ended may be another instance's now.
        ended = [row for row in before.assignments if row.uuid in uuids]
        is_own = origin is not None and origin.host == host.name
        if origin is None or is_own:
            sessions.check(session, host, origin, reported=False)
        else:
            sessions.refuse(host_db.find(session, origin.host), origin,
                            reported=False)
            _check_foreign(ended, events, fault, driver_capacities, origin)
            if not ended:
                return None
        after = _ended(variant_matching.up_to_date(
            session, before), ended, kind, events, fault, detail)
        return settle.settle(
            session, before, capacity.with_driver_capacity(
                session, after, driver_capacities), settle.Ending(
                    alive_since=host.session_began_at,
                    ages=ages) if is_own else settle.NOW)
    return db.write(work)


def _check_foreign(rows: Iterable[assignment_db.AssignmentRow],
                   events: _Events, fault: str | None,
                   driver_capacities: report_obj.DriverCapacities | None,
                   origin: report_obj.Origin) -> None:
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


def is_source(row: assignment_db.AssignmentRow,
              origin: report_obj.Origin) -> bool:
    """Return whether another host claimed a device for a migration from here.

    Then the caller may end the claim, or confirm the migration.
    """
    return (row.role == claim_obj.ClaimRole.DESTINATION
            and row.source_host == origin.host)


def released(rows: host_rows.HostRows,
             ended: Sequence[assignment_db.AssignmentRow],
             ) -> host_rows.HostRows:
    """Return the rows of a host after the release of assignments."""
    return _ended(rows, ended, 'release', _RELEASE)


def _ended(rows: host_rows.HostRows,
           ended: Sequence[assignment_db.AssignmentRow],
           kind: event_rules.Kind, events: _Events, fault: str | None = None,
           detail: str | None = None) -> host_rows.HostRows:
    """Return the rows of a host after the end of assignments.

    :param fault: that of their devices, which are held
    :raises Conflict: a device is in a state without an event
    """
    for row in ended:
        rows = _after(rows, row, kind, events)
        if fault is not None:
            # Its cleaning is requested by the assignment as of any other.
            reason = cleaning.shortened(fault)
            rows = rows.hold(
                row.device, device_rules.HoldKind.FAILED, reason).record(
                    rows.now(row.device), ledger_rules.Verdict.QUARANTINED,
                    reason)
    return rows.end({row.uuid for row in ended}).note(
        kind, ended, fault or detail,
        level=std_logging.WARNING if fault is not None else None)


def _after(rows: host_rows.HostRows, row: assignment_db.AssignmentRow,
           kind: str, events: _Events) -> host_rows.HostRows:
    """Return the rows with the device of an assignment after its end."""
    state = device_rules.DeviceState(row.device.state)
    if state not in events:
        raise exception.Conflict(
            kind='assignment', name=row.uuid,
            reason=f'{kind} is not possible for a device in state {state}')
    event = events[state]
    return rows.apply(row.device, event, **(
        {'clean_token': row.uuid} if event is _Event.RELEASE else {}))


# -- Which assignments an allocation in Placement still covers.
#
# After a rebuild, a confirmation or a failed migration Nova removes
# allocations whose devices stay assigned to the instance. What a group
# reserves must then cover these devices, or Placement offers them again.


Allocations = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Units by provider UUID, consumer UUID and resource class."""


def compare_allocations(db: api.Database, host_name: str,
                        allocations: Allocations,
                        assignments: Iterable[str], number: int = 0,
                        origin: report_obj.Origin | None = None,
                        used: Collection[str] = (),
                        ) -> inventory_obj.HostInventory:
    """Store what Placement says (ConductorAPI.compare_allocations).

    :param number: counts the comparisons of the origin's session; one that
        was overtaken by a newer one is not stored
    :param used: UUIDs of assignments whose usage goes on, whatever host has
        begun another usage of their instances
    """
    known = set(assignments)
    with db.reader() as session:
        host_id = host_db.get(session, host_name).id

    def work(session: orm.Session) -> inventory_obj.HostInventory:
        [host] = host_db.lock_ids(session, [host_id])
        sessions.check(session, host, origin)
        if origin is not None and number <= host.comparison_number:
            return capacity.host_inventory(session, host)
        _resume_usage(session, host, used)
        return settle.change(session, host, lambda rows: _compared(
            rows if origin is None
            else rows.change_host(comparison_number=number),
            allocations, known))
    return db.write(work)


def _compared(rows: host_rows.HostRows, allocations: Allocations,
              known: Collection[str]) -> host_rows.HostRows:
    """Return the rows with what Placement says of some assignments.

    :param known: UUIDs of those that the host knew when it asked
    """
    for group in capacity.groups(rows):
        found = allocations.get(group.value.provider_uuid)
        if found is None:
            continue
        covered = placement.coverage_of(group.value.assignments, found).covered
        for row in group.rows.assignments:
            is_covered = row.uuid in covered
            if row.uuid in known and row.allocated != is_covered:
                rows = rows.put_assignments(dataclasses.replace(
                    row, allocated=is_covered)).note(
                        'allocation_found' if is_covered
                        else 'allocation_lost', [row])
    return rows


def _resume_usage(session: orm.Session, host: host_db.HostRow,
                  used: Collection[str]) -> None:
    resumed = usage_db.resume(session, host.id, used) if used else []
    if resumed:
        LOG.warning(
            'Instances %s still use their devices on %s, although they began '
            'to use devices on another host: an evacuation is not complete or '
            'failed, or the other host claimed for instances that are not '
            'there. Their usage on %s goes on; "gpgpu-manage event list '
            '--instance" names the other host', ', '.join(resumed), host.name,
            host.name)
