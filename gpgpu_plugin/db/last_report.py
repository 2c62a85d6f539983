# SPDX-License-Identifier: Apache-2.0
"""The last report of a host, as far as ``hosts`` keeps it."""

from __future__ import annotations

import datetime
import typing
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import clock
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import tables


class LastReport(typing.NamedTuple):
    """A live host with its last report; tables.HOSTS describes the columns.

    :ivar changes: number of changes of variants, read before the host was
        locked
    """

    id: int
    name: str
    session: int
    start_uuid: str | None
    generation: int
    report_number: int
    report_digest: str | None
    report_generation: int
    report_answer: str | None
    changes: int


_HOSTS = tables.HOSTS
# Made once: SQLAlchemy takes longer to make them than to run them.
_LOCK = (
    sa.select(
        *(_HOSTS.c[name] for name in LastReport._fields[:-1]),
        sa.select(host_db.LOCKS.c.value)
        .where(host_db.LOCKS.c.name == 'variants').scalar_subquery())
    .where(_HOSTS.c.name == sa.bindparam('host'), _HOSTS.c.deleted == 0)
    .with_for_update())
_REPEAT = (
    sa.update(_HOSTS).where(_HOSTS.c.id == sa.bindparam('host_id'))
    .values(report_number=sa.bindparam('number'),
            heard_at=clock.now()))


def lock(session: orm.Session, name: str) -> LastReport | None:
    """Return the last report of a live host, which is locked.

    On MariaDB, later reads of the transaction see a snapshot from before it
    waited for the lock. Read only what may be stale: an assignment that is
    missing there (adoption.unknown) merely causes the report to be stored.
    """
    row: Sequence[typing.Any] | None = session.connection().execute(
        _LOCK, {'host': name}).first()
    return LastReport(*row) if row is not None else None


def repeat(session: orm.Session, last: LastReport, number: int) -> None:
    """Note that the (locked) host reported the same again.

    :param number: of the scan
    """
    session.connection().execute(
        _REPEAT, {'host_id': last.id, 'number': number})


def note(session: orm.Session, host_id: int, *, digest: str, generation: int,
         answer: str) -> None:
    """Keep the report of a (locked) host that had no news, and the answer."""
    session.execute(sa.update(_HOSTS).where(_HOSTS.c.id == host_id).values(
        report_digest=digest, report_generation=generation,
        report_answer=answer))


def arrived(session: orm.Session, host_id: int,
            at: datetime.datetime) -> None:
    """Note when a report of a (locked) host that had news arrived."""
    session.execute(sa.update(_HOSTS).where(
        _HOSTS.c.id == host_id).values(reported_at=at))
