# SPDX-License-Identifier: Apache-2.0
"""Tables of callers: keys, executed calls, answers.

``models`` makes them part of all.
"""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import column


class CallerKey(column.Base):
    """A key that was made for a caller; the key itself is not stored.

    It is derived from a master key and from kind, name and number
    (rpc.signature).

    Unique key: a number tells the keys of a caller apart.
    """

    __tablename__ = 'caller_keys'
    __table_args__ = (sa.UniqueConstraint('kind', 'name', 'number'),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    kind: orm.Mapped[str] = orm.mapped_column(
        sa.String(16), comment='Kind of the caller, such as "host".')
    name: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Name of the caller, such as that of the host.')
    number: orm.Mapped[int] = orm.mapped_column(
        comment='Random number of the key.')
    master_id: orm.Mapped[str] = orm.mapped_column(
        sa.String(16), comment='ID of the master key.')
    created_at: orm.Mapped[datetime.datetime] = orm.mapped_column(
        comment='When it was made (UTC).')
    revoked_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        comment='From when on it is refused (UTC); NULL: it is valid.')


class ExecutedCall(column.Base):
    """A call that a conductor executed, and that is executed once.

    A copy of the message is refused by all conductors.

    Unique key: a call is executed once. Index: rows to delete are found.
    """

    __tablename__ = 'executed_calls'
    __table_args__ = (sa.UniqueConstraint('nonce'),
                      sa.Index(None, 'until'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    nonce: orm.Mapped[str] = orm.mapped_column(
        sa.String(64), comment='Nonce of the signature.')
    until: orm.Mapped[float] = orm.mapped_column(
        sa.Double,
        comment='When a copy is refused for its age, and the row deleted, in '
        'seconds since the epoch.')


class Cloud(column.Base):
    """Identity of the cloud of this database; one row."""

    __tablename__ = 'clouds'
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='Made with the table; hosts keep it.')


class HostAnswer(column.Base):
    """The answer of a host to a question of a conductor.

    The conductor that asked waits for it, and deletes it.

    Unique key: a question is asked once. Index: those for which nobody waits
    any more are found.
    """

    __tablename__ = 'host_answers'
    __table_args__ = (sa.UniqueConstraint('question'),
                      sa.Index(None, 'asked_at'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    question: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='UUID of the question.')
    host: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Name of the host that was asked.')
    usages: orm.Mapped[str | None] = orm.mapped_column(
        column.LONG_TEXT,
        comment='The answer, as JSON; NULL until there is one.')
    asked_at: orm.Mapped[float] = orm.mapped_column(
        sa.Double, comment='When it was asked, in seconds since the epoch.')
