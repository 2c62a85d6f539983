# SPDX-License-Identifier: Apache-2.0
"""Tables of notifications that are to be sent; ``models`` imports them."""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import column


class Notification(column.Base):
    """A notification that no broker has confirmed yet.

    It is written in the transaction of the change, and deleted when the broker
    has it. Notifications are sent in the order of ``id``.

    Unique key: what was sent is deleted by its message id as well, since a
    database may give an id again.
    """

    __tablename__ = 'notifications'
    __table_args__ = (sa.UniqueConstraint('message_id'),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    message_id: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='Identifies it for consumers, who may get it '
        'twice.')
    created_at: orm.Mapped[float] = orm.mapped_column(
        sa.Double,
        comment='When the change was made, in seconds since the epoch.')
    message: orm.Mapped[str] = orm.mapped_column(
        column.LONG_TEXT, comment='JSON of the message.')


class NotificationState(column.Base):
    """State of sending that all conductors share; one row, named ``all``."""

    __tablename__ = 'notification_states'
    name: orm.Mapped[str] = orm.mapped_column(
        sa.String(32), primary_key=True, comment='"all".')
    sender: orm.Mapped[str | None] = orm.mapped_column(
        column.UUID, comment='UUID of the conductor that sends; NULL: none.')
    sends_until: orm.Mapped[float | None] = orm.mapped_column(
        sa.Double,
        comment='Until when that conductor sends, in seconds since the epoch.')
    dropped: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0,
        comment='Number of notifications that were deleted unsent, because '
        'too many waited.')
    audited_until: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        comment='End of the last period of which all "exists" notifications '
        'were written (UTC); NULL before the first audit.')
    audited_usage_id: orm.Mapped[int] = orm.mapped_column(
        default=0,
        comment='Last usage whose notification was written for the period '
        'after that.')
    audited_since: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        comment='Beginning of the first audit period (UTC); NULL before the '
        'first audit.')
    auditing_until: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        comment='End of a period of which some notifications were written '
        '(UTC); NULL: there is none.')
