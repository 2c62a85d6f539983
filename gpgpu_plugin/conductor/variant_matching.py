# SPDX-License-Identifier: Apache-2.0
"""Matching of variants and devices: plan each device's group, then apply it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import type_sync
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain import naming
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
            # One that is assigned is in a guest already.
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
    reason = gpu.unsupported_refusal(device.function, place.variant)
    return place if reason is None else Place(reason=reason)


def _place(variants: Sequence[rules.Variant], device: group_rules.Device,
           parent: group_rules.Device | None, of_parent: Place) -> Place:
    """Return to which group a device belongs that need not keep its group."""
    if device_rules.HoldKind.RETIRED in device.holds:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variants:
    """All variants, as a transaction read them.

    :ivar rows: by name
    :ivar changes: those that the host has not made yet
    """

    rows: Mapping[str, variant_db.VariantRow]
    changes: Sequence[variant_db.Change]

    @classmethod
    def load(cls, session: orm.Session, rows: host_rows.HostRows) -> Variants:
        """Return the variants as they are now, for a host."""
        version = rows.host.variants_version
        return cls(
            rows={row.value.name: row for row in variant_db.all(session)},
            changes=variant_db.changes_after(session, version)
            if version < rows.newest_version else ())

    @functools.cached_property
    def matching(self) -> Sequence[rules.Variant]:
        """Return those that match devices; one that is deleted does not."""
        return [row.value for row in self.rows.values() if not row.deleting]


def apply(session: orm.Session,
          rows: host_rows.HostRows) -> host_rows.HostRows:
    """Return the rows of a (locked) host, matched with the variants."""
    return matched(rows, Variants.load(session, rows))


def matched(rows: host_rows.HostRows,
            variants: Variants) -> host_rows.HostRows:
    """Move the devices of a host into the groups of the plan.

    Groups get the types of their GPUs, and those that lost their last device
    are deleted. Devices that somebody can get now, and that are in doubt,
    become dirty.
    """
    rows = type_sync.sync(_match(rows, variants), {
        row.id: row.enabled_types for row in variants.rows.values()})
    if rows.host.variants_version < rows.newest_version:
        rows = _with_settings(rows, variants)
    return holds.clean_again(rows)


def up_to_date(session: orm.Session,
               rows: host_rows.HostRows) -> host_rows.HostRows:
    """Return the rows of a (locked) host with all changes of variants."""
    return rows if rows.host.variants_version >= rows.newest_version else (
        apply(session, rows))


def _with_settings(rows: host_rows.HostRows,
                   variants: Variants) -> host_rows.HostRows:
    """Return the rows with what changed in variants since their version.

    Schedulers predict by the policies of groups what a claim takes, so that
    groups have a copy of that of their variant.
    """
    version = rows.host.variants_version
    rows = changed(rows, variants.changes)
    policies = {row.id: row.value.allocation_policy
                for row in variants.rows.values()}
    for group in rows.bare_groups:
        if group.variant_version > version:
            rows = holds.try_variant_again(rows, group)
    return rows.put_groups([
        group if group.own_policy else dataclasses.replace(
            group, allocation_policy=policies[group.variant_id])
        for group in rows.bare_groups]).change_host(
            variants_version=rows.newest_version)


def changed(rows: host_rows.HostRows, changes: Sequence[variant_db.Change],
            ) -> host_rows.HostRows:
    """Return the rows after changes of all groups of variants."""
    groups = list(rows.bare_groups)
    for change in changes:
        groups = [_changed(group, change)
                  if group.variant_id == change.variant_id else group
                  for group in groups]
    return rows.put_groups(groups) if changes else rows


def _changed(group: host_rows.GroupRows,
             change: variant_db.Change) -> host_rows.GroupRows:
    """Return a group after a change of all groups of its variant."""
    return dataclasses.replace(group, types=[
        dataclasses.replace(row, enabled=change.enabled,
                            listed=row.listed or change.enabled)
        if row.vgpu_type == change.vgpu_type else row
        for row in group.types])


def _match(rows: host_rows.HostRows, variants: Variants) -> host_rows.HostRows:
    """Move the devices of a host into their groups."""
    groups = {group.variant.name: group for group in rows.bare_groups}
    names = {group.id: name for name, group in groups.items()}
    places = plan(
        variants.matching, capacity.devices(rows),
        {device.stable_id: names[device.group_id] for device in rows.devices
         if device.group_id in names})
    used = {place.variant for place in places.values()}
    for name in sorted(filter(None, used - groups.keys())):
        groups[name] = _group(rows.host.node_uuid, variants, name,
                              rows.new_id() - len(groups))
    rows = rows.put(*(
        _moved(device, names.get(device.group_id or 0),
               places[device.stable_id], groups) for device in rows.devices))
    kept = [group for name, group in groups.items()
            if name in used or _has_settings(group, variants.rows[name])]
    return rows if kept == list(rows.bare_groups) else rows.put_groups(kept)


def _has_settings(group: host_rows.GroupRows,
                  variant: variant_db.VariantRow) -> bool:
    """Return whether an operator set something of a group without devices.

    They may return: a scan may find that a host cannot pass any GPU on.
    """
    return not variant.deleting and (
        group.own_policy or group.own_links is not None or any(
            row.enabled != (row.vgpu_type in variant.enabled_types)
            for row in group.types))


def _moved(device: host_rows.Device, before: str | None, place: Place,
           groups: Mapping[str, host_rows.GroupRows]) -> host_rows.Device:
    """Return a device in its group.

    :param before: variant of the group that it was in
    """
    if before == place.variant:
        return device if (
            place.variant is not None or device.reason == place.reason
        ) else dataclasses.replace(device, reason=place.reason)
    return dataclasses.replace(
        device, reason=place.reason,
        group_id=groups[place.variant].id if place.variant else None,
        # Its new variant may have a policy that it can pass.
        clean_attempt=None
        if device.state == device_rules.DeviceState.DIRTY
        else device.clean_attempt)


def _group(node_uuid: str, variants: Variants, name: str,
           id: int) -> host_rows.GroupRows:
    """Return a new group."""
    row = variants.rows[name]
    return host_rows.GroupRows(
        id=id, own_policy=False, own_links=None,
        provider_uuid=naming.provider_uuid(node_uuid, name),
        allocation_policy=row.value.allocation_policy,
        variant_id=row.id, variant=row.value,
        variant_version=row.version, is_deleting=False,
        types=[group_db.VGPUTypeRow(
            id=0, vgpu_type=naming.PASSTHROUGH, listed=True,
            enabled=naming.PASSTHROUGH in row.enabled_types)])
