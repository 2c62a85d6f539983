# SPDX-License-Identifier: Apache-2.0
"""Inventory of a host's groups: for Placement, and as stored capacities."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import vgpu_type as vgpu_type_db
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.objects import inventory as objects

TypeRow = vgpu_type_db.VGPUTypeRow


def with_capacities(rows: host_rows.HostRows,
                    groups: Iterable[capacity.LoadedGroup],
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


def with_capacity(group: capacity.LoadedGroup, row: TypeRow) -> TypeRow:
    """Return the row of a type with the capacity that its devices give."""
    offered = group.value.by_name[row.vgpu_type]
    maxima = group.value.max_instances(offered)
    return dataclasses.replace(
        row, max_vgpu_per_pgpu=max(maxima, default=0),
        max_capacity=sum(maxima),
        remaining_capacity=group.value.available(offered))


def of_host(session: orm.Session,
            host: host_db.HostRow) -> objects.HostInventory:
    """Return the host's inventory."""
    return inventory(host, capacity.load(session, [host])[host.id])


def inventory(host: host_db.HostRow, groups: Iterable[capacity.LoadedGroup],
              ) -> objects.HostInventory:
    """Return the inventory of a host whose groups are loaded."""
    found = (of_group(group.value, host.node) for group in groups)
    return objects.HostInventory(
        host=host.name, node_uuid=host.node_uuid,
        generation=host.generation,
        groups=tuple(group for group in found if group.types))


def of_group(group: group_rules.GroupCapacity,
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
