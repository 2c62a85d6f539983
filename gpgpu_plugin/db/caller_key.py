# SPDX-License-Identifier: Apache-2.0
"""Tables ``caller_keys``, ``executed_calls`` and ``clouds``.

A key itself is not stored: it is derived from a master key and from kind, name
and number (rpc.signature). A copy of a call that was executed is refused by
all conductors. ``clouds`` has one row, the identity of this database's cloud.

Unique keys: a number tells the keys of a caller apart, and a call is executed
once. Index: calls to delete are found.
"""

from __future__ import annotations

import contextvars
import dataclasses
import datetime
import secrets
import typing

import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import tables

TABLE = sa.Table(
    'caller_keys', tables.METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('kind', sa.String(16), nullable=False,
              comment='Kind of the caller, such as "host".'),
    sa.Column('name', tables.NAME, nullable=False,
              comment='Name of the caller, such as that of the host.'),
    sa.Column('number', sa.Integer, nullable=False,
              comment='Random number of the key.'),
    sa.Column('master_id', sa.String(16), nullable=False,
              comment='ID of the master key.'),
    sa.Column('created_at', sa.DateTime, nullable=False,
              comment='When it was made (UTC).'),
    sa.Column('revoked_at', sa.DateTime,
              comment='From when on it is refused (UTC); NULL: it is valid.'),
    sa.UniqueConstraint('kind', 'name', 'number'))

CALLS = sa.Table(
    'executed_calls', tables.METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('nonce', sa.String(64), nullable=False,
              comment='Nonce of the signature.'),
    sa.Column('until', sa.Double, nullable=False,
              comment='When a copy is refused for its age, and the row '
              'deleted, in seconds since the epoch.'),
    sa.UniqueConstraint('nonce'),
    sa.Index(None, 'until'))

CLOUDS = sa.Table(
    'clouds', tables.METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('uuid', tables.UUID, nullable=False,
              comment='Made with the table; hosts keep it.'))

_USE = sa.insert(CALLS).inline()

_FORGOTTEN = 300
"""Seconds by which the clock of a conductor may be behind the database's."""

_NUMBERS = 2 ** 31 - 1
"""Largest number of a key, as large as an INTEGER of all databases can be."""


class CallerKey(typing.NamedTuple):
    """A key that was made for a caller."""

    kind: str
    name: str
    number: int
    master_id: str
    created_at: datetime.datetime
    revoked_at: datetime.datetime | None


def _of(kind: str, name: str | sa.SQLColumnExpression[str],
        ) -> sa.ColumnElement[bool]:
    return sa.and_(TABLE.c.kind == kind, TABLE.c.name == name)


def is_valid(session: orm.Session, kind: str, name: str,
             number: int) -> bool:
    """Return whether a key was made and is not revoked."""
    return session.scalar(sa.select(TABLE.c.id).where(
        _of(kind, name), TABLE.c.number == number,
        TABLE.c.revoked_at.is_(None))) is not None


def of_session(session: orm.Session, host: str) -> tuple[int, str] | None:
    """Return the number and the master key of the key of a host's session.

    A host that was deleted counts, since its nova-compute may run.

    :returns: None: the host does not sign its calls, or its key is revoked
    """
    found = session.execute(
        sa.select(TABLE.c.number, TABLE.c.master_id)
        .join(tables.HOSTS, TABLE.c.number == tables.HOSTS.c.key_number)
        .where(_of('host', tables.HOSTS.c.name), TABLE.c.revoked_at.is_(None),
               tables.HOSTS.c.name == host)
        .order_by(tables.HOSTS.c.id.desc())).first()
    return None if found is None else (found.number, found.master_id)


def add(session: orm.Session, kind: str, name: str, master_id: str) -> int:
    """Store that a key was made; return its number.

    The number is random. If numbers were counted, a database that was restored
    from a backup would give those again that were given since the backup, and
    with them the same keys, also those that were revoked.
    """
    number = secrets.randbelow(_NUMBERS) + 1
    session.execute(sa.insert(TABLE).values(
        kind=kind, name=name, number=number, master_id=master_id,
        created_at=clock.utc(session)))
    return number


def cloud(session: orm.Session) -> str:
    """Return the UUID of the cloud of this database."""
    return str(session.scalars(sa.select(CLOUDS.c.uuid)).one())


def set_cloud(session: orm.Session, uuid: str) -> None:
    """Make this database that of a cloud which its hosts know.

    :raises Conflict: hosts of the cloud that it is of now would be refused
    """
    known = session.scalar(sa.select(sa.func.count()).select_from(
        tables.HOSTS).where(tables.HOSTS.c.session > 0))
    if known and uuid != cloud(session):
        raise exception.Conflict(
            kind='cloud', name=cloud(session),
            reason=f'{known} of its hosts have reported to this database, '
                   f'which would refuse them as those of {uuid}; if it '
                   f'replaces one that was lost, run "gpgpu-manage host '
                   f'delete" for each of them first')
    session.execute(sa.update(CLOUDS).values(uuid=uuid))


def masters(session: orm.Session) -> set[str]:
    """Return the IDs of the master keys with which keys were made."""
    return set(session.scalars(sa.select(TABLE.c.master_id).distinct()))


def revoke(session: orm.Session, kind: str, name: str,
           number: int | None) -> list[int]:
    """Revoke a key, or all of a caller; return the numbers that were valid.

    :param number: None: all
    """
    found = dict(session.execute(
        sa.select(TABLE.c.id, TABLE.c.number).where(
            _of(kind, name), TABLE.c.revoked_at.is_(None),
            sa.true() if number is None else TABLE.c.number == number)
        .order_by(TABLE.c.id)).tuples().all())
    session.execute(sa.update(TABLE).where(TABLE.c.id.in_(found)).values(
        revoked_at=clock.utc(session)))
    return list(found.values())


def all_keys(session: orm.Session) -> list[CallerKey]:
    """Return all keys, by caller and in the order in which they were made."""
    return [CallerKey(*row) for row in session.execute(
        sa.select(*(TABLE.c[name] for name in CallerKey._fields))
        .order_by(TABLE.c.kind, TABLE.c.name, TABLE.c.id))]


def has_valid(session: orm.Session, kind: str) -> bool:
    """Return whether some caller of a kind has a valid key."""
    return session.scalar(
        sa.select(TABLE.c.id)
        .where(TABLE.c.kind == kind, TABLE.c.revoked_at.is_(None))
        .limit(1)) is not None


def hosts_without_key(session: orm.Session) -> list[str]:
    """Return the names of live hosts that have no valid key, by name."""
    valid = sa.select(TABLE.c.id).where(
        _of('host', tables.HOSTS.c.name), TABLE.c.revoked_at.is_(None))
    return list(session.scalars(
        sa.select(tables.HOSTS.c.name)
        .where(tables.HOSTS.c.deleted == 0, ~valid.exists())
        .order_by(tables.HOSTS.c.name)))


def of_unknown_hosts(session: orm.Session) -> list[tuple[str, int]]:
    """Return name and number of valid keys of hosts that do not exist."""
    live = sa.select(tables.HOSTS.c.id).where(
        tables.HOSTS.c.name == TABLE.c.name, tables.HOSTS.c.deleted == 0)
    return list(session.execute(
        sa.select(TABLE.c.name, TABLE.c.number)
        .where(TABLE.c.kind == 'host', TABLE.c.revoked_at.is_(None),
               ~live.exists())
        .order_by(TABLE.c.name, TABLE.c.id)).tuples())


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
    session.execute(sa.delete(CALLS).where(
        CALLS.c.until < clock.now() - _FORGOTTEN))
