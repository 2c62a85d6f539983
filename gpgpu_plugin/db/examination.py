# SPDX-License-Identifier: Apache-2.0
"""Rows that gpgpu-manage doctor compares, for pages of hosts."""

from __future__ import annotations

import collections
import datetime
from collections.abc import Collection
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import caller_key
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import variant as variant_rules

_ASSIGNMENTS = tables.ASSIGNMENTS.c
_DEVICES = tables.DEVICES.c
_HOSTS = tables.HOSTS.c
_USAGES = usage_db.TABLE


def busy_devices(session: orm.Session, host_ids: Collection[int],
                 ) -> Mapping[int, list[tuple[str, str, str]]]:
    """Return devices in states in which an assignment has them.

    :returns: UUID, address and state, by the host's id
    """
    found = collections.defaultdict(list)
    for host_id, *device in session.execute(
            sa.select(_DEVICES.host_id, _DEVICES.uuid, _DEVICES.address,
                      _DEVICES.state)
            .where(_DEVICES.host_id.in_(host_ids), _DEVICES.state.in_(
                sorted(device_rules.ASSIGNED_STATES)))
            .order_by(_DEVICES.id)):
        found[host_id].append((device[0], device[1], device[2]))
    return found


def running_usages(session: orm.Session, hosts: Collection[str],
                   ) -> Mapping[str, list[str]]:
    """Return the assignments whose usage goes on, by the name of the host."""
    found = collections.defaultdict(list)
    for host, uuid in session.execute(
            sa.select(_USAGES.c.host, _USAGES.c.assignment_uuid)
            .where(_USAGES.c.host.in_(hosts), _USAGES.c.ended_at.is_(None))
            .order_by(_USAGES.c.id)):
        found[host].append(uuid)
    return found


def usages_of_unknown_hosts(session: orm.Session,
                            ) -> list[tuple[str, str]]:
    """Return usages that go on, on hosts that do not exist.

    :returns: name of the host, and UUID of the assignment
    """
    live = sa.select(_HOSTS.id).where(
        _HOSTS.name == _USAGES.c.host, _HOSTS.deleted == 0)
    return list(session.execute(
        sa.select(_USAGES.c.host, _USAGES.c.assignment_uuid)
        .where(_USAGES.c.ended_at.is_(None), ~live.exists())
        .order_by(_USAGES.c.id)).tuples())


def keys_of_unknown_hosts(session: orm.Session) -> list[tuple[str, int]]:
    """Return name and number of valid keys of hosts that do not exist."""
    key = caller_key.TABLE.c
    live = sa.select(_HOSTS.id).where(
        _HOSTS.name == key.name, _HOSTS.deleted == 0)
    return list(session.execute(
        sa.select(key.name, key.number)
        .where(key.kind == 'host', key.revoked_at.is_(None), ~live.exists())
        .order_by(key.name, key.id)).tuples())


def ended_at(session: orm.Session, uuid: str) -> datetime.datetime | None:
    """Return when an assignment ended; None: that is unknown."""
    return session.scalar(sa.select(_ASSIGNMENTS.ended_at).where(
        _ASSIGNMENTS.uuid == uuid))


def resource_classes(session: orm.Session,
                     ) -> list[tuple[variant_rules.Variant, str]]:
    """Return the variants, each with the types of its groups."""
    return [(variant_db.value(*columns), vgpu_type)
            for vgpu_type, *columns in session.execute(
        sa.select(tables.TYPES.c.vgpu_type, *variant_db.COLUMNS)
        .join(tables.GROUPS,
              tables.TYPES.c.gpu_group_id == tables.GROUPS.c.id)
        .join(tables.VARIANTS,
              tables.GROUPS.c.variant_id == tables.VARIANTS.c.id)
        .distinct())]
