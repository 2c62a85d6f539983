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
"""Variants applied to a host's devices: the group of each, or why none."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import device_states
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import variant as rules

_HELD = (device_states.DeviceState.PROVISIONING,
         device_states.DeviceState.ASSIGNED)


def apply(session: orm.Session, host: models.Host,
          variants: Sequence[rules.Variant]) -> None:
    """Bring the (locked) host's devices into their groups.

    A held device keeps its group. Groups that lost their last device go.
    """
    groups = {
        group.variant.name: group
        for group in session.scalars(sa.select(models.Group).where(
            models.Group.host_id == host.id))}
    for device in device_db.of_host(session, host.id):
        if device.state in _HELD and device.group_id is not None:
            continue
        name, reason = _match(variants, device)
        group = None
        if name is not None:
            group = groups.get(name) or _create(session, host, name)
            groups[name] = group
        _move(host, device, group, reason)
    session.flush()
    for group in groups.values():
        if not session.scalar(sa.select(models.Device.id).where(
                models.Device.group_id == group.id).limit(1)):
            session.delete(group)
            host_db.changed(host)
    session.flush()


def _match(variants: Sequence[rules.Variant],
           device: models.Device) -> tuple[str | None, str | None]:
    """Name of the device's variant, or the reason why it has none."""
    facts = device_db.facts(device)
    if facts.fault:
        return None, facts.fault
    try:
        variant = rules.match(variants, facts)
    except exception.VariantTie as exc:
        return None, str(exc)
    if variant is None:
        return None, (f'no variant for {facts.vendor}:{facts.device} '
                      f'(subsystem {facts.subsystem_vendor}:'
                      f'{facts.subsystem}, revision {facts.revision})')
    return variant.name, None


def _move(host: models.Host, device: models.Device,
          group: models.Group | None, reason: str | None) -> None:
    group_id = group.id if group is not None else None
    if device.group_id != group_id:
        # Leaving or joining clears the reason; why it is quarantined stays.
        device.group_id = group_id
        if device.state != device_states.DeviceState.QUARANTINED:
            device.reason = reason
        host_db.changed(host)
    elif group_id is None and device.reason != reason:
        device.reason = reason
        host_db.changed(host)


def _create(session: orm.Session, host: models.Host,
            name: str) -> models.Group:
    group = models.Group(
        host_id=host.id, variant=variant_db.get(session, name),
        provider_uuid=naming.provider_uuid(host.node_uuid, name),
        allocation_policy='depth_first',
        types=[models.VGPUType(vgpu_type=naming.PASSTHROUGH)])
    session.add(group)
    session.flush()
    host_db.changed(host)
    return group
