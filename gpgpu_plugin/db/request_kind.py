# SPDX-License-Identifier: Apache-2.0
"""Rows of ``request_kinds``, the cloud's mix of requests, and of
``counted_instances``.

A request counts half as much after HALF_LIFE. Instead of writing all rows ever
again, what is added is multiplied by a number that doubles in this time; only
the shares matter.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import models
from gpgpu_plugin.objects import scheduling

HALF_LIFE = 14 * 86400.0
"""Seconds after which a request counts half as much."""

KNOWN = 3600.0
"""Seconds for which an instance that was counted is known: Nova tries again
within minutes."""

_CHUNK = 500

_Kind = models.RequestKind
_Counted = models.CountedInstance
# 2026-01-01. A double can count for 39 years.
_START = 1_767_225_600.0


def count(session: orm.Session, instances: Collection[str],
          now: float) -> set[str]:
    """Note that instances are counted.

    :param now: seconds since the epoch
    :returns: those that were not counted in the last hour
    """
    session.execute(sa.delete(_Counted).where(_Counted.at < now - KNOWN))
    new, every = set(instances), list(instances)
    for first in range(0, len(every), _CHUNK):
        new.difference_update(session.scalars(
            sa.select(_Counted.instance_uuid).where(
                _Counted.instance_uuid.in_(every[first:first + _CHUNK]))))
    if new:
        # In one order for all, as below.
        session.execute(sa.insert(_Counted), [
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
        added = {'weight': _Kind.weight + factor * number,
                 'arrivals': _Kind.arrivals + int(number)}
        if not session.execute(
                sa.update(_Kind).where(*_is(kind)).values(added)
                ).rowcount:  # type: ignore[attr-defined]
            session.add(_Kind(
                **kind._asdict(), weight=factor * number,
                arrivals=int(number)))
            session.flush()


def _is(kind: scheduling.RequestKind) -> list[sa.ColumnElement[bool]]:
    return [getattr(_Kind, name) == value
            for name, value in kind._asdict().items()]


def arrivals(session: orm.Session) -> int:
    """Return how many requests there were."""
    return int(session.scalar(sa.select(sa.func.sum(_Kind.arrivals))) or 0)


def most_frequent(session: orm.Session, limit: int, now: float,
                  ) -> tuple[scheduling.CountedRequests, ...]:
    """Return the kinds with the most requests, as these count now.

    Those with and those without GPUs are limited separately: where most
    instances have no GPUs, the others are the rarer ones.

    :param limit: of kinds with GPUs, and of kinds without
    """
    factor = 2.0 ** ((now - _START) / HALF_LIFE)
    return tuple(
        scheduling.CountedRequests(scheduling.RequestKind(
            row.vcpus, row.memory_mib, row.resource_class, row.units),
            row.weight / factor)
        for with_gpus in (_Kind.resource_class != '',
                          _Kind.resource_class == '')
        for row in session.scalars(
            sa.select(_Kind).where(with_gpus)
            .order_by(_Kind.weight.desc(), _Kind.id).limit(limit)))
