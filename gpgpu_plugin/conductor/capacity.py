# SPDX-License-Identifier: Apache-2.0
"""Rows of groups as values, and their inventory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from collections.abc import Mapping

from sqlalchemy import orm

from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import variant as variant_rules
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import inventory as objects
from gpgpu_plugin.objects import report as report_obj

_MAX_KEPT = 10000
"""Devices whose values are kept in memory, as the texts of their JSON columns
are (db.device)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedGroup:
    """A group, both as rows and as a value for decisions."""

    rows: group_db.GroupRows
    value: group_rules.GroupCapacity

    @classmethod
    def of(cls, rows: group_db.GroupRows) -> LoadedGroup:
        """Return the group that some rows describe."""
        return cls(rows=rows, value=_group(rows))


def groups(rows: host_rows.HostRows) -> list[LoadedGroup]:
    """Return the groups of a host."""
    return [LoadedGroup.of(group) for group in rows.groups]


def load(session: orm.Session, hosts: Iterable[host_db.HostRow],
         ) -> dict[int, list[LoadedGroup]]:
    """Return the groups of hosts, in two statements.

    :returns: by the host's id
    """
    return {host_id: groups(rows) for host_id, rows
            in host_rows.load(session, hosts).items()}


def _group(rows: group_db.GroupRows) -> group_rules.GroupCapacity:
    ids = {device.id: device.stable_id for device in rows.devices}
    return group_rules.GroupCapacity(
        variant=rows.variant, provider_uuid=rows.provider_uuid,
        allocation_policy=request.AllocationPolicy(rows.allocation_policy),
        draining=rows.draining, is_deleting=rows.is_deleting,
        own_links=rows.own_links,
        types=tuple(
            group_rules.OfferedType(
                vgpu_type=row.vgpu_type, enabled=row.enabled,
                listed=row.listed)
            for row in rows.types),
        devices=tuple(device(row, ids) for row in rows.devices),
        foreign_vgpus=tuple(device(row, ids) for row in rows.foreign_vgpus),
        assignments=tuple(
            group_rules.AssignedDevice(
                uuid=row.uuid, instance_uuid=row.instance_uuid,
                vgpu_type=row.vgpu_type, resource_class=row.resource_class,
                allocated=row.allocated)
            for row in rows.assignments))


def must_be_cleaned(row: device_db.DeviceRow, variant: variant_rules.Variant,
                    *, offers_whole: bool) -> bool:
    """Return whether an available device must be cleaned before it is offered.

    A GPU that nobody can get as a whole need not be cleaned for being new, or
    for a policy that became stricter: guests get its vGPUs, whose memory its
    driver manages. If the whole GPU was used, or may have been, they wait for
    its cleaning; one that has mdevs that others made is left alone.

    :param row: of a device in a group
    :param variant: of the group
    :param offers_whole: whether the group offers whole GPUs
    """
    if row.kind == device_rules.DeviceKind.MDEV or (
            # A VF that is away is cleaned when it returns.
            row.parent_id is not None and not row.present):
        return False
    function = device_db.pci_function(row)
    if function.pf is None:
        if gpu_rules.passthrough_refusal(function) is not None:
            return False
        if function.has_vgpus and not function.has_vfs:
            vgpus = device_db.vgpu_capability(row)
            return (row.cleaned_steps == device_db.NOTHING_PASSED
                    and vgpus is not None and not vgpus.existing_vgpus)
        if (function.has_vfs or not offers_whole or (
                not variant.unsupported_ok
                and gpu_rules.unsupported_reason(function) is not None)):
            return row.cleaned_steps == device_db.NOTHING_PASSED
    return not is_proven(row, variant.cleaning_policy)


def required_steps(row: device_db.DeviceRow, policy: str) -> tuple[str, ...]:
    """Return the steps that the cleaning of a device must pass now.

    :param policy: the cleaning policy of its variant
    """
    vgpus = device_db.vgpu_capability(row)
    return cleaning.required(
        policy, row.stable_id, makes_mdevs=vgpus is not None
        and vgpus.mechanism is vgpu.VGPUMechanism.MDEV)


def is_proven(row: device_db.DeviceRow, policy: str) -> bool:
    """Return whether a device has passed all that is required of it now."""
    if row.kind == device_rules.DeviceKind.MDEV and row.cleaned_steps is None:
        # There is nothing yet that anybody could have used.
        return True
    return cleaning.is_proven(
        row.cleaned_steps, required_steps(row, policy))


def devices(rows: host_rows.HostRows) -> list[group_rules.Device]:
    """Return the values of all devices of a host."""
    ids = {row.id: row.stable_id for row in rows.devices}
    return [device(row, ids) for row in rows.devices]


def device(row: device_db.DeviceRow,
           stable_ids: Mapping[int, str]) -> group_rules.Device:
    """Return the value of a device's row.

    :param stable_ids: of possible parents, by the row's id
    """
    return _value(row, stable_ids.get(row.parent_id or 0))


# Most devices of a host are as they were when it was loaded before, and a
# value keeps what was computed from it.
@functools.lru_cache(maxsize=_MAX_KEPT)
def _value(row: device_db.DeviceRow,
           parent_id: str | None) -> group_rules.Device:
    is_pci = row.kind == device_rules.DeviceKind.PCI
    return group_rules.Device(
        id=row.stable_id, parent_id=parent_id,
        kind=device_rules.DeviceKind(row.kind),
        state=device_rules.DeviceState(row.state),
        holds=row.holds, present=row.present,
        is_managed=row.group_id is not None, vgpu_type=row.vgpu_type,
        placement_id=row.placement_id,
        function=device_db.pci_function(row) if is_pci else None,
        vgpus=device_db.vgpu_capability(row),
        driver=device_db.driver_capacity(row))


# -- Inventory of a host's groups: for Placement, and as stored capacities.


TypeRow = group_db.VGPUTypeRow


def with_capacities(rows: host_rows.HostRows,
                    groups: Iterable[LoadedGroup],
                    ) -> host_rows.HostRows:
    """Return the rows with the capacities that the devices give.

    :param groups: those of the rows
    """
    changed = {
        group.rows.id: types for group in groups
        if (types := [with_capacity(group, row) for row in group.rows.types])
        != list(group.rows.types)}
    return rows if not changed else rows.put_groups([
        dataclasses.replace(group, types=changed[group.id])
        if group.id in changed else group for group in rows.bare_groups])


def with_capacity(group: LoadedGroup, row: TypeRow) -> TypeRow:
    """Return the row of a type with the capacity that its devices give."""
    offered = group.value.by_name[row.vgpu_type]
    maxima = group.value.max_instances(offered)
    return dataclasses.replace(
        row, max_vgpu_per_pgpu=max(maxima, default=0),
        max_capacity=sum(maxima),
        remaining_capacity=group.value.available(offered))


def host_inventory(session: orm.Session,
                   host: host_db.HostRow) -> objects.HostInventory:
    """Return the host's inventory."""
    return inventory(host, load(session, [host])[host.id])


def inventory(host: host_db.HostRow, groups: Iterable[LoadedGroup],
              ) -> objects.HostInventory:
    """Return the inventory of a host whose groups are loaded."""
    found = (group_inventory(group.value, host.node) for group in groups)
    return objects.HostInventory(
        host=host.name, node_uuid=host.node_uuid,
        generation=host.generation,
        groups=tuple(group for group in found if group.types))


def group_inventory(group: group_rules.GroupCapacity,
                    node: str) -> objects.GroupInventory:
    """Return the resource provider of a group.

    :param node: name of the root provider
    """
    return objects.GroupInventory(
        variant=group.variant.name,
        provider_name=naming.provider_name(node, group.variant.name),
        provider_uuid=group.provider_uuid,
        traits=tuple(sorted(naming.traits(
            group.variant.name, group.variant.traits))),
        types=tuple(
            objects.TypeInventory(
                resource_class=group.resource_class(offered.vgpu_type),
                total=desired.total, reserved=desired.reserved,
                max_unit=desired.max_unit)
            for offered in group.types if offered.listed
            and (desired := group.desired(offered)) is not None))


# -- vGPU capacity that drivers report, as it is stored.


def with_driver_capacity(session: orm.Session, rows: host_rows.HostRows,
                         reported: report_obj.DriverCapacities | None,
                         ) -> host_rows.HostRows:
    """Return the rows of a host with what the drivers of its GPUs report."""
    if not reported:
        return rows
    places = assignment_db.places(session, rows.host.id, [
        name for report in reported.values() for name in report.existing])
    used = rows.types_in_use
    for stable_id, report in reported.items():
        gpu = rows.by_stable_id.get(stable_id)
        if gpu is not None:
            rows = rows.change(gpu, driver_capacity=device_db.dump(
                vgpu.newer_report(
                    device_db.driver_capacity(gpu),
                    vgpu.with_stable_ids(report, places), used)))
    return rows


def is_driver_report_late(rows: host_rows.HostRows,
                          reported: report_obj.DriverCapacities) -> bool:
    """Return whether one of the reports is older than what is stored."""
    return any(
        (gpu := rows.by_stable_id.get(stable_id)) is not None
        and (stored := device_db.driver_capacity(gpu)) is not None
        and vgpu.is_report_older(report, stored)
        for stable_id, report in reported.items())
