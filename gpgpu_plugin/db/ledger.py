# SPDX-License-Identifier: Apache-2.0
"""Tables ``cleanings``, the ledger (domain.ledger), and ``cleaning_chains``.

Records are added in transactions that locked the device's host, so that they
are one chain. Nothing changes or deletes them. The end of a device's chain
shows that no last record is missing; it is no part of ``devices``, since it
outlives the device. There are no foreign keys for the same reason.

Unique keys: a chain has one record in each place, and a device one chain.
"""

from __future__ import annotations

import datetime
import typing
from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import ledger

TABLE = sa.Table(
    'cleanings', tables.METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('device_uuid', tables.UUID, nullable=False,
              comment='Device in whose chain it is.'),
    sa.Column('number', sa.BigInteger, nullable=False,
              comment='Its place in the chain.'),
    sa.Column('content', tables.LONG_TEXT, nullable=False,
              comment='Its fields as the JSON that was hashed, so that no '
              'database writes a time or a number in another way.'),
    sa.Column('hash', sa.String(64), nullable=False,
              comment='SHA-256 of the content.'),
    sa.UniqueConstraint('device_uuid', 'number'))

CHAINS = sa.Table(
    'cleaning_chains', tables.METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('device_uuid', tables.UUID, nullable=False,
              comment='Device whose chain it is.'),
    sa.Column('number', sa.BigInteger, nullable=False, default=0,
              comment='Number of its last record; 0 before the first.'),
    sa.Column('hash', sa.String(64),
              comment='Hash of that record; NULL before the first.'),
    sa.Column('started_at', sa.DateTime,
              comment='When the cleaning began that has no record yet '
              '(UTC); NULL: there is none.'),
    sa.Column('settings', tables.LONG_TEXT,
              comment='JSON of what the step "settings" found in the last '
              'cleaning that passed; NULL before it, and after an operator '
              'has released the device as it is.'),
    sa.UniqueConstraint('device_uuid'))


class Chain(typing.NamedTuple):
    """The end of a device's chain.

    ``id``: of its row; None: there is none, as before the first cleaning.
    """

    device_uuid: str
    id: int | None = None
    number: int = 0
    hash: str | None = None
    started_at: datetime.datetime | None = None
    settings: str | None = None


_CHAIN = sa.select(*(CHAINS.c[name] for name in Chain._fields)).where(
    CHAINS.c.device_uuid == sa.bindparam('device_uuid'))


def chain(session: orm.Session, device_uuid: str) -> Chain:
    """Return the end of a device's chain."""
    row = session.execute(
        _CHAIN, {'device_uuid': device_uuid}).one_or_none()
    return Chain(device_uuid) if row is None else Chain(*row)


def start(session: orm.Session, device_uuid: str,
          at: datetime.datetime) -> None:
    """Note when a cleaning began, for its record."""
    _set(session, chain(session, device_uuid), started_at=at)


def add(session: orm.Session, end: Chain, record: ledger.Record,
        settings: str | None) -> None:
    """Add a record to a chain, and set the settings at its end."""
    session.execute(sa.insert(TABLE).values(
        device_uuid=end.device_uuid, number=record.number,
        content=record.content, hash=record.hash))
    _set(session, end, number=record.number, hash=record.hash,
         started_at=None, settings=settings)


def _set(session: orm.Session, end: Chain, **values: object) -> None:
    # Not an UPDATE that may find no row: it would lock a gap on MariaDB.
    session.execute(
        sa.insert(CHAINS).values(device_uuid=end.device_uuid, **values)
        if end.id is None else
        sa.update(CHAINS).where(CHAINS.c.id == end.id).values(**values))


def listed(session: orm.Session, device_uuid: str, limit: int,
           after: int = 0) -> tuple[ledger.Record, ...]:
    """Return records of a device, in their order.

    :param after: number of the record before the first one
    """
    return tuple(
        ledger.Record(number=number, content=content, hash=digest)
        for number, content, digest in session.execute(
            sa.select(TABLE.c.number, TABLE.c.content, TABLE.c.hash)
            .where(TABLE.c.device_uuid == device_uuid, TABLE.c.number > after)
            .order_by(TABLE.c.number).limit(limit)))


def last(session: orm.Session,
         device_uuids: Collection[str]) -> list[str]:
    """Return the content of the last record of each of some devices."""
    return list(session.scalars(
        sa.select(TABLE.c.content)
        .join(CHAINS, sa.and_(CHAINS.c.device_uuid == TABLE.c.device_uuid,
                              CHAINS.c.number == TABLE.c.number))
        .where(TABLE.c.device_uuid.in_(device_uuids))))
