# SPDX-License-Identifier: Apache-2.0
"""Tables ``request_kinds``, the cloud's mix, and ``counted_instances``.

A request counts half as much after HALF_LIFE. Instead of writing all rows ever
again, what is added is multiplied by a number that doubles in this time; only
the shares matter.

Unique key: a kind is counted in one row. ``counted_instances`` has those of
the last hour: schedulers and Nova's notifications name an instance several
times, and it counts once. Index: old rows are deleted.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import tables
from gpgpu_plugin.objects import scheduling

TABLE = sa.Table(
    'request_kinds', tables.METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('vcpus', sa.Integer, nullable=False,
              comment='Number of vCPUs of an instance.'),
    sa.Column('memory_mib', sa.Integer, nullable=False,
              comment='MiB of RAM of an instance.'),
    sa.Column('resource_class', tables.NAME, nullable=False,
              comment='Class of its GPUs; empty: it has none.'),
    sa.Column('units', sa.Integer, nullable=False,
              comment='How many of the class it gets.'),
    sa.Column('weight', sa.Double, nullable=False, default=0,
              comment='How many there were, each multiplied by a number '
              'that grows with time: older ones count less without a write.'),
    sa.Column('arrivals', sa.BigInteger, nullable=False, default=0,
              comment='How many there were.'),
    sa.UniqueConstraint('vcpus', 'memory_mib', 'resource_class', 'units',
                        name='uq_request_kinds_kind'))

COUNTED = sa.Table(
    'counted_instances', tables.METADATA,
    sa.Column('instance_uuid', tables.UUID, primary_key=True,
              comment='UUID of the instance.'),
    sa.Column('at', sa.Double, nullable=False,
              comment='When it was counted, in seconds since the epoch.'),
    sa.Index('ix_counted_instances_at', 'at'))

HALF_LIFE = 14 * 86400.0
"""Seconds after which a request counts half as much."""

KNOWN = 3600.0
"""Seconds for which an instance that was counted is known: Nova tries again
within minutes."""

_CHUNK = 500
_KIND = tuple(TABLE.c[name] for name in scheduling.RequestKind._fields)
# 2026-01-01. A double can count for 39 years.
_START = 1_767_225_600.0


def count(session: orm.Session, instances: Collection[str],
          now: float) -> set[str]:
    """Note that instances are counted.

    :param now: seconds since the epoch
    :returns: those that were not counted in the last hour
    """
    session.execute(sa.delete(COUNTED).where(COUNTED.c.at < now - KNOWN))
    new, every = set(instances), list(instances)
    for first in range(0, len(every), _CHUNK):
        new.difference_update(session.scalars(
            sa.select(COUNTED.c.instance_uuid).where(
                COUNTED.c.instance_uuid.in_(every[first:first + _CHUNK]))))
    if new:
        # In one order for all, as below.
        session.execute(sa.insert(COUNTED), [
            {'instance_uuid': instance, 'at': now}
            for instance in sorted(new)])
    return new


def add(session: orm.Session,
        counted: Sequence[scheduling.CountedRequests], now: float) -> None:
    """Add requests.

    :param now: seconds since the epoch
    """
    factor = 2.0 ** ((now - _START) / HALF_LIFE)
    # In one order for all: conductors wait for each other's rows.
    for kind, number in sorted(counted):
        added = {'weight': TABLE.c.weight + factor * number,
                 'arrivals': TABLE.c.arrivals + int(number)}
        if not session.execute(
                sa.update(TABLE).where(*_is(kind)).values(added)
                ).rowcount:  # type: ignore[attr-defined]
            session.execute(sa.insert(TABLE).values(
                **kind._asdict(), weight=factor * number,
                arrivals=int(number)))


def _is(kind: scheduling.RequestKind) -> list[sa.ColumnElement[bool]]:
    return [TABLE.c[name] == value
            for name, value in kind._asdict().items()]


def arrivals(session: orm.Session) -> int:
    """Return how many requests there were."""
    return int(session.scalar(sa.select(sa.func.sum(TABLE.c.arrivals))) or 0)


def most_frequent(session: orm.Session, limit: int, now: float,
                  ) -> tuple[scheduling.CountedRequests, ...]:
    """Return the kinds with the most requests, as these count now.

    Those with and those without GPUs are limited separately: where most
    instances have no GPUs, the others are the rarer ones.

    :param limit: of kinds with GPUs, and of kinds without
    """
    factor = 2.0 ** ((now - _START) / HALF_LIFE)
    return tuple(
        scheduling.CountedRequests(
            scheduling.RequestKind(*kind), weight / factor)
        for with_gpus in (TABLE.c.resource_class != '',
                          TABLE.c.resource_class == '')
        for *kind, weight in session.execute(
            sa.select(*_KIND, TABLE.c.weight).where(with_gpus)
            .order_by(TABLE.c.weight.desc(), TABLE.c.id).limit(limit)))
