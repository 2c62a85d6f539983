# SPDX-License-Identifier: Apache-2.0
"""Hosts with groups of GPUs."""

from __future__ import annotations

import typing

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import tables

_HOSTS = tables.HOSTS
_LOAD = (
    sa.select(_HOSTS.c.name, _HOSTS.c.node_uuid).distinct()
    .select_from(
        _HOSTS.join(tables.GROUPS, tables.GROUPS.c.host_id == _HOSTS.c.id)
        .join(tables.TYPES, tables.TYPES.c.gpu_group_id == tables.GROUPS.c.id))
    .where(_HOSTS.c.deleted == 0, tables.TYPES.c.max_capacity > 0)
    .order_by(_HOSTS.c.name))


class GPUHost(typing.NamedTuple):
    """Host with groups of GPUs."""

    name: str
    node_uuid: str


def load(session: orm.Session) -> list[GPUHost]:
    """Return the live hosts with groups that have GPUs, by name."""
    return [GPUHost(*row) for row in session.execute(_LOAD)]
