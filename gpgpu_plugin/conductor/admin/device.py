# SPDX-License-Identifier: Apache-2.0
"""Devices and their holds, as operators see and set them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import holds as holds_mod
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import host as host_mod
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import health as health_rules
from gpgpu_plugin.domain import variant as variant_rules
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import admin as objects

_OF_FUNCTION = ('vendor', 'device', 'subsystem_vendor', 'subsystem',
                'revision', 'class_code', 'driver', 'numa_node',
                'iommu_group', 'slot', 'serial', 'dsn')


def list_all(db: api.Database, host: str | None = None,
             variant: str | None = None, state: str | None = None,
             used_by: str | None = None, *, project: str | None = None,
             type: str | None = None, vgpu_type: str | None = None,
             health: str | None = None, faulty: bool = False,
             include_retired: bool = False,
             limit: int = objects.PAGE_SIZE, marker: str | None = None,
             silent_after: float | None = None,
             ) -> tuple[objects.DeviceInfo, ...]:
    """Return a page of devices (Conductor.device_list).

    :param silent_after: see conductor.admin.host
    """
    _check_known('state', state, device_rules.SHOWN_STATES)
    _check_known('type', type, variant_rules.TYPES)
    _check_known('health', health, tuple(health_rules.Health))
    with db.reader() as session:
        if host is not None:
            host_db.get(session, host)
        if variant is not None:
            variant_db.get(session, variant)
        states = host_mod.HostStates(session, silent_after)
        found = device_db.listed(
            session, host=host, variant=variant, state=state,
            used_by=used_by, project=project, type=type, vgpu_type=vgpu_type,
            health=health, faulty=faulty, include_retired=include_retired,
            limit=pages.size(limit), marker=marker)
        partitions = _all_partitions(session, [
            device.row for device in found])
        reasons = _reasons(session, found)
        held = hold_db.of_rows(session, [device.row for device in found])
        return tuple(dataclasses.replace(
            _info(device, states, reasons, held),
            link_partitions=partitions.get(device.row.id, ()))
            for device in found)


def _all_partitions(session: orm.Session, rows: Sequence[device_db.DeviceRow],
                    ) -> dict[int, tuple[str, ...]]:
    """Return the names of the link partitions of devices, by their id.

    Only hosts that have some are read.
    """
    linked = group_db.with_link_tables(session, {
        row.group_id for row in rows if row.group_id is not None})
    hosts = {row.host_id for row in rows if row.group_id is not None and (
        row.group_id in linked or device_db.pci_function(row).hive)}
    groups = {group.rows.id: group.value
              for of_host in capacity.load(
                  session, host_db.by_ids(session, hosts)).values()
              for group in of_host} if hosts else {}
    return {row.id: groups[row.group_id].partitions_of(row.stable_id)
            for row in rows if row.group_id in groups}


def _check_known(field: str, value: str | None,
                 known: Sequence[str]) -> None:
    """Refuse a value that no device can have; the list would be empty.

    :raises Invalid: it is none of those that there are
    """
    if value is not None and value not in known:
        raise exception.Invalid(
            field=field, value=value, expected='one of ' + ', '.join(known))


def show(db: api.Database, uuid: str, *,
         silent_after: float | None = None) -> objects.DeviceInfo:
    """Return one device.

    :raises NotFound: no such UUID
    """
    with db.reader() as session:
        found = device_db.get_listed(session, uuid)
        before = device_db.replaced(session, found.row)
        return dataclasses.replace(
            _info(found, host_mod.HostStates(session, silent_after),
                  _reasons(session, [found]),
                  hold_db.of_rows(session, [found.row])),
            replaces=before.uuid if before else None,
            link_partitions=_all_partitions(
                session, [found.row]).get(found.row.id, ()))


def _reasons(session: orm.Session,
             devices: Sequence[device_db.ListedDevice]) -> dict[str, str]:
    """Return why devices are not cleaned yet or not offered, by UUID."""
    gpus = {device.row.id: device.row.uuid for device in devices
            if device_db.pci_function(device.row).has_vfs}
    foreign: dict[str, list[str]] = collections.defaultdict(list)
    for uuid, row in (
            *((device.row.uuid, device.row) for device in devices),
            *((gpus[row.parent_id or 0], row) for row in (
                device_db.vfs_with_types(session, gpus) if gpus else ()))):
        vgpus = device_db.vgpu_capability(row)
        if vgpus is not None:
            is_mdev = vgpus.mechanism is vgpu.VGPUMechanism.MDEV
            foreign[uuid] += [
                f'mdev {name}' if is_mdev else f'type {name} of {row.address}'
                for name in vgpus.existing_vgpus]
    of_vfs = device_db.of_ids(session, {
        device.row.parent_id for device in devices
        if device.row.parent_id is not None
        and device.row.state == device_rules.DeviceState.DIRTY})
    waiting = {
        device.row.uuid: withdrawal.remove_vfs_advice(device.host, gpu)
        for device in devices
        if device.row.state == device_rules.DeviceState.DIRTY
        and (gpu := of_vfs.get(device.row.parent_id or 0)) is not None
        and device_db.waits_for_vfs(gpu)}
    return waiting | {
        uuid: f'vGPUs that gpgpu_plugin did not make are on it: '
              f'{", ".join(found)}'
        for uuid, found in foreign.items() if found
    }


def _info(device: device_db.ListedDevice, states: host_mod.HostStates,
          reasons: Mapping[str, str],
          holds: Mapping[int, Sequence[hold_db.Hold]]) -> objects.DeviceInfo:
    row = device.row
    found = holds[row.id]
    function = device_db.pci_function(row)
    return objects.DeviceInfo(
        uuid=row.uuid, host=device.host,
        # A retired one may have given up its place.
        stable_id=(function.id if device.own_state == device_rules.RETIRED
                   else row.stable_id),
        address=row.address, state=device.own_state, variant=device.variant,
        shown_state=device.shown_state, kind=row.kind,
        enabled=all(held.kind != device_rules.HoldKind.DISABLED
                    for held in found),
        holds=tuple(map(hold_db.described, found)),
        parent=device.parent, vgpu_type=row.vgpu_type, present=row.present,
        used_by=device.used_by, project_id=device.project_id,
        type=device.type, replaced_by=row.replaced_by,
        companions=function.companions,
        reason=(_reason(row, device.host, found, reasons.get(row.uuid))
                or function.fault),
        generation=row.generation,
        health=row.health, health_reason=row.health_reason,
        errors=device_db.errors(row), host_state=states.of(device.host),
        **{name: getattr(function, name) for name in _OF_FUNCTION})


def _reason(row: device_db.DeviceRow, host_name: str,
            held: Sequence[hold_db.Hold], other: str | None) -> str | None:
    """Return why a device is held, waits or is not used.

    :param held: its holds, and those of its GPU
    :param other: another reason, such as vGPUs that others made
    """
    reasons = [hold_db.texts(held)]
    if row.awaits_replacement:
        reasons.append('the next card in its place replaces it')
    if any(reasons):
        return '; '.join(filter(None, reasons))
    if other is not None:
        return other
    if device_db.waits_for_vfs(row):
        return withdrawal.remove_vfs_advice(host_name, row)
    return row.reason or holds_mod.first_cleaning_reason(row)


def set_(db: api.Database, uuid: str, actor: str, *, enabled: bool,
         reason: str | None = None) -> None:
    """Enable or disable claims of a device (Conductor.hold_add)."""
    withdrawal.change(db, uuid, lambda rows, device: with_enabled(
        rows, device, actor, enabled=enabled, reason=reason))


def with_enabled(before: host_rows.HostRows, device: host_rows.Device,
                 actor: str, *, enabled: bool,
                 reason: str | None) -> host_rows.HostRows:
    """Return the rows of a host with a device that is enabled, or disabled.

    A GPU stands for its VFs, of which one may have been disabled by itself.
    """
    kind = device_rules.HoldKind.DISABLED
    withdrawal.check_no_mdev(
        before, device, 'enabled' if enabled else 'disabled')
    gpu = before.gpu_of(device)
    if enabled and gpu is not device and kind in before.holds_of(gpu):
        raise withdrawal.refused(before, device, (
            f'it cannot be enabled: its GPU {gpu.address} is disabled; '
            f'name the GPU, {gpu.uuid}'))
    parts = before.with_vfs(device) if enabled else [device]
    changed = [part for part in parts
               if (kind in before.holds_of(part)) is enabled]
    rows = before
    for part in changed:
        rows = holds_mod.remove(rows, part, [kind], actor)[0] if (
            enabled) else holds_mod.add(rows, part, kind, reason, actor)
    return rows.note('enable' if enabled else 'disable', changed, reason)


# -- Holds, as operators see, add and remove them.


def list_holds(db: api.Database, host: str | None = None,
               kind: str | None = None, limit: int = objects.PAGE_SIZE,
               marker: str | None = None) -> tuple[objects.HoldInfo, ...]:
    """Return a page of holds, the oldest first (Conductor.hold_list)."""
    if kind is not None:
        _check_kind(kind, device_rules.HOLD_KINDS)
    after = pages.number(marker, 'a hold') if marker is not None else 0
    with db.reader() as session:
        if host is not None:
            host_db.get(session, host)
        return tuple(
            objects.HoldInfo(
                id=found.id, host=name, address=address, device=device,
                kind=found.kind, since=hold_db.at(found), actor=found.actor,
                reason=found.reason)
            for name, address, device, found in hold_db.listed(
                session, host, kind, pages.size(limit), after))


def add_hold(db: api.Database, uuid: str, kind: str, reason: str | None,
             actor: str) -> None:
    """Hold a device (Conductor.hold_add)."""
    match _kind(kind, device_rules.BY_OPERATORS):
        case device_rules.HoldKind.QUARANTINED:
            withdrawal.quarantine(db, uuid, reason or '', actor)
        case device_rules.HoldKind.RETIRED:
            retirement.retire(db, uuid, reason, actor)
        case _:
            if reason is not None:
                withdrawal.check_reason(reason)
            set_(db, uuid, actor, enabled=False, reason=reason)


def remove_hold(db: api.Database, uuid: str, kinds: Sequence[str],
                actor: str) -> None:
    """Remove holds of a device (Conductor.hold_remove)."""
    known = {_kind(kind, tuple(device_rules.HoldKind)) for kind in kinds}
    withdrawing = known & device_rules.WITHDRAWING

    def rule(rows: host_rows.HostRows,
             device: host_rows.Device) -> host_rows.HostRows:
        if withdrawing:
            rows = _released(rows, device, actor, withdrawing)
        return with_enabled(
            rows, rows.now(device), actor, enabled=True, reason=None,
        ) if device_rules.HoldKind.DISABLED in known else rows
    withdrawal.change(db, uuid, rule)


def release_device(db: api.Database, uuid: str, actor: str) -> None:
    """Have a device cleaned, without holds (Conductor.device_release)."""
    def rule(rows: host_rows.HostRows,
             device: host_rows.Device) -> host_rows.HostRows:
        if any(device_rules.is_withdrawn(part.holds)
               for part in (device, *rows.children(device))):
            return _released(rows, device, actor, device_rules.WITHDRAWING)
        return withdrawal.cleaned(rows, device)
    withdrawal.change(db, uuid, rule)


def _released(rows: host_rows.HostRows, device: host_rows.Device, actor: str,
              kinds: Collection[device_rules.HoldKind]) -> host_rows.HostRows:
    return (retirement.reinstate if device_rules.HoldKind.RETIRED in kinds
            and device_rules.HoldKind.RETIRED in device.holds
            else withdrawal.release)(rows, device, actor, kinds)


def _kind(kind: str,
          allowed: Sequence[device_rules.HoldKind]) -> device_rules.HoldKind:
    """Return a kind by its name.

    :raises Invalid: it is none of those that are allowed
    """
    _check_kind(kind, allowed)
    return device_rules.HoldKind(kind)


def _check_kind(kind: str, allowed: Sequence[str]) -> None:
    if kind not in allowed:
        raise exception.Invalid(
            field='kind', value=kind,
            expected='one of ' + ', '.join(allowed))
