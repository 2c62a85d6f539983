# SPDX-License-Identifier: Apache-2.0
"""Rows of ``caller_keys``, ``executed_calls`` and ``clouds``."""

from __future__ import annotations

import contextvars
import dataclasses
import secrets
from collections.abc import Sequence

import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import models

_Key = models.CallerKey
_Call = models.ExecutedCall
_Cloud = models.Cloud
_USE = sa.insert(models.Base.metadata.tables['executed_calls']).inline()

_FORGOTTEN = 300
"""Seconds by which the clock of a conductor may be behind the database's."""

_NUMBERS = 2 ** 31 - 1
"""Largest number of a key, as large as an INTEGER of all databases can be."""


def _of(kind: str, name: str | orm.InstrumentedAttribute[str],
        ) -> sa.ColumnElement[bool]:
    return sa.and_(_Key.kind == kind, _Key.name == name)


def is_valid(session: orm.Session, kind: str, name: str,
             number: int) -> bool:
    """Return whether a key was made and is not revoked."""
    return session.scalar(sa.select(_Key.id).where(
        _of(kind, name), _Key.number == number,
        _Key.revoked_at.is_(None))) is not None


def add(session: orm.Session, kind: str, name: str, master_id: str) -> int:
    """Store that a key was made; return its number.

    The number is random. If numbers were counted, a database that was restored
    from a backup would give those again that were given since the backup, and
    with them the same keys, also those that were revoked.
    """
    number = secrets.randbelow(_NUMBERS) + 1
    session.add(_Key(kind=kind, name=name, number=number,
                     master_id=master_id, created_at=clock.utc(session)))
    session.flush()
    return number


def cloud(session: orm.Session) -> str:
    """Return the UUID of the cloud of this database."""
    return session.execute(sa.select(_Cloud.uuid)).scalar_one()


def set_cloud(session: orm.Session, uuid: str) -> None:
    """Make this database that of a cloud which its hosts know.

    :raises Conflict: hosts of the cloud that it is of now would be refused
    """
    known = session.scalar(sa.select(sa.func.count()).select_from(
        models.Host).where(models.Host.session > 0))
    if known and uuid != cloud(session):
        raise exception.Conflict(
            kind='cloud', name=cloud(session),
            reason=f'{known} of its hosts have reported to this database, '
                   f'which would refuse them as those of {uuid}; if it '
                   f'replaces one that was lost, run "gpgpu-manage host '
                   f'delete" for each of them first')
    session.execute(sa.update(_Cloud).values(uuid=uuid))


def masters(session: orm.Session) -> set[str]:
    """Return the IDs of the master keys with which keys were made."""
    return set(session.scalars(sa.select(_Key.master_id).distinct()))


def revoke(session: orm.Session, kind: str, name: str,
           number: int | None) -> list[int]:
    """Revoke a key, or all of a caller; return the numbers that were valid.

    :param number: None: all
    """
    found = session.scalars(
        sa.select(_Key).where(
            _of(kind, name), _Key.revoked_at.is_(None),
            sa.true() if number is None else _Key.number == number)
        .order_by(_Key.id)).all()
    for key in found:
        key.revoked_at = clock.utc(session)
    return [key.number for key in found]


def all_keys(session: orm.Session) -> Sequence[_Key]:
    """Return all keys, by caller and in the order in which they were made."""
    return session.scalars(
        sa.select(_Key).order_by(_Key.kind, _Key.name, _Key.id)).all()


def has_valid(session: orm.Session, kind: str) -> bool:
    """Return whether some caller of a kind has a valid key."""
    return session.scalar(sa.select(_Key.id).where(
        _Key.kind == kind, _Key.revoked_at.is_(None)).limit(1)) is not None


def hosts_without_key(session: orm.Session) -> list[str]:
    """Return the names of live hosts that have no valid key, by name."""
    valid = sa.select(_Key.id).where(
        _of('host', models.Host.name), _Key.revoked_at.is_(None))
    return list(session.scalars(
        sa.select(models.Host.name)
        .where(models.Host.deleted == 0, ~valid.exists())
        .order_by(models.Host.name)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """A call that is executed once.

    :ivar nonce: of its signature
    :ivar seconds: within which another conductor would execute a copy
    :ivar again: error of a copy
    """

    nonce: str
    seconds: float
    again: Exception


_served: contextvars.ContextVar[Call | None] = contextvars.ContextVar(
    'served', default=None)


def serve(call: Call | None) -> None:
    """Have this thread's next transaction note a call; None: have it not.

    Later transactions of the same call do not: it is executed.
    """
    _served.set(call)


def use(session: orm.Session) -> None:
    """Note in a transaction, as its last statement, which call it is of.

    :raises Exception: ``again`` of the call: it is a copy
    """
    call = _served.get()
    if call is None:
        return
    try:
        session.execute(_USE, {
            'nonce': call.nonce,
            'until': clock.epoch(session) + call.seconds})
    except db_exception.DBDuplicateEntry:
        raise call.again from None


def forget(session: orm.Session) -> None:
    """Delete the calls that no conductor executes any more.

    Clocks of conductors may differ from that of the database.
    """
    session.execute(sa.delete(_Call).where(
        _Call.until < clock.now() - _FORGOTTEN))
