# SPDX-License-Identifier: Apache-2.0
"""Rows of ``vgpu_types``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import models

_TABLE = models.Base.metadata.tables['vgpu_types']
_CAPACITIES = ('max_vgpu_per_pgpu', 'max_capacity', 'remaining_capacity')


@dataclasses.dataclass(frozen=True, slots=True)
class VGPUTypeRow:
    """A row as it was read; models.VGPUType gives its columns' meaning."""

    id: int
    vgpu_type: str
    enabled: bool
    listed: bool
    max_vgpu_per_pgpu: int
    max_capacity: int
    remaining_capacity: int


COLUMNS = tuple(_TABLE.c[field.name]
                for field in dataclasses.fields(VGPUTypeRow))
"""Columns of a VGPUTypeRow, in its order."""

_STORE = (sa.update(_TABLE).where(_TABLE.c.id == sa.bindparam('of_id'))
          .values({name: sa.bindparam(name) for name in _CAPACITIES}))


def store_capacities(session: orm.Session,
                     rows: Collection[VGPUTypeRow]) -> None:
    """Store the capacities of types, also in the session's own objects."""
    if not rows:
        return
    session.execute(_STORE, [
        {'of_id': row.id} | {name: getattr(row, name)
                             for name in _CAPACITIES} for row in rows])
    for row in rows:
        known = session.identity_map.get(
            orm.util.identity_key(models.VGPUType, row.id))
        for name in _CAPACITIES if known is not None else ():
            orm.attributes.set_committed_value(
                known, name, getattr(row, name))


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
