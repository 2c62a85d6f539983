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
"""Rows of ``devices``: their values, and compare-and-swap of their state."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.domain.vgpu import driver_capacity as driver_capacity_mod
from gpgpu_plugin.objects import codec

T = typing.TypeVar('T')


def pci_function(device: models.Device) -> pci.PCIFunction:
    """Return the PCI function as the last scan of the device read it."""
    return _parsed(device, 'pci_function', device.pci_function,
                   pci.PCIFunction)


def vgpu_capability(device: models.Device,
                    ) -> capability.VGPUCapability | None:
    """Return the stored vGPU capability of the device."""
    if device.vgpu_capability is None:
        return None
    return _parsed(device, 'vgpu_capability', device.vgpu_capability,
                   capability.VGPUCapability)


def driver_capacity(device: models.Device,
                    ) -> driver_capacity_mod.DriverCapacity | None:
    """Return the driver report on the device that applies now."""
    if device.driver_capacity is None:
        return None
    return _parsed(device, 'driver_capacity', device.driver_capacity,
                   driver_capacity_mod.DriverCapacity)


def _parsed(device: models.Device, column: str, text: str,
            kind: type[T]) -> T:
    """Return the value of a JSON column, parsed once."""
    key = f'_parsed_{column}'
    before, value = device.__dict__.get(key, (None, None))
    if text is not before:
        value = codec.from_primitive(kind, json.loads(text))
        device.__dict__[key] = text, value
    return typing.cast(T, value)


def dump(value: object) -> str:
    """Return the form in which values are stored and compared."""
    return json.dumps(codec.to_primitive(value), sort_keys=True)


def set_observed(device: models.Device, function: pci.PCIFunction,
                 vgpus: capability.VGPUCapability | None,
                 driver: driver_capacity_mod.DriverCapacity | None) -> bool:
    """Store what is known about a device after a scan.

    :returns: whether it differs from what was stored
    """
    texts = {'pci_function': dump(function),
             'vgpu_capability': None if vgpus is None else dump(vgpus),
             'driver_capacity': None if driver is None else dump(driver)}
    changed = False
    for column, text in texts.items():
        if getattr(device, column) != text:
            setattr(device, column, text)
            changed = True
    return changed


def of_hosts(session: orm.Session,
             host_ids: Iterable[int]) -> list[models.Device]:
    """Return all devices of hosts, by host and stable id."""
    return list(session.scalars(
        sa.select(models.Device)
        .where(models.Device.host_id.in_(list(host_ids)))
        .order_by(models.Device.host_id, models.Device.stable_id)))


def managed_or_partitioned(session: orm.Session,
                           host_ids: Iterable[int]) -> list[models.Device]:
    """Return the devices of hosts that are in a group or may have a vGPU.

    They are sorted by host and stable id.
    """
    return list(session.scalars(
        sa.select(models.Device)
        .where(models.Device.host_id.in_(list(host_ids)),
               models.Device.group_id.is_not(None)
               | models.Device.vgpu_type.is_not(None))
        .order_by(models.Device.host_id, models.Device.stable_id)))


def children_of(session: orm.Session,
                parent_ids: Iterable[int]) -> list[models.Device]:
    """Return the VFs and mdev rows of devices."""
    return list(session.scalars(
        sa.select(models.Device)
        .where(models.Device.parent_id.in_(list(parent_ids)))))


def to_clean(session: orm.Session, host_id: int) -> list[models.Device]:
    """Return the present devices of a host that are dirty or cleaning.

    A device without a token waits until it is in a group.
    """
    return list(session.scalars(
        sa.select(models.Device)
        .where(models.Device.host_id == host_id, models.Device.present,
               models.Device.clean_token.is_not(None),
               models.Device.state.in_([
                   device_rules.DeviceState.DIRTY,
                   device_rules.DeviceState.CLEANING]))
        .order_by(models.Device.stable_id)))


def with_users(session: orm.Session, host: str | None, used_by: str | None,
               ) -> list[tuple[models.Device, str, str | None]]:
    """Return devices with the names of their hosts and their instances.

    They are sorted by host and stable id.

    :param host: name of the only host
    :param used_by: UUID of the only instance
    """
    query = (
        sa.select(models.Device, models.Host.name,
                  models.Assignment.instance_uuid)
        .join(models.Host, models.Device.host_id == models.Host.id)
        .outerjoin(models.Assignment, sa.and_(
            models.Assignment.device_id == models.Device.id,
            models.Assignment.active == 1))
        .options(orm.selectinload(models.Device.group))
        .order_by(models.Host.name, models.Device.stable_id))
    if host is not None:
        query = query.where(models.Host.name == host)
    if used_by is not None:
        query = query.where(models.Assignment.instance_uuid == used_by)
    return [(device, name, instance)
            for device, name, instance in session.execute(query)]


def uuids(session: orm.Session, ids: Iterable[int | None]) -> dict[int, str]:
    """Return the UUIDs of devices by id."""
    wanted = {device_id for device_id in ids if device_id is not None}
    if not wanted:
        return {}
    return dict(session.execute(
        sa.select(models.Device.id, models.Device.uuid)
        .where(models.Device.id.in_(wanted))).tuples().all())


def leave_groups(session: orm.Session, group_ids: Iterable[int]) -> None:
    """Remove all devices from groups."""
    session.execute(
        sa.update(models.Device)
        .where(models.Device.group_id.in_(list(group_ids)))
        .values(group_id=None))


def delete_of_host(session: orm.Session, host_id: int) -> None:
    """Delete the devices of a host."""
    session.execute(sa.update(models.Device).where(
        models.Device.host_id == host_id).values(parent_id=None))
    session.execute(sa.delete(models.Device).where(
        models.Device.host_id == host_id))


def count_by_variant(session: orm.Session) -> dict[int, int]:
    """Return the number of devices in the groups of each variant, by id."""
    return dict(session.execute(
        sa.select(models.Group.variant_id, sa.func.count())
        .join(models.Device, models.Device.group_id == models.Group.id)
        .group_by(models.Group.variant_id)).tuples().all())


def by_stable_id(session: orm.Session, host_id: int,
                 names: Iterable[str]) -> list[models.Device]:
    """Return devices of a host, by stable id."""
    return list(session.scalars(
        sa.select(models.Device)
        .where(models.Device.host_id == host_id,
               models.Device.stable_id.in_(list(names)))
        .order_by(models.Device.stable_id)))


def in_use(session: orm.Session, host_id: int) -> dict[str, str | None]:
    """Return the types of a host's devices that are not available.

    :returns: by stable id
    """
    return dict(session.execute(
        sa.select(models.Device.stable_id, models.Device.vgpu_type).where(
            models.Device.host_id == host_id,
            models.Device.state != device_rules.DeviceState.AVAILABLE))
        .tuples().all())


def get(session: orm.Session, uuid: str) -> models.Device:
    """Return one device.

    :raises NotFound: no such UUID
    """
    device = session.scalar(
        sa.select(models.Device).where(models.Device.uuid == uuid))
    if device is None:
        raise exception.NotFound(kind='device', name=uuid)
    return device


def host_id(db: api.Database, uuid: str) -> int:
    """Return the id of a device's host, which never changes.

    :raises NotFound: no such device
    """
    with db.reader() as session:
        return get(session, uuid).host_id


def lock(session: orm.Session, host_id: int,
         uuid: str) -> tuple[models.Host, models.Device]:
    """Return a device and its host, locked until the transaction ends.

    Must be the transaction's first statement (see db.api).
    """
    [host] = host_db.lock_ids(session, [host_id])
    return host, get(session, uuid)


def transition(session: orm.Session, device: models.Device,
               event: device_rules.DeviceEvent) -> None:
    """Apply one event to the device, unless another writer was faster.

    :raises InvalidTransition: the state has no such event
    :raises Conflict: another writer changed the row since it was read
    """
    state = device_rules.next_state(
        device_rules.DeviceState(device.state), event)
    session.flush()
    done = session.execute(
        sa.update(models.Device)
        .where(models.Device.id == device.id,
               models.Device.generation == device.generation)
        .values(state=str(state), generation=models.Device.generation + 1)
        .execution_options(synchronize_session=False))
    if done.rowcount != 1:  # type: ignore[attr-defined]
        raise exception.Conflict(
            kind='device', name=device.uuid,
            reason='another process changed it at the same time; try again')
    # What was written is known; reading it again would cost a round trip.
    orm.attributes.set_committed_value(device, 'state', str(state))
    if state is device_rules.DeviceState.AVAILABLE:
        # There is no vGPU any more.
        device.vgpu_type = device.placement_id = None
    orm.attributes.set_committed_value(
        device, 'generation', device.generation + 1)
