# SPDX-License-Identifier: Apache-2.0
"""Hosts with groups of GPUs, and how many of their GPUs are free."""

from __future__ import annotations

import collections
import typing

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import hold

_HOSTS = tables.HOSTS
_GROUPS = tables.GROUPS
_TYPES = tables.TYPES
_DEVICES = tables.DEVICES

_OFFERS = (
    sa.select(_HOSTS.c.name, _HOSTS.c.node_uuid,
              hold_db.is_host_held(hold.HostHoldKind.DRAINING),
              _GROUPS.c.id, _TYPES.c.enabled, _TYPES.c.remaining_capacity,
              _TYPES.c.max_vgpu_per_pgpu)
    .select_from(_HOSTS.join(_GROUPS, _GROUPS.c.host_id == _HOSTS.c.id)
                 .join(_TYPES, _TYPES.c.gpu_group_id == _GROUPS.c.id))
    .where(_HOSTS.c.deleted == 0, _TYPES.c.max_capacity > 0)
    .order_by(_HOSTS.c.name))
# The vGPUs of one GPU are cleaned each, but make it free only once.
_CLEANED = (
    sa.select(_DEVICES.c.group_id, sa.func.count(sa.distinct(
        sa.func.coalesce(_DEVICES.c.parent_id, _DEVICES.c.id))))
    .where(_DEVICES.c.group_id.is_not(None), _DEVICES.c.present,
           ~hold_db.is_held(hold.HoldKind),
           _DEVICES.c.state.in_(sorted(device_rules.UNCLEAN_STATES)))
    .group_by(_DEVICES.c.group_id))


class GPUHost(typing.NamedTuple):
    """Host with groups of GPUs.

    ``free_gpus``: GPUs that can take an instance now or after a cleaning. What
    is left of those that have vGPUs counts as the GPUs that it would fill,
    rounded up. None: the host is being drained, so that nobody knows whether
    it will offer them again.
    """

    name: str
    node_uuid: str
    free_gpus: int | None


def load(session: orm.Session) -> list[GPUHost]:
    """Return the live hosts with groups of GPUs, in two statements."""
    free: dict[int, int] = collections.defaultdict(int)
    groups: dict[str, set[int]] = collections.defaultdict(set)
    hosts = {}
    for (name, node_uuid, draining, group_id, enabled, remaining,
         of_gpu) in session.execute(_OFFERS):
        hosts[name] = node_uuid, draining
        groups[name].add(group_id)
        if enabled and remaining:
            free[group_id] = max(
                free[group_id], -(-remaining // max(of_gpu, 1)))
    for group_id, number in session.execute(_CLEANED):
        free[group_id] += number
    return [GPUHost(
        name=name, node_uuid=node_uuid, free_gpus=None if draining
        else sum(free[group_id] for group_id in groups[name]))
        for name, (node_uuid, draining) in hosts.items()]
