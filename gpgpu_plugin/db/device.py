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
"""Rows of ``devices``: their facts, and compare-and-swap of their state."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.domain.vgpu import driver_capacity as driver_capacity_mod
from gpgpu_plugin.objects import codec

T = typing.TypeVar('T')


def pci_function(device: models.Device) -> pci.PCIFunction:
    """Return what the last scan that saw the device said about it."""
    return _parsed(device, 'pci_function', device.pci_function,
                   pci.PCIFunction)


def vgpu_capability(device: models.Device,
                    ) -> capability.VGPUCapability | None:
    """Return what is known of the device's vGPUs."""
    if device.vgpu_capability is None:
        return None
    return _parsed(device, 'vgpu_capability', device.vgpu_capability,
                   capability.VGPUCapability)


def driver_capacity(device: models.Device,
                    ) -> driver_capacity_mod.DriverCapacity | None:
    """Return the driver's report on the device that counts."""
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
    """Store what is known of a device after a scan.

    :returns: whether that differs from what was stored
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
    """All devices of some hosts, by host and stable id."""
    return list(session.scalars(
        sa.select(models.Device)
        .where(models.Device.host_id.in_(list(host_ids)))
        .order_by(models.Device.host_id, models.Device.stable_id)))


def managed_or_carved(session: orm.Session,
                      host_ids: Iterable[int]) -> list[models.Device]:
    """Devices of some hosts that are in a group, or that have a vGPU or may
    have one, by host and stable id."""
    return list(session.scalars(
        sa.select(models.Device)
        .where(models.Device.host_id.in_(list(host_ids)),
               models.Device.group_id.is_not(None)
               | models.Device.vgpu_type.is_not(None))
        .order_by(models.Device.host_id, models.Device.stable_id)))


def by_stable_id(session: orm.Session, host_id: int,
                 names: Iterable[str]) -> list[models.Device]:
    """Devices of a host, by stable id."""
    return list(session.scalars(
        sa.select(models.Device)
        .where(models.Device.host_id == host_id,
               models.Device.stable_id.in_(list(names)))
        .order_by(models.Device.stable_id)))


def in_use(session: orm.Session, host_id: int) -> dict[str, str | None]:
    """Types of a host's devices that are not available, by stable id."""
    return dict(session.execute(
        sa.select(models.Device.stable_id, models.Device.vgpu_type).where(
            models.Device.host_id == host_id,
            models.Device.state != device_rules.DeviceState.AVAILABLE))
        .tuples().all())


def get(session: orm.Session, uuid: str) -> models.Device:
    """One device. :raises NotFound: no such UUID"""
    device = session.scalar(
        sa.select(models.Device).where(models.Device.uuid == uuid))
    if device is None:
        raise exception.NotFound(kind='device', name=uuid)
    return device


def transition(session: orm.Session, device: models.Device,
               event: device_rules.DeviceEvent) -> None:
    """Take the device through one event, if nobody was faster.

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
            reason='it was changed by somebody else; look again')
    # What was written is known; reading it again would cost a round trip.
    orm.attributes.set_committed_value(device, 'state', str(state))
    if state is device_rules.DeviceState.AVAILABLE:
        # Nothing is carved there any more.
        device.vgpu_type = device.placement_id = None
    orm.attributes.set_committed_value(
        device, 'generation', device.generation + 1)
