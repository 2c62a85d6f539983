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
from gpgpu_plugin.domain import device_states
from gpgpu_plugin.domain import pci
from gpgpu_plugin.objects import codec


def facts(device: models.Device) -> pci.PCIFunction:
    """What the last scan that saw the device said of it."""
    text, value = device.__dict__.get('_parsed_facts', (None, None))
    if text is not device.facts:
        value = codec.from_primitive(
            pci.PCIFunction, json.loads(device.facts))
        device.__dict__['_parsed_facts'] = device.facts, value
    return typing.cast(pci.PCIFunction, value)


def dump_facts(function: pci.PCIFunction) -> str:
    """The form in which facts are stored and compared."""
    return json.dumps(codec.to_primitive(function), sort_keys=True)


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
            models.Device.state != device_states.DeviceState.AVAILABLE))
        .tuples().all())


def get(session: orm.Session, uuid: str) -> models.Device:
    """One device. :raises NotFound: no such UUID"""
    device = session.scalar(
        sa.select(models.Device).where(models.Device.uuid == uuid))
    if device is None:
        raise exception.NotFound(kind='device', name=uuid)
    return device


def transition(session: orm.Session, device: models.Device,
               event: device_states.DeviceEvent) -> None:
    """Take the device through one event, if nobody was faster.

    :raises InvalidTransition: the state has no such event
    :raises Conflict: another writer changed the row since it was read
    """
    state = device_states.next_state(
        device_states.DeviceState(device.state), event)
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
    if state is device_states.DeviceState.AVAILABLE:
        # Nothing is carved there any more.
        device.vgpu_type = device.placement_id = None
    orm.attributes.set_committed_value(
        device, 'generation', device.generation + 1)
