# SPDX-License-Identifier: Apache-2.0
"""Deletion of what is only history: events, ended assignments, their usage.

Conductors delete what is older than ``[gpgpu_conductor] history_days``, and
``db purge`` what an operator names. Both do so in transactions that are short
and independent of each other: after an interruption the next run goes on.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import typing

import sqlalchemy as sa
from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin.db import api
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import usage

_USAGES = usage.TABLE

LOG = logging.getLogger(__name__)

CHUNK = 1000
"""Number of rows that one transaction deletes."""

INTERVAL = 3600.0
"""Seconds between two runs of a conductor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Purged:
    """Numbers of rows that were deleted.

    :ivar unexported: number of usages that stay since they were not exported
    :ivar complete: nothing is left to delete; False: ``max_rows`` was reached
    """

    events: int
    assignments: int
    usages: int
    unexported: int
    complete: bool


def purge(db: api.Database, before: datetime.datetime,
          max_rows: int | None = None) -> Purged:
    """Delete events, ended assignments and usage that are older than a date.

    Events stay until their notifications were sent, and usage until it was
    exported. The UUIDs of assignments stay known to
    hosts that were away since then, and may still have them in their books.
    The last assignment of each device stays, since a cleaning refers to it;
    and the last one that was activated, since a guest had the device.
    The ledger of cleanings stays whole.

    :param before: UTC, without a zone
    :param max_rows: number of rows to delete at most; None: all
    """
    left = max_rows
    numbers = []
    for chunk in (_purge_events, _purge_assignments, _purge_usages):
        numbers.append(_repeat(db, chunk, before, left))
        left = None if left is None else left - numbers[-1]
    events, assignments, usages = numbers
    return Purged(events=events, assignments=assignments, usages=usages,
                  unexported=_unexported(db, before),
                  complete=left is None or left > 0)


def purge_old(db: api.Database, days: int) -> None:
    """Delete what is older than some days; never raises.

    :param days: 0: nothing is deleted
    """
    if not days:
        return
    try:
        with db.reader() as session:
            now = clock.utc(session)
        purged = purge(db, now - datetime.timedelta(days=days))
    except Exception:
        LOG.exception('Cannot delete what is older than [gpgpu_conductor] '
                      'history_days')
    else:
        if purged.events or purged.assignments or purged.usages:
            LOG.info('Deleted what is older than %(days)d days: %(purged)s',
                     {'days': days, 'purged': purged})


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
    events = event_db.TABLE
    return _delete(
        session, events, sa.select(events.c.id)
        .where(events.c.at < before, ~sa.exists().where(
            event_db.UNSENT.c.event_id == events.c.id))
        .order_by(events.c.at).limit(size))


def _delete(session: orm.Session, table: sa.Table,
            found: sa.Select[int]) -> int:
    """Delete the rows whose ids are found; return their number."""
    # MariaDB has no LIMIT in a subquery of DELETE.
    ids = session.scalars(found).all()
    session.execute(sa.delete(table).where(table.c.id.in_(ids)))
    return len(ids)


def _purge_assignments(session: orm.Session, *, before: datetime.datetime,
                       size: int) -> int:
    later = tables.ASSIGNMENTS.alias()
    ids = session.scalars(
        sa.select(tables.ASSIGNMENTS.c.id)
        .where(tables.ASSIGNMENTS.c.active.is_(None),
               tables.ASSIGNMENTS.c.ended_at < before,
               sa.or_(usage.IS_USED, _host_knows_end(
                   tables.HOSTS.c.id == tables.ASSIGNMENTS.c.host_id,
                   tables.ASSIGNMENTS.c.ended_at)),
               sa.exists().where(
                   later.c.device_id == tables.ASSIGNMENTS.c.device_id,
                   later.c.id > tables.ASSIGNMENTS.c.id,
                   sa.or_(later.c.lease_expires_at.is_(None),
                          tables.ASSIGNMENTS.c.lease_expires_at.is_not(None))))
        .order_by(tables.ASSIGNMENTS.c.ended_at).limit(size)).all()
    session.execute(
        sa.delete(tables.ASSIGNMENTS).where(tables.ASSIGNMENTS.c.id.in_(ids))
        .execution_options(synchronize_session=False))
    return len(ids)


def _purge_usages(session: orm.Session, *, before: datetime.datetime,
                  size: int) -> int:
    # That of an assignment which is still active may be resumed.
    return _delete(
        session, _USAGES, sa.select(_USAGES.c.id)
        .where(_USAGES.c.ended_at < before, _USAGES.c.exported_at.is_not(None),
               _host_knows_end(tables.HOSTS.c.name == _USAGES.c.host,
                               _USAGES.c.ended_at),
               ~sa.exists().where(
                   tables.ASSIGNMENTS.c.uuid == _USAGES.c.assignment_uuid))
        .order_by(_USAGES.c.ended_at).limit(size))


def _host_knows_end(is_host: sa.ColumnElement[bool],
                    ended_at: sa.SQLColumnExpression[typing.Any],
                    ) -> sa.ColumnElement[bool]:
    """Return the condition that the host called since an assignment ended.

    It does not have the assignment in its book any more. A host that was
    deleted, or that never began a session, has none.
    """
    return ~sa.exists().where(
        is_host, tables.HOSTS.c.deleted == 0,
        tables.HOSTS.c.heard_at < clock.seconds(ended_at))


def _unexported(db: api.Database, before: datetime.datetime) -> int:
    with db.reader() as session:
        return session.scalars(
            sa.select(sa.func.count()).select_from(_USAGES)
            .where(_USAGES.c.ended_at < before,
                   _USAGES.c.exported_at.is_(None))).one()
