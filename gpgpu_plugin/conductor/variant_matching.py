# SPDX-License-Identifier: Apache-2.0
"""Matching of variants and devices: plan each device's group, then apply it.

The number of queries does not depend on the number of hosts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import unsupported
from gpgpu_plugin.domain import variant as rules


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Group to which a device belongs.

    :ivar variant: name of the group's variant; None: in no group
    :ivar reason: reason why it is in no group
    """

    variant: str | None = None
    reason: str | None = None


def plan(variants: Sequence[rules.Variant],
         devices: Iterable[group_rules.Device],
         current: Mapping[str, str]) -> dict[str, Place]:
    """Return to which group each device of a host belongs.

    An assigned device keeps its group, and so does a GPU that has an assigned
    vGPU. VFs and mdev rows are in the group of their GPU; a VF of a GPU
    without a variant may have a variant of its own.

    :param current: variants of the devices' present groups, by stable id
    :returns: by stable id
    """
    # GPUs before their VFs and mdev rows.
    devices = sorted(devices, key=lambda device: device.parent_id is not None)
    by_id = {device.id: device for device in devices}
    kept = {stable_id for device in devices
            if device.state in device_rules.ASSIGNED_STATES
            for stable_id in (device.id, device.parent_id)}
    places: dict[str, Place] = {}
    for device in devices:
        if device.id in kept and device.id in current:
            places[device.id] = Place(variant=current[device.id])
        else:
            place = _place(
                variants, device, by_id.get(device.parent_id or ''),
                places.get(device.parent_id or '', Place()))
            # One that is assigned is in a guest already (adoption).
            places[device.id] = place if device.id in kept else _supported(
                variants, device, place)
    return places


def _supported(variants: Sequence[rules.Variant], device: group_rules.Device,
               place: Place) -> Place:
    """Return a place, or none if no guest can use the device.

    A GPU with vGPUs is managed for these; nobody gets it as a whole
    (domain.group).
    """
    if (place.variant is None or device.function is None
            or device.vgpus is not None
            # That of a kept GPU, which its VFs share, may be deleted now.
            or next((variant.unsupported_ok for variant in variants
                     if variant.name == place.variant), True)):
        return place
    reason = unsupported.refusal(device.function, place.variant)
    return place if reason is None else Place(reason=reason)


def _place(variants: Sequence[rules.Variant], device: group_rules.Device,
           parent: group_rules.Device | None, of_parent: Place) -> Place:
    """Return to which group a device belongs that need not keep its group."""
    if hold.HoldKind.RETIRED in device.holds:
        return Place(reason='it is retired' if parent is None
                     else 'its GPU is retired')
    if device.function is None:
        return of_parent if of_parent.variant else Place(
            reason='its GPU is unmanaged')
    reason = _unassignable_reason(device)
    if reason is not None:
        return Place(reason=reason)
    if of_parent.variant:
        return of_parent
    # VFs go with their GPU: to whoever it is assigned by, or to nobody.
    reason = _unassignable_reason(parent) if parent is not None else None
    if reason is not None:
        return Place(reason=f'its GPU is unmanaged: {reason}')
    try:
        variant = rules.match(variants, device.function)
    except exception.VariantTie as exc:
        return Place(reason=str(exc))
    if variant is None:
        function = device.function
        return Place(reason=(
            f'no variant for {function.vendor}:{function.device} '
            f'(subsystem {function.subsystem_vendor}:{function.subsystem}, '
            f'revision {function.revision})'))
    return Place(variant=variant.name)


def _unassignable_reason(device: group_rules.Device) -> str | None:
    if device.function is None:
        return None
    return gpu.unassignable_reason(
        device.function,
        device.vgpus.mechanism if device.vgpus is not None else None)


def apply(session: orm.Session, hosts: Sequence[models.Host]) -> None:
    """Move the devices of (locked) hosts into the groups of the plan.

    Those that somebody can get now, and that are in doubt, become dirty.
    Groups that lost their last device are deleted. A variant that is being
    deleted matches nothing.
    """
    variants = {row.name: row for row in variant_db.all(session)}
    values = [variant_db.to_domain(row) for row in variants.values()
              if row.status != rules.Status.DELETING]
    groups: dict[int, dict[str, models.Group]] = {
        host.id: {} for host in hosts}
    for group in group_db.of_hosts(session, list(groups)):
        groups[group.host_id][group.variant.name] = group
    devices: dict[int, list[models.Device]] = {host.id: [] for host in hosts}
    for device in device_db.of_hosts(session, list(devices)):
        devices[device.host_id].append(device)
    holds = hold_db.kinds_of_hosts(session, list(devices))
    defaults = functools.cache(functools.partial(
        variant_db.keep_defaults, session))

    def create(host: models.Host, variant: str) -> models.Group:
        group = _group(host, variants[variant],
                       defaults(variants[variant].id))
        session.add(group)
        return group
    used = {
        host.id: _apply(host, values, functools.partial(create, host),
                        groups[host.id], devices[host.id], holds)
        for host in hosts}
    session.flush()
    for host in hosts:
        for name, group in groups[host.id].items():
            if name not in used[host.id]:
                session.delete(group)
                host_db.changed(host)
    session.flush()
    recleaning.clean_again(session, {host.id: host for host in hosts})


def _apply(host: models.Host, values: Sequence[rules.Variant],
           create: Callable[[str], models.Group],
           groups: dict[str, models.Group],
           devices: Sequence[models.Device],
           holds: Mapping[int, hold_db.Kinds]) -> set[str | None]:
    """Move the devices of a host into their groups.

    :param create: creates the group of a variant
    :param groups: groups by variant; created ones are added
    :param holds: kinds of the holds of devices, by id
    :returns: variants whose groups have a device
    """
    names = {group.id: name for name, group in groups.items()}
    places = plan(
        values, capacity.devices(devices, holds),
        {device.stable_id: names[device.group_id] for device in devices
         if device.group_id in names})
    for device in devices:
        place = places[device.stable_id]
        if place.variant is not None and place.variant not in groups:
            groups[place.variant] = create(place.variant)
            host_db.changed(host)
        _move(host, device, names.get(device.group_id or 0), place, groups)
    return {place.variant for place in places.values()}


def _move(host: models.Host, device: models.Device, before: str | None,
          place: Place, groups: Mapping[str, models.Group]) -> None:
    if before != place.variant:
        device.group = groups[place.variant] if place.variant else None
        device.reason = place.reason
        if device.state == device_rules.DeviceState.DIRTY:
            # Its new variant may have a policy that it can pass.
            device.clean_attempt = None
        host_db.changed(host)
    elif place.variant is None and device.reason != place.reason:
        device.reason = place.reason
        host_db.changed(host)


def _group(host: models.Host, variant: models.Variant,
           defaults: variant_db.Defaults) -> models.Group:
    return models.Group(
        host_id=host.id, variant=variant,
        provider_uuid=naming.provider_uuid(host.node_uuid, variant.name),
        allocation_policy=defaults.allocation_policy,
        types=[models.VGPUType(
            vgpu_type=naming.PASSTHROUGH, listed=True,
            enabled=naming.PASSTHROUGH in defaults.enabled_types)])
