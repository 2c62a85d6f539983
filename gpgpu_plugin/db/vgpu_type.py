# SPDX-License-Identifier: Apache-2.0
"""Rows of ``vgpu_types``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import models

_TABLE = models.Base.metadata.tables['vgpu_types']


@dataclasses.dataclass(frozen=True, slots=True)
class VGPUTypeRow:
    """A row as it was read; models.VGPUType gives its columns' meaning.

    :ivar id: 0: it is not stored yet
    """

    id: int
    vgpu_type: str
    enabled: bool
    listed: bool
    max_vgpu_per_pgpu: int = 1
    max_capacity: int = 0
    remaining_capacity: int = 0
    video_ram: int | None = None
    max_heads: int | None = None
    max_resolution_x: int | None = None
    max_resolution_y: int | None = None


COLUMNS = tuple(_TABLE.c[field.name]
                for field in dataclasses.fields(VGPUTypeRow))
"""Columns of a VGPUTypeRow, in its order."""

_COLUMNS_BUT_ID = tuple(
    field.name for field in dataclasses.fields(VGPUTypeRow)
    if field.name != 'id')
_STORE = (sa.update(_TABLE).where(_TABLE.c.id == sa.bindparam('of_id'))
          .values({name: sa.bindparam(name) for name in _COLUMNS_BUT_ID}))


def store(session: orm.Session, groups: Mapping[int, tuple[
        Sequence[VGPUTypeRow], Sequence[VGPUTypeRow]]]) -> None:
    """Store how the types of groups changed.

    :param groups: types before and after that, by the group's id
    """
    gone: list[int] = []
    new: list[dict[str, object]] = []
    changed: list[dict[str, object]] = []
    for group_id, (before, after) in groups.items():
        if before is after:
            continue
        known = {row.id: row for row in before}
        gone += known.keys() - {row.id for row in after}
        new += [{'gpu_group_id': group_id, **_values(row)}
                for row in after if row.id == 0]
        changed += [{'of_id': row.id, **_values(row)} for row in after
                    if row.id != 0 and row != known[row.id]]
    if gone:
        session.execute(sa.delete(_TABLE).where(_TABLE.c.id.in_(gone)))
    if changed:
        session.execute(_STORE, changed)
    if new:
        session.execute(sa.insert(_TABLE), new)


def _values(row: VGPUTypeRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in _COLUMNS_BUT_ID}


def listed(session: orm.Session) -> list[tuple[str, str]]:
    """Return the types whose resource class Placement may know.

    :returns: name of the variant and of the type, each pair once
    """
    return [(variant, vgpu_type) for variant, vgpu_type in session.execute(
        sa.select(models.Variant.name, models.VGPUType.vgpu_type)
        .join(models.Group, models.Group.variant_id == models.Variant.id)
        .join(models.VGPUType,
              models.VGPUType.gpu_group_id == models.Group.id)
        .where(models.VGPUType.listed).distinct())]


def remaining(session: orm.Session, variants: Collection[str],
              closed: Collection[str]) -> dict[tuple[str, str], int]:
    """Return how many units of enabled types can be claimed on live hosts.

    :param closed: names of hosts that do not count
    :returns: by the variant and the type
    """
    return {(variant, vgpu_type): int(count) for variant, vgpu_type, count
            in session.execute(
        sa.select(models.Variant.name, models.VGPUType.vgpu_type,
                  sa.func.sum(models.VGPUType.remaining_capacity))
        .join(models.Group, models.Group.variant_id == models.Variant.id)
        .join(models.Host, models.Host.id == models.Group.host_id)
        .join(models.VGPUType,
              models.VGPUType.gpu_group_id == models.Group.id)
        .where(models.Host.deleted == 0, models.Variant.name.in_(variants),
               models.VGPUType.enabled, models.Host.name.not_in(closed))
        .group_by(models.Variant.name, models.VGPUType.vgpu_type))}


def of_variant(session: orm.Session, variant_id: int,
               host: str | None = None) -> list[str]:
    """Return the names of the types that GPUs of a variant have.

    :param host: name of the only live host
    """
    query = (sa.select(models.VGPUType.vgpu_type).distinct()
             .join(models.Group,
                   models.VGPUType.gpu_group_id == models.Group.id)
             .where(models.Group.variant_id == variant_id))
    if host is not None:
        query = query.join(
            models.Host, models.Group.host_id == models.Host.id).where(
                models.Host.name == host, models.Host.deleted == 0)
    # Not by the database, which may order by a language.
    return sorted(session.scalars(query))
