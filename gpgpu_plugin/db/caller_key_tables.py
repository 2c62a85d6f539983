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

    ``kind``, ``name``, ``number``: whose key it is, and which of them (a
    random number); it is derived from these and a master key (rpc.signature),
    whose ID is ``master_id``.
    ``created_at``, ``revoked_at``: when it was made, and from when on it is
    refused (UTC).

    Unique key: a number tells the keys of a caller apart.
    """

    __tablename__ = 'caller_keys'
    __table_args__ = (sa.UniqueConstraint('kind', 'name', 'number'),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    kind: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    name: orm.Mapped[str] = orm.mapped_column(column.NAME)
    number: orm.Mapped[int]
    master_id: orm.Mapped[str] = orm.mapped_column(
        sa.String(16), server_default='unknown')
    created_at: orm.Mapped[datetime.datetime] = orm.mapped_column(
        server_default=column.UNKNOWN_TIME)
    revoked_at: orm.Mapped[datetime.datetime | None]


class ExecutedCall(column.Base):
    """A call that a conductor executed, and that is executed once.

    A copy of the message is refused by all conductors. ``nonce``: of its
    signature. ``until``: seconds since the epoch after which the call is
    refused for its age, and the row deleted.

    Unique key: a call is executed once. Index: rows to delete are found.
    """

    __tablename__ = 'executed_calls'
    __table_args__ = (sa.UniqueConstraint('nonce'),
                      sa.Index(None, 'until'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    nonce: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    until: orm.Mapped[float] = orm.mapped_column(
        sa.Double, server_default='0')


class Cloud(column.Base):
    """Identity of the cloud of this database; one row.

    ``uuid``: made with the table; hosts keep it.
    """

    __tablename__ = 'clouds'
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    uuid: orm.Mapped[str] = orm.mapped_column(sa.String(36))


class HostAnswer(column.Base):
    """The answer of a host to a question of a conductor.

    The conductor that asked waits for it, and deletes it. ``question``: UUID
    of the question. ``host``: name of the host that was asked. ``usages``:
    the answer, JSON of objects.claim.Usage; NULL until there is one.
    ``asked_at``: seconds since the epoch.

    Unique key: a question is asked once. Index: those for which nobody waits
    any more are found.
    """

    __tablename__ = 'host_answers'
    __table_args__ = (sa.UniqueConstraint('question'),
                      sa.Index(None, 'asked_at'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    question: orm.Mapped[str] = orm.mapped_column(column.UUID)
    host: orm.Mapped[str] = orm.mapped_column(column.NAME)
    usages: orm.Mapped[str | None] = orm.mapped_column(column.LONG_TEXT)
    asked_at: orm.Mapped[float] = orm.mapped_column(
        sa.Double, server_default='0')
