# SPDX-License-Identifier: Apache-2.0
"""Tables of the ledger of cleanings; ``models`` makes them part of all."""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import column


class Cleaning(column.Base):
    """A record of the ledger, see domain.ledger; never changed or deleted.

    It has no foreign keys, so that it outlives the objects that it names.

    Unique key: a chain has one record in each place.
    """

    __tablename__ = 'cleanings'
    __table_args__ = (sa.UniqueConstraint('device_uuid', 'number'),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    device_uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='Device in whose chain it is.')
    number: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, comment='Its place in the chain.')
    content: orm.Mapped[str] = orm.mapped_column(
        column.LONG_TEXT,
        comment='Its fields as the JSON that was hashed, so that no database '
        'writes a time or a number in another way.')
    hash: orm.Mapped[str] = orm.mapped_column(
        sa.String(64), comment='SHA-256 of the content.')


class CleaningChain(column.Base):
    """The end of a device's chain, which shows that no last record is missing.

    It is no part of ``devices``, since it outlives the device.

    Unique key: a device has one chain.
    """

    __tablename__ = 'cleaning_chains'
    __table_args__ = (sa.UniqueConstraint('device_uuid'),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    device_uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='Device whose chain it is.')
    number: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0,
        comment='Number of its last record; 0 before the first.')
    hash: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(64), comment='Hash of that record; NULL before the first.')
    started_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        comment='When the cleaning began that has no record yet (UTC); NULL: '
        'there is none.')
    settings: orm.Mapped[str | None] = orm.mapped_column(
        column.LONG_TEXT,
        comment='JSON of what the step "settings" found in the last cleaning '
        'that passed; NULL before it, and after an operator has released the '
        'device as it is.')
