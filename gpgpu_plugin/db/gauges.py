# SPDX-License-Identifier: Apache-2.0
"""Numbers of the whole cloud, which the database counts for metrics.

They take four statements, whatever the number of devices.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import outbox
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules


class DeviceCount(typing.NamedTuple):
    """Number of devices that have all this in common.

    Neither mdev rows nor retired devices count.

    ``host``: None: those of all hosts. ``variant``: None: they are in no
    group. ``state``: as operators see it. ``health``: None: they have none of
    their own.
    """

    host: str | None
    variant: str | None
    state: str
    enabled: bool
    health: str | None
    number: int


class CapacityGauge(typing.NamedTuple):
    """Capacity of groups for a type that is enabled.

    ``host``: None: of all hosts.
    """

    host: str | None
    variant: str
    vgpu_type: str
    max_capacity: int
    remaining_capacity: int


class HeardHost(typing.NamedTuple):
    """A live host.

    ``heard_at``: seconds since the epoch when it last called.
    """

    name: str
    heard_at: float
    is_silent: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaugeReading:
    """Numbers of the cloud at one time.

    :ivar notifications: events whose notifications wait to be sent
    """

    notifications: int
    devices: Sequence[DeviceCount]
    capacities: Sequence[CapacityGauge]
    hosts: Sequence[HeardHost]


def read(session: orm.Session, *, per_host: bool,
         silent_after: float = 1e10) -> GaugeReading:
    """Return the numbers of all live hosts.

    :param per_host: count each host by itself
    :param silent_after: seconds without a call after which a host is silent,
        and nothing of it remains
    """
    is_silent = tables.HOSTS.c.heard_at < clock.now() - silent_after
    host = tables.HOSTS.c.name if per_host else sa.null()
    return GaugeReading(
        notifications=outbox.number(session),
        # The sum of integers is a decimal number on some databases.
        devices=[
            DeviceCount(name, variant, state, enabled, health, int(number))
            for name, variant, state, enabled, health, number
            in session.execute(_devices(host))],
        capacities=[
            CapacityGauge(name, variant, vgpu_type, int(most), int(remaining))
            for name, variant, vgpu_type, most, remaining
            in session.execute(_capacities(host, is_silent))],
        hosts=[HeardHost(name, heard_at, bool(silent))
               for name, heard_at, silent
               in session.execute(
                   sa.select(tables.HOSTS.c.name, tables.HOSTS.c.heard_at,
                             is_silent)
                   .where(tables.HOSTS.c.deleted == 0))])


_Name: typing.TypeAlias = (
    'sa.SQLColumnExpression[str] | sa.ColumnElement[None]')
_Select: typing.TypeAlias = 'sa.Select[*tuple[typing.Any, ...]]'


def _devices(host: _Name) -> _Select:
    counts = _counts()
    facts = (tables.VARIANTS.c.name, counts.c.state, counts.c.enabled,
             counts.c.health)
    return (
        sa.select(host.label('host'), *facts, sa.func.sum(counts.c.number))
        .select_from(counts)
        .join(tables.HOSTS, counts.c.host_id == tables.HOSTS.c.id)
        .outerjoin(tables.GROUPS, counts.c.group_id == tables.GROUPS.c.id)
        .outerjoin(tables.VARIANTS,
                   tables.GROUPS.c.variant_id == tables.VARIANTS.c.id)
        .where(tables.HOSTS.c.deleted == 0)
        .group_by(*_grouped(host), *facts))


def _counts() -> sa.Subquery:
    """Return the numbers of devices by host, group and facts.

    MariaDB takes longer to count by names, and to look up the vGPUs of each
    device.
    """
    device, ranks = tables.DEVICES.c, device_db.ranks_of_vgpus()
    devices = (
        sa.select(device.host_id, device.group_id,
                  (~hold_db.is_held([device_rules.HoldKind.DISABLED])).label(
                      'enabled'), device.health,
                  device_db.shown_state_by(ranks.c.rank).label('state'))
        .outerjoin(ranks, ranks.c.parent_id == device.id)
        .where(device.kind == str(device_rules.DeviceKind.PCI),
               ~device_db.is_retired())
        .subquery())
    return (sa.select(devices, sa.func.count().label('number'))
            .group_by(*devices.c).subquery())


def _capacities(host: _Name,
                is_silent: sa.ColumnElement[bool]) -> _Select:
    vgpu_type = tables.TYPES.c
    remaining = sa.case(
        (sa.or_(is_silent, *map(hold_db.is_host_held, (
            device_rules.HostHoldKind.RESTORED,
            device_rules.HostHoldKind.SERVICE_DISABLED))), 0),
        else_=vgpu_type.remaining_capacity)
    return (
        sa.select(host.label('host'), tables.VARIANTS.c.name,
                  vgpu_type.vgpu_type, sa.func.sum(vgpu_type.max_capacity),
                  sa.func.sum(remaining))
        .select_from(tables.TYPES)
        .join(tables.GROUPS, vgpu_type.gpu_group_id == tables.GROUPS.c.id)
        .join(tables.VARIANTS,
              tables.GROUPS.c.variant_id == tables.VARIANTS.c.id)
        .join(tables.HOSTS, tables.GROUPS.c.host_id == tables.HOSTS.c.id)
        .where(tables.HOSTS.c.deleted == 0, vgpu_type.enabled)
        .group_by(*_grouped(host), tables.VARIANTS.c.name,
                  vgpu_type.vgpu_type))


def _grouped(host: _Name) -> list[_Name]:
    return [] if isinstance(host, sa.Null) else [host]
