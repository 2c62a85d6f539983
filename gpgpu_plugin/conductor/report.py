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

import json
import uuid

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import grouping
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.db import api
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device_states
from gpgpu_plugin.domain import pci
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
        grouping.apply(session, [host])
        if host.generation == before:
            return inventory.of_host(session, host)
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
    host = models.Host(name=scan.host, node=scan.node,
                       node_uuid=scan.node_uuid, generation=1, deleted=0,
                       problems='[]')
    session.add(host)
    session.flush()
    return host


def _store(session: orm.Session, host: models.Host,
           scan: objects.HostReport) -> None:
    rows = {row.stable_id: row
            for row in device_db.of_hosts(session, [host.id])}
    for function in scan.functions:
        row = rows.pop(function.id, None)
        if row is None:
            _appeared(session, host, function)
        else:
            _seen(session, host, row, function)
    for row in rows.values():
        if row.present:
            row.present = False
            event_db.add(session, 'missing', host.name, row)
            host_db.changed(host)


def _appeared(session: orm.Session, host: models.Host,
              function: pci.PCIFunction) -> None:
    row = models.Device(
        uuid=str(uuid.uuid4()), host_id=host.id, stable_id=function.id,
        address=function.address, state=str(
            device_states.DeviceState.AVAILABLE),
        enabled=True, present=True, generation=0,
        facts=device_db.dump_facts(function))
    session.add(row)
    event_db.add(session, 'appeared', host.name, row)
    host_db.changed(host)


def _seen(session: orm.Session, host: models.Host, row: models.Device,
          function: pci.PCIFunction) -> None:
    facts = device_db.dump_facts(function)
    if row.present and row.facts == facts:
        return
    swapped = _swapped(device_db.facts(row), function)
    if not row.present:
        event_db.add(session, 'returned', host.name, row)
    row.facts, row.address, row.present = facts, function.address, True
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
