# SPDX-License-Identifier: Apache-2.0
"""Synchronization of groups' types with those that drivers list."""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import video_ram
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.vgpu import vgpu_type

PROPERTIES = ('video_ram', 'max_heads', 'max_resolution_x',
              'max_resolution_y')
"""Properties of a type that are shown to operators."""


def sync(session: orm.Session, host_ids: Sequence[int]) -> None:
    """Make the types of (locked) hosts' groups those of their GPUs.

    A type that no GPU has any more stays as long as Placement may know it.
    """
    rows = {row.id: row for row in group_db.of_hosts(session, host_ids)}
    defaults = functools.cache(functools.partial(
        variant_db.keep_defaults, session))
    for groups in capacity.load(session, host_ids).values():
        for group in groups:
            _sync(rows[group.rows.id], group.value, defaults)
    session.flush()


def _sync(row: models.Group, group: group_rules.GroupCapacity,
          defaults: Callable[[int], variant_db.Defaults]) -> None:
    found = group.found_types()
    rows = {known.vgpu_type: known for known in row.types}
    if found.keys() - rows.keys():
        enabled = defaults(row.variant_id).enabled_types
        for name in sorted(found.keys() - rows.keys()):
            rows[name] = models.VGPUType(
                vgpu_type=name, enabled=name in enabled,
                listed=name in enabled)
            row.types.append(rows[name])
    for name, listed in found.items():
        for field in PROPERTIES:
            setattr(rows[name], field, getattr(listed, field))
    whole = (video_ram.of_model(group.variant.vendor, group.variant.device)
             or _largest(found.values()))
    for name in {naming.PASSTHROUGH, *filter(
            vgpu_type.is_of_plain_vfs, found)} & rows.keys():
        rows[name].video_ram = video_ram.of_type(name, whole)
    for name in rows.keys() - found.keys() - {naming.PASSTHROUGH}:
        if not rows[name].listed:
            row.types.remove(rows[name])


def _largest(types: Iterable[vgpu_type.VGPUType]) -> int | None:
    """Return the MiB of the largest vGPU type; None: unknown.

    It has all of the GPU's memory, unless the GPU is in MIG mode.
    """
    return max((known.video_ram for known in types if known.video_ram),
               default=None)
