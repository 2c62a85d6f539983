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
"""Variants applied to devices: the group of each, or why none.

All hosts of a cloud at once cost as many queries as one host.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import variant as rules

_HELD = (device_rules.DeviceState.PROVISIONING,
         device_rules.DeviceState.ASSIGNED)


def apply(session: orm.Session, hosts: Sequence[models.Host]) -> None:
    """Bring the (locked) hosts' devices into their groups.

    A held device keeps its group, and so does a card of which something is
    held. What is carved out of a card is in the card's group; a VF of a card
    that has no variant may have one of its own. Groups that lost their last
    device go.
    """
    rows = {row.name: row for row in variant_db.all(session)}
    variants = [variant_db.to_domain(row) for row in rows.values()]
    by_id = {host.id: host for host in hosts}
    groups = {
        (group.host_id, group.variant.name): group
        for group in session.scalars(
            sa.select(models.Group)
            .where(models.Group.host_id.in_(by_id))
            .options(orm.selectinload(models.Group.types)))}
    present = {group.id: group for group in groups.values()}
    # Cards before what is carved out of them.
    devices = sorted(device_db.of_hosts(session, by_id),
                     key=lambda device: device.parent_id is not None)
    held = {id_ for device in devices if device.state in _HELD
            for id_ in (device.id, device.parent_id)}
    cards = {device.id: device for device in devices}
    placed: dict[int, models.Group | None] = {}
    for device in devices:
        group = present.get(device.group_id or 0)
        if device.id not in held or group is None:
            host = by_id[device.host_id]
            before = group
            group, reason = placed.get(device.parent_id or 0), None
            if group is None:
                name, reason = _match(
                    variants, device, cards.get(device.parent_id or 0))
                if name is not None:
                    key = host.id, name
                    if key not in groups:
                        groups[key] = _create(session, host, rows[name])
                    group = groups[key]
            elif unassignable_reason := _unassignable_reason(device):
                group, reason = None, unassignable_reason
            _move(host, device, before, group, reason)
        placed[device.id] = group
    session.flush()
    for group in groups.values():
        if group not in placed.values():
            session.delete(group)
            host_db.changed(by_id[group.host_id])
    session.flush()


def _match(variants: Sequence[rules.Variant], device: models.Device,
           parent: models.Device | None) -> tuple[str | None, str | None]:
    """Name of the device's variant, or the reason why it has none.

    :param parent: its card, which has no group
    """
    function = device_db.pci_function(device)
    if device.kind == 'mdev':
        return None, 'its card is unmanaged'
    unassignable_reason = _unassignable_reason(device)
    if unassignable_reason is not None:
        return None, unassignable_reason
    if parent is not None:
        # VFs go with their card: to whom it is given, or nowhere.
        unassignable_reason = _unassignable_reason(parent)
        if unassignable_reason is not None:
            return None, f'its card is unmanaged: {unassignable_reason}'
    try:
        variant = rules.match(variants, function)
    except exception.VariantTie as exc:
        return None, str(exc)
    if variant is None:
        return None, (f'no variant for {function.vendor}:{function.device} '
                      f'(subsystem {function.subsystem_vendor}:'
                      f'{function.subsystem}, revision {function.revision})')
    return variant.name, None


def _unassignable_reason(device: models.Device) -> str | None:
    vgpus = device_db.vgpu_capability(device)
    return gpu.unassignable_reason(
        device_db.pci_function(device),
        vgpus.mechanism if vgpus is not None else None)


def _move(host: models.Host, device: models.Device,
          before: models.Group | None, group: models.Group | None,
          reason: str | None) -> None:
    if before is not group:
        # Leaving or joining clears the reason; why it is quarantined stays.
        device.group = group
        if device.state != device_rules.DeviceState.QUARANTINED:
            device.reason = reason
        host_db.changed(host)
    elif group is None and device.reason != reason:
        device.reason = reason
        host_db.changed(host)


def _create(session: orm.Session, host: models.Host,
            variant: models.Variant) -> models.Group:
    group = models.Group(
        host_id=host.id, variant=variant,
        provider_uuid=naming.provider_uuid(host.node_uuid, variant.name),
        allocation_policy='depth_first',
        types=[models.VGPUType(
            vgpu_type=naming.PASSTHROUGH, listed=True,
            enabled=naming.PASSTHROUGH in variant_db.enabled_types(variant))])
    session.add(group)
    host_db.changed(host)
    return group
