# SPDX-License-Identifier: Apache-2.0
"""Deletion of what is only history: events, ended assignments, their usage.

Notifications that were never sent go with it.

It runs beside conductors, in transactions that are short and independent of
each other: after an interruption the next run goes on.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import typing

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import api
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import models
from gpgpu_plugin.db import usage

CHUNK = 1000
"""Number of rows that one transaction deletes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Purged:
    """Numbers of rows that were deleted.

    :ivar unexported: number of usages that stay since they were not exported
    :ivar complete: nothing is left to delete; False: ``max_rows`` was reached
    """

    events: int
    assignments: int
    usages: int
    notifications: int
    unexported: int
    complete: bool


def purge(db: api.Database, before: datetime.datetime,
          max_rows: int | None = None) -> Purged:
    """Delete events, ended assignments and usage that are older than a date.

    So are notifications that wait, which matters once they are turned off.
    Usage stays until it was exported. The UUIDs of assignments stay known to
    hosts that were away since then, and may still have them in their books.
    The last assignment of each device stays, since a cleaning refers to it;
    and the last one that was activated, since a guest had the device.
    The ledger of cleanings stays whole.

    :param before: UTC, without a zone
    :param max_rows: number of rows to delete at most; None: all
    """
    left = max_rows
    numbers = []
    for chunk in (_purge_events, _purge_assignments, _purge_usages,
                  _purge_notifications):
        numbers.append(_repeat(db, chunk, before, left))
        left = None if left is None else left - numbers[-1]
    events, assignments, usages, notifications = numbers
    return Purged(events=events, assignments=assignments, usages=usages,
                  notifications=notifications,
                  unexported=_unexported(db, before),
                  complete=left is None or left > 0)


class _Chunk(typing.Protocol):
    """A transaction that deletes some rows and returns their number."""

    def __call__(self, session: orm.Session, *, before: datetime.datetime,
                 size: int) -> int:
        """Delete rows."""


def _repeat(db: api.Database, chunk: _Chunk, before: datetime.datetime,
            max_rows: int | None) -> int:
    total = 0
    while max_rows is None or total < max_rows:
        size = CHUNK if max_rows is None else min(CHUNK, max_rows - total)
        deleted = db.write(
            functools.partial(chunk, before=before, size=size))
        total += deleted
        if deleted < size:
            break
    return total


def _purge_events(session: orm.Session, *, before: datetime.datetime,
                  size: int) -> int:
    # MariaDB has no LIMIT in a subquery of DELETE.
    ids = session.scalars(
        sa.select(models.Event.id).where(models.Event.at < before)
        .order_by(models.Event.at).limit(size)).all()
    session.execute(
        sa.delete(models.Event).where(models.Event.id.in_(ids))
        .execution_options(synchronize_session=False))
    return len(ids)


def _purge_assignments(session: orm.Session, *, before: datetime.datetime,
                       size: int) -> int:
    later = orm.aliased(models.Assignment)
    ids = session.scalars(
        sa.select(models.Assignment.id)
        .where(models.Assignment.active.is_(None),
               models.Assignment.ended_at < before,
               sa.or_(usage.IS_USED, _host_knows_end(
                   models.Host.id == models.Assignment.host_id,
                   models.Assignment.ended_at)),
               sa.exists().where(
                   later.device_id == models.Assignment.device_id,
                   later.id > models.Assignment.id,
                   sa.or_(later.lease_expires_at.is_(None),
                          models.Assignment.lease_expires_at.is_not(None))))
        .order_by(models.Assignment.ended_at).limit(size)).all()
    session.execute(
        sa.delete(models.Assignment).where(models.Assignment.id.in_(ids))
        .execution_options(synchronize_session=False))
    return len(ids)


def _purge_usages(session: orm.Session, *, before: datetime.datetime,
                  size: int) -> int:
    # That of an assignment which is still active may be resumed.
    ids = session.scalars(
        sa.select(models.Usage.id)
        .where(models.Usage.ended_at < before,
               models.Usage.exported_at.is_not(None),
               _host_knows_end(models.Host.name == models.Usage.host,
                               models.Usage.ended_at),
               ~sa.exists().where(
                   models.Assignment.uuid == models.Usage.assignment_uuid))
        .order_by(models.Usage.ended_at).limit(size)).all()
    session.execute(
        sa.delete(models.Usage).where(models.Usage.id.in_(ids))
        .execution_options(synchronize_session=False))
    return len(ids)


def _purge_notifications(session: orm.Session, *, before: datetime.datetime,
                         size: int) -> int:
    ids = session.scalars(
        sa.select(models.Notification.id)
        .where(models.Notification.created_at
               < before.replace(tzinfo=datetime.UTC).timestamp())
        .order_by(models.Notification.id).limit(size)).all()
    session.execute(
        sa.delete(models.Notification).where(models.Notification.id.in_(ids))
        .execution_options(synchronize_session=False))
    return len(ids)


def _host_knows_end(is_host: sa.ColumnElement[bool],
                    ended_at: orm.InstrumentedAttribute[typing.Any],
                    ) -> sa.ColumnElement[bool]:
    """Return the condition that the host called since an assignment ended.

    It does not have the assignment in its book any more. A host that was
    deleted, or that never began a session, has none.
    """
    return ~sa.exists().where(
        is_host, models.Host.deleted == 0,
        models.Host.heard_at < clock.seconds(ended_at))


def _unexported(db: api.Database, before: datetime.datetime) -> int:
    with db.reader() as session:
        return session.scalars(
            sa.select(sa.func.count()).select_from(models.Usage)
            .where(models.Usage.ended_at < before,
                   models.Usage.exported_at.is_(None))).one()
