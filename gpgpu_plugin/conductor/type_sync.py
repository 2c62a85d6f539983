# SPDX-License-Identifier: Apache-2.0
"""Synchronization of groups' types with those that drivers list."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import video_ram
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import vgpu_type as vgpu_type_db
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.vgpu import vgpu_type

PROPERTIES = ('video_ram', 'max_heads', 'max_resolution_x',
              'max_resolution_y')
"""Properties of a type that are shown to operators."""


Enabled = Mapping[int, Collection[str]]
"""Types that new groups of variants offer, by the id of the variant."""


def sync(rows: host_rows.HostRows, enabled: Enabled) -> host_rows.HostRows:
    """Make the types of a host's groups those of their GPUs.

    A type that no GPU has any more stays as long as Placement may know it.
    """
    synced = {group.rows.id: _synced(group.rows, group.value, enabled)
              for group in capacity.groups(rows)}
    return rows.put_groups([
        group if synced[group.id] == list(group.types)
        else dataclasses.replace(group, types=synced[group.id])
        for group in rows.bare_groups])


def _synced(group: host_rows.GroupRows, value: group_rules.GroupCapacity,
            enabled: Enabled) -> list[vgpu_type_db.VGPUTypeRow]:
    """Return the types of a group as its GPUs have them."""
    found = value.found_types()
    rows = {row.vgpu_type: row for row in group.types
            if row.listed or row.vgpu_type in found
            or row.vgpu_type == naming.PASSTHROUGH}
    for name in sorted(found.keys() - rows.keys()):
        is_enabled = name in enabled[group.variant_id]
        rows[name] = vgpu_type_db.VGPUTypeRow(
            id=0, vgpu_type=name, enabled=is_enabled, listed=is_enabled)
    for name, known in found.items():
        rows[name] = dataclasses.replace(rows[name], **{
            field: getattr(known, field) for field in PROPERTIES})
    whole = (video_ram.of_model(value.variant.vendor, value.variant.device)
             or _largest(found.values()))
    for name in {naming.PASSTHROUGH, *filter(
            vgpu_type.is_of_plain_vfs, found)} & rows.keys():
        rows[name] = dataclasses.replace(
            rows[name], video_ram=video_ram.of_type(name, whole))
    return list(rows.values())


def _largest(types: Iterable[vgpu_type.VGPUType]) -> int | None:
    """Return the MiB of the largest vGPU type; None: unknown.

    It has all of the GPU's memory, unless the GPU is in MIG mode.
    """
    return max((known.video_ram for known in types if known.video_ram),
               default=None)
