# SPDX-License-Identifier: Apache-2.0
"""Types of groups as drivers list them, and video RAM of models."""

from __future__ import annotations

import csv
import dataclasses
import importlib.resources
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import vgpu

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
            enabled: Enabled) -> list[group_db.VGPUTypeRow]:
    """Return the types of a group as its GPUs have them."""
    found = value.found_types()
    rows = {row.vgpu_type: row for row in group.types
            if row.listed or row.vgpu_type in found
            or row.vgpu_type == naming.PASSTHROUGH}
    for name in sorted(found.keys() - rows.keys()):
        is_enabled = name in enabled[group.variant_id]
        rows[name] = group_db.VGPUTypeRow(
            id=0, vgpu_type=name, enabled=is_enabled, listed=is_enabled)
    for name, known in found.items():
        rows[name] = dataclasses.replace(rows[name], **{
            field: getattr(known, field) for field in PROPERTIES})
    whole = (video_ram_of_model(value.variant.vendor, value.variant.device)
             or _largest(found.values()))
    for name in {naming.PASSTHROUGH, *filter(
            vgpu.is_of_plain_vfs, found)} & rows.keys():
        rows[name] = dataclasses.replace(
            rows[name], video_ram=video_ram_of_type(name, whole))
    return list(rows.values())


def _largest(types: Iterable[vgpu.VGPUType]) -> int | None:
    """Return the MiB of the largest vGPU type; None: unknown.

    It has all of the GPU's memory, unless the GPU is in MIG mode.
    """
    return max((known.video_ram for known in types if known.video_ram),
               default=None)


# -- Video RAM of GPUs by model, as their manufacturers state it.
#
# It is shown to operators. It is no ``memory_mib`` of a variant, all of which
# a scrub must write: ECC may keep a part of the memory. The size of a BAR is
# no video RAM: it is a power of two, as 128 GiB for 80, or a window of 256
# MiB.
#
# ``video_ram.csv`` has the GiB of models of the shipped catalogue of variants.
# An id that boards of several sizes have is left out. A board with several
# GPUs has so much on each of them.


_TABLE = importlib.resources.files('gpgpu_plugin.conductor') / 'video_ram.csv'
_MIB_PER_GIB = 1024

_OF_MODEL = {
    (row['vendor'], row['device']): int(row['gib']) * _MIB_PER_GIB
    for row in csv.DictReader(
        _TABLE.read_text(encoding='utf-8').splitlines())}


def video_ram_of_model(vendor: str, device: str) -> int | None:
    """Return the MiB of video RAM of a whole GPU; None: not known."""
    return _OF_MODEL.get((vendor, device))


def video_ram_of_type(name: str, whole: int | None) -> int | None:
    """Return the MiB of a type that is the whole GPU, or one of N equal VFs.

    Return None for other types, which have their own.

    :param whole: MiB of the whole GPU; None: not known
    """
    parts = (1 if name == naming.PASSTHROUGH
             else vgpu.count_of_plain_vfs(name))
    return whole // parts if whole and parts else None
