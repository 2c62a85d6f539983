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
"""A host's scan becomes rows: what appeared, changed, went and came back."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor.admin import vgpu_type as vgpu_type_admin
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device_states
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import driver_capacity
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as objects

# What tells one card from another of the same place.
_IDENTITY = ('vendor', 'device', 'subsystem_vendor', 'subsystem', 'serial',
             'dsn')


def report(db: api.Database,
           scan: objects.HostReport) -> inventory_obj.HostInventory:
    """Store a scan (ConductorAPI.report); one that says nothing new writes
    nothing."""
    _check(scan)

    def work(session: orm.Session) -> inventory_obj.HostInventory:
        host = host_db.lock(session, scan.host)
        host = _known(session, host, scan)
        before = host.generation
        problems = json.dumps(scan.problems)
        if host.problems != problems:
            host.problems = problems
            host_db.changed(host)
        _store(session, host, scan)
        variant_matching.apply(session, [host])
        if host.generation == before:
            return inventory.of_host(session, host)
        vgpu_type_admin.sync(session, [host.id])
        host.reported_at = event_db.now()
        return inventory.refresh(session, host)
    return db.write(work)


def _check(scan: objects.HostReport) -> None:
    seen: set[str] = set()
    for function in scan.functions:
        if function.id in seen:
            raise exception.Invalid(
                field='report', value=function.id,
                expected='each stable id once')
        seen.add(function.id)


def _known(session: orm.Session, host: models.Host | None,
           scan: objects.HostReport) -> models.Host:
    """The host's row, made when it reports for the first time.

    :raises Conflict: the host and the node UUID do not belong together
    """
    if host is not None:
        if host.node_uuid != scan.node_uuid:
            raise exception.Conflict(
                kind='host', name=scan.host,
                reason=f'it reported node {host.node_uuid} before and '
                       f'{scan.node_uuid} now; delete the host if it was '
                       f'set up anew')
        if host.node != scan.node:
            host.node = scan.node
            host_db.changed(host)
        return host
    other = session.query(models.Host).filter_by(
        node_uuid=scan.node_uuid, deleted=0).one_or_none()
    if other is not None:
        raise exception.Conflict(
            kind='host', name=scan.host,
            reason=f'node {scan.node_uuid} is reported by host '
                   f'{other.name} already')
    host = models.Host(
        name=scan.host, node=scan.node, node_uuid=scan.node_uuid,
        generation=1 + host_db.last_generation(
            session, scan.host, scan.node_uuid),
        deleted=0, problems='[]')
    session.add(host)
    session.flush()
    return host


def _store(session: orm.Session, host: models.Host,
           scan: objects.HostReport) -> None:
    found = device_db.of_hosts(session, [host.id])
    rows = {row.stable_id: row for row in found if row.kind == 'pci'}
    ours = assignment_db.places(
        session,
        host.id,
        {
            name
            for function in scan.functions
            for name in function.existing_vgpus
        },
    )
    used = {row.stable_id: row.vgpu_type for row in found
            if row.state != device_states.DeviceState.AVAILABLE}
    seen = {}
    for function in scan.functions:
        row = rows.pop(function.id, None)
        if row is None:
            seen[function.id] = _appeared(session, host, function)
        else:
            seen[function.id] = row
            _seen(session, host, row, _told(row, function, ours, used))
    session.flush()
    for function in scan.functions:
        if function.pf in seen:
            seen[function.id].parent_id = seen[function.pf].id
    for row in rows.values():
        if row.present:
            row.present = False
            event_db.add(session, 'missing', host.name, row)
            host_db.changed(host)
    places = {row.id: row.address for row in seen.values()}
    for row in found:
        if row.kind == 'mdev' and row.parent_id in places:
            row.address = places[row.parent_id]


def _told(row: models.Device, function: pci.PCIFunction,
          ours: Mapping[str, str],
          used: Mapping[str, str | None]) -> pci.PCIFunction:
    """What a scan says of a function, without what the conductor knows
    better.

    :param ours: places of mdevs that were made for assignments
    :param used: types of the host's devices that are not available, by
        stable id

    While something is carved out of a card its types may not be told, and
    none at all while a guest has it whole; what holdings made is no news.
    """
    before = device_db.facts(row)
    types = function.vgpu_types
    seats = function.vgpu_mechanism
    if types is None or (
            not types and row.state != device_states.DeviceState.AVAILABLE):
        types, seats = before.vgpu_types, before.vgpu_mechanism
    most = {kind.name: kind.max_instances for kind in before.vgpu_types or ()}
    carved = tuple(
        name for name in function.existing_vgpus if name not in ours
    )
    if (function.pf is not None
            and row.state != device_states.DeviceState.AVAILABLE):
        carved = ()
    told = before.driver_capacity
    if function.driver_capacity is not None:
        told = driver_capacity.newer(
            told, driver_capacity.named(function.driver_capacity, ours), used)
    if told == before.driver_capacity:
        # Said later, but no news.
        told = before.driver_capacity
    return dataclasses.replace(
        function,
        vgpu_mechanism=seats,
        existing_vgpus=carved,
        driver_capacity=told,
        vgpu_types=None
        if types is None
        else tuple(
            dataclasses.replace(kind, max_instances=most.get(kind.name))
            if kind.max_instances is None
            else kind
            for kind in types
        ),
    )


def _appeared(session: orm.Session, host: models.Host,
              function: pci.PCIFunction) -> models.Device:
    row = models.Device(
        uuid=str(uuid.uuid4()), host_id=host.id, stable_id=function.id,
        address=function.address, state=str(
            device_states.DeviceState.AVAILABLE),
        enabled=True, present=True, generation=0, kind='pci',
        vgpu_type=_foreign_type(function),
        facts=device_db.dump_facts(function))
    session.add(row)
    event_db.add(session, 'appeared', host.name, row)
    host_db.changed(host)
    return row


def _foreign_type(function: pci.PCIFunction) -> str | None:
    """The type of a VF that nobody here gave it: its driver's number."""
    return (function.existing_vgpus[0]
            if function.pf is not None and function.existing_vgpus else None)


def _seen(session: orm.Session, host: models.Host, row: models.Device,
          function: pci.PCIFunction) -> None:
    facts = device_db.dump_facts(function)
    if row.present and row.facts == facts:
        return
    swapped = _swapped(device_db.facts(row), function)
    if not row.present:
        event_db.add(session, 'returned', host.name, row)
    row.facts, row.address, row.present = facts, function.address, True
    if row.state == device_states.DeviceState.AVAILABLE:
        row.vgpu_type = _foreign_type(function)
    host_db.changed(host)
    if swapped:
        event_db.add(session, 'swapped', host.name, row, detail=swapped)
        row.reason = swapped
        # Somebody's card was exchanged under the plugin: nothing is known
        # of the new one. A held device keeps its holder.
        if row.state == device_states.DeviceState.AVAILABLE:
            device_db.transition(
                session, row, device_states.DeviceEvent.SUSPECT)


def _swapped(before: pci.PCIFunction, now: pci.PCIFunction) -> str | None:
    """Why the card is another one; an unknown value proves nothing."""
    for name in _IDENTITY:
        old, new = getattr(before, name), getattr(now, name)
        if None not in (old, new) and old != new:
            return f'the card was swapped: {name} was {old}, is {new}'
    return None
