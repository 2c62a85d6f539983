# SPDX-License-Identifier: Apache-2.0
"""Rows of ``vgpu_types``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import tables

_TABLE = tables.TYPES


@dataclasses.dataclass(frozen=True, slots=True)
class VGPUTypeRow:
    """A row as it was read; tables.TYPES gives its columns' meaning.

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


def by_variant(session: orm.Session, *,
               only_listed: bool = False) -> list[tuple[str, str]]:
    """Return the types of all groups.

    :param only_listed: only those whose resource class Placement may know
    :returns: name of the variant and of the type, each pair once
    """
    return [(variant, vgpu_type) for variant, vgpu_type in session.execute(
        sa.select(tables.VARIANTS.c.name, tables.TYPES.c.vgpu_type)
        .join(tables.GROUPS,
              tables.GROUPS.c.variant_id == tables.VARIANTS.c.id)
        .join(tables.TYPES,
              tables.TYPES.c.gpu_group_id == tables.GROUPS.c.id)
        .where(tables.TYPES.c.listed if only_listed else sa.true())
        .distinct())]


def remaining(session: orm.Session, variants: Collection[str],
              closed: Collection[str]) -> dict[tuple[str, str], int]:
    """Return how many units of enabled types can be claimed on live hosts.

    :param closed: names of hosts that do not count
    :returns: by the variant and the type
    """
    return {(variant, vgpu_type): int(count) for variant, vgpu_type, count
            in session.execute(
        sa.select(tables.VARIANTS.c.name, tables.TYPES.c.vgpu_type,
                  sa.func.sum(tables.TYPES.c.remaining_capacity))
        .join(tables.GROUPS,
              tables.GROUPS.c.variant_id == tables.VARIANTS.c.id)
        .join(tables.HOSTS, tables.HOSTS.c.id == tables.GROUPS.c.host_id)
        .join(tables.TYPES,
              tables.TYPES.c.gpu_group_id == tables.GROUPS.c.id)
        .where(tables.HOSTS.c.deleted == 0,
               tables.VARIANTS.c.name.in_(variants),
               tables.TYPES.c.enabled, tables.HOSTS.c.name.not_in(closed))
        .group_by(tables.VARIANTS.c.name, tables.TYPES.c.vgpu_type))}


def of_variant(session: orm.Session, variant_id: int,
               host: str | None = None) -> list[str]:
    """Return the names of the types that GPUs of a variant have.

    :param host: name of the only live host
    """
    query = (sa.select(tables.TYPES.c.vgpu_type).distinct()
             .join(tables.GROUPS,
                   tables.TYPES.c.gpu_group_id == tables.GROUPS.c.id)
             .where(tables.GROUPS.c.variant_id == variant_id))
    if host is not None:
        query = query.join(
            tables.HOSTS, tables.GROUPS.c.host_id == tables.HOSTS.c.id).where(
                tables.HOSTS.c.name == host, tables.HOSTS.c.deleted == 0)
    # Not by the database, which may order by a language.
    return sorted(session.scalars(query))
