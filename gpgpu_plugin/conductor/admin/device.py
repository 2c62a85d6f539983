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
"""Devices, as operators see and set them."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.objects import admin as objects

_OF_FUNCTION = ('vendor', 'device', 'subsystem_vendor', 'subsystem',
                'revision', 'class_code', 'driver', 'numa_node',
                'iommu_group', 'slot', 'serial', 'dsn')


def list_all(db: api.Database, host: str | None = None,
             variant: str | None = None, state: str | None = None,
             used_by: str | None = None) -> tuple[objects.DeviceInfo, ...]:
    """Return devices (ConductorAPI.device_list)."""
    if state is not None and state not in device_rules.SHOWN_STATES:
        raise exception.Invalid(
            field='state', value=state,
            expected='one of ' + ', '.join(device_rules.SHOWN_STATES))
    with db.reader() as session:
        if host is not None:
            host_db.get(session, host)
        found = device_db.with_users(session, host, used_by)
        devices = [device for device, _, _ in found]
        # Of the devices of one instance the children are not in the list.
        of_parent = children(devices if used_by is None else
                             device_db.children_of(
                                 session, [device.id for device in devices]))
        parents = device_db.uuids(
            session, [device.parent_id for device in devices])
        infos = [
            _info(device, name, instance, of_parent.get(device.id, ()),
                  parents.get(device.parent_id or 0))
            for device, name, instance in found]
    return tuple(info for info in infos
                 if variant in (None, info.variant)
                 and state in (None, info.shown_state))


def show(db: api.Database, uuid: str) -> objects.DeviceInfo:
    """Return one device.

    :raises NotFound: no such UUID
    """
    with db.reader() as session:
        return _show(session, device_db.get(session, uuid))


def _show(session: orm.Session,
          device: models.Device) -> objects.DeviceInfo:
    assigned = assignment_db.of_device(session, device.id)
    of_parent = children(device_db.children_of(session, [device.id]))
    return _info(
        device, session.get_one(models.Host, device.host_id).name,
        assigned.instance_uuid if assigned else None,
        of_parent.get(device.id, ()),
        device_db.uuids(session, [device.parent_id]).get(
            device.parent_id or 0))


def children(devices: Iterable[models.Device],
             ) -> dict[int, list[models.Device]]:
    """Return the managed VFs and mdev rows by the row id of their parent."""
    found: dict[int, list[models.Device]] = collections.defaultdict(list)
    for device in devices:
        if device.parent_id is not None and device.group_id is not None:
            found[device.parent_id].append(device)
    return found


def shown_state(device: models.Device,
                of_parent: Sequence[models.Device]) -> str:
    """Return the state that operators see, as one word.

    :param of_parent: VFs and mdev rows of the device
    """
    return device_rules.shown_state(
        device.state, enabled=device.enabled, present=device.present,
        managed=device.group_id is not None,
        children=[child.state for child in of_parent])


def _info(device: models.Device, host: str, used_by: str | None,
          of_parent: Sequence[models.Device],
          parent: str | None) -> objects.DeviceInfo:
    function = device_db.pci_function(device)
    return objects.DeviceInfo(
        uuid=device.uuid, host=host, stable_id=device.stable_id,
        address=device.address, state=device.state,
        variant=device.group.variant.name if device.group else None,
        shown_state=shown_state(device, of_parent),
        enabled=device.enabled, kind=device.kind, parent=parent,
        vgpu_type=device.vgpu_type, present=device.present, used_by=used_by,
        reason=device.reason, generation=device.generation,
        **{name: getattr(function, name) for name in _OF_FUNCTION})


def set_(db: api.Database, uuid: str, *,
         enabled: bool) -> objects.DeviceInfo:
    """Enable or disable claims of a device (ConductorAPI.device_set)."""
    host_id = device_db.host_id(db, uuid)

    def work(session: orm.Session) -> objects.DeviceInfo:
        host, device = device_db.lock(session, host_id, uuid)
        if device.kind == device_rules.DeviceKind.MDEV:
            raise exception.Conflict(
                kind='device', name=uuid,
                reason=f'mdev rows cannot be enabled or disabled; do so with '
                       f'the parent GPU {device.address} of {host.name}')
        if device.enabled != enabled:
            device.enabled = enabled
            event_db.add(session, 'enable' if enabled else 'disable',
                         host.name, device)
            host_db.changed(host)
            inventory.refresh(session, host)
        return _show(session, device)
    return db.write(work)
