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
    ``message_id``: identifies it for consumers, who may get it twice.
    ``created_at``: when the change was made, in seconds since the epoch by the
    database's clock. ``message``: JSON of the message.

    Unique key: what was sent is deleted by its message id as well, since a
    database may give an id again.
    """

    __tablename__ = 'notifications'
    __table_args__ = (sa.UniqueConstraint('message_id'),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    message_id: orm.Mapped[str] = orm.mapped_column(column.UUID)
    created_at: orm.Mapped[float] = orm.mapped_column(
        sa.Double, default=0, server_default='0')
    message: orm.Mapped[str] = orm.mapped_column(
        column.LONG_TEXT, server_default=column.EMPTY_OBJECT)


class NotificationState(column.Base):
    """State of sending that all conductors share; one row.

    ``name``: ``all``. ``sender``: UUID of the conductor that sends, until
    ``sends_until`` in seconds since the epoch by the database's clock.
    ``dropped``: number of notifications that were deleted unsent, because too
    many waited. ``audited_since``: beginning of the first audit period (UTC);
    NULL before it.
    ``audited_until``: end of the last period of which all ``exists``
    notifications were written; NULL before the first one.
    ``audited_usage_id``: the last usage whose notification was written for the
    period after that, which ends at ``auditing_until``. That is NULL, or not
    after ``audited_until``, unless some of them were written.
    """

    __tablename__ = 'notification_states'
    name: orm.Mapped[str] = orm.mapped_column(sa.String(32), primary_key=True)
    sender: orm.Mapped[str | None] = orm.mapped_column(column.UUID)
    sends_until: orm.Mapped[float | None] = orm.mapped_column(sa.Double)
    dropped: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0, server_default='0')
    audited_until: orm.Mapped[datetime.datetime | None]
    audited_usage_id: orm.Mapped[int] = orm.mapped_column(
        default=0, server_default='0')
    audited_since: orm.Mapped[datetime.datetime | None]
    auditing_until: orm.Mapped[datetime.datetime | None]
