#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""The end of assignments: by abort before a guest ran, by release after.

Each function is one transaction that locks its host first.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import driver_capacity
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.objects import session as session_obj

_Event = device_rules.DeviceEvent
_State = device_rules.DeviceState
_Events = Mapping[device_rules.DeviceState, device_rules.DeviceEvent]

_RELEASE: _Events = {
    _State.PROVISIONING: _Event.ABORT_TOUCHED,
    _State.ASSIGNED: _Event.RELEASE}


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
    if fault is not None:
        event = _Event.FAULT
    else:
        event = _Event.ABORT_TOUCHED if touched else _Event.ABORT_UNTOUCHED
    return _end(db, uuids, 'abort', {_State.PROVISIONING: event}, origin,
                fault, driver_capacities)


def release(db: api.Database, uuids: Sequence[str],
            origin: session_obj.Origin | None = None,
            ) -> inventory_obj.HostInventory | None:
    """End assignments (ConductorAPI.release)."""
    return _end(db, uuids, 'release', _RELEASE, origin)


def end(db: api.Database, uuids: Sequence[str], detail: str,
        ) -> inventory_obj.HostInventory | None:
    """End assignments for an operator (Conductor.assignment_end).

    :param detail: who ended them, and why, for the events
    """
    return _end(db, uuids, 'operator_end', _RELEASE, None, detail=detail)


def other_hosts(db: api.Database, uuids: Sequence[str]) -> list[str]:
    """Return the other hosts on which the same instances have devices.

    An instance that moves has devices on two hosts. If Nova deletes it, it
    calls the driver on one of them only.
    """
    with db.reader() as session:
        return assignment_db.other_hosts(session, uuids)


def _end(
    db: api.Database,
    uuids: Sequence[str],
    kind: str,
    events: _Events,
    origin: session_obj.Origin | None,
    fault: str | None = None,
    driver_capacities: report_obj.DriverCapacities | None = None,
    detail: str | None = None,
) -> inventory_obj.HostInventory | None:
    """End assignments; skip those that have ended already.

    :param kind: kind of the events that record it
    :param events: events for the device, by its state
    :returns: None if no such assignment ever existed
    :raises Conflict: a device is in another state
    """
    host_id = host_id_of(db, uuids)
    if host_id is None:
        return None

    def work(session: orm.Session) -> inventory_obj.HostInventory:
        [host] = host_db.lock_ids(session, [host_id])
        if origin is not None and origin.host == host.name:
            sessions.check(host, origin, reported=False)
        # The source of a migration ends what was claimed here for it. The
        # UUIDs name one claim, so that a late call ends nothing else.
        for row in assignment_db.by_uuid(session, uuids):
            # The device of one that ended may be another instance's now.
            if row.active:
                _end_one(session, host, row, kind, events, fault, detail)
        driver_capacity.store(session, host, driver_capacities)
        return inventory.refresh(session, host)
    return db.write(work)


def _end_one(session: orm.Session, host: models.Host,
             row: models.Assignment, kind: str, events: _Events,
             fault: str | None, detail: str | None = None) -> None:
    device = row.device
    state = device_rules.DeviceState(device.state)
    if state not in events:
        raise exception.Conflict(
            kind='assignment', name=row.uuid,
            reason=f'{kind} is not possible for a device in state {state}')
    device_db.transition(session, device, events[state])
    if device.state == _State.DIRTY:
        device.clean_token = row.uuid
    if fault is not None:
        device.reason = fault
    row.active = None
    row.lease_expires_at = None
    row.ended_at = event_db.now()
    event_db.add(session, kind, host.name, device, row, fault or detail)
    host_db.changed(host)


def release_active(session: orm.Session, host: models.Host,
                   row: models.Assignment) -> None:
    """Release an active assignment in a transaction that locked its host.

    :raises Conflict: the device is neither provisioning nor assigned
    """
    _end_one(session, host, row, 'release', _RELEASE, None)
