# SPDX-License-Identifier: Apache-2.0
"""Tables of notifications that wait to be sent, and of the state of sending.

Notifications are added in the transaction of the change and read after it. One
conductor at a time sends them: it has a lease by the clock of the database.
If its lease ends before its batch, another one sends the same notifications
again, in the same order, which is that of ``id``.

Unique key of ``notifications``: what was sent is deleted by its message id as
well, since a database may give an id again. ``notification_states`` has one
row, named ``all``, for what all conductors share.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import typing
import uuid
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import clock
from gpgpu_plugin.db import column
from gpgpu_plugin.db import journal
from gpgpu_plugin.domain import notification
from gpgpu_plugin.objects import notification as objects

CHUNK = 1000
"""Number of rows that one transaction deletes."""

MOST_BYTES = 256 * 1024
"""Size of a notification that is written; usual ones have 1 kB. RabbitMQ
refuses more than 16 MiB, and all later notifications would wait for ever
behind one that is refused."""

TABLE = sa.Table(
    'notifications', column.METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('message_id', column.UUID, nullable=False,
              comment='Identifies it for consumers, who may get it twice.'),
    sa.Column('created_at', sa.Double, nullable=False,
              comment='When the change was made, in seconds since the epoch.'),
    sa.Column('message', column.LONG_TEXT, nullable=False,
              comment='JSON of the message.'),
    sa.UniqueConstraint('message_id'))

STATES = sa.Table(
    'notification_states', column.METADATA,
    sa.Column('name', sa.String(32), primary_key=True, comment='"all".'),
    sa.Column('sender', column.UUID,
              comment='UUID of the conductor that sends; NULL: none.'),
    sa.Column('sends_until', sa.Double,
              comment='Until when that conductor sends, in seconds since '
              'the epoch.'),
    sa.Column('dropped', sa.BigInteger, nullable=False, default=0,
              comment='Number of notifications that were deleted unsent, '
              'because too many waited.'),
    sa.Column('audited_until', sa.DateTime,
              comment='End of the last period of which all "exists" '
              'notifications were written (UTC); NULL before the first '
              'audit.'),
    sa.Column('audited_usage_id', sa.Integer, nullable=False, default=0,
              comment='Last usage whose notification was written for the '
              'period after that.'),
    sa.Column('audited_since', sa.DateTime,
              comment='Beginning of the first audit period (UTC); NULL '
              'before the first audit.'),
    sa.Column('auditing_until', sa.DateTime,
              comment='End of a period of which some notifications were '
              'written (UTC); NULL: there is none.'))

_KEY = 'gpgpu_publisher'
_INSERT = sa.insert(TABLE).inline()
_ALL = 'all'


class AuditState(typing.NamedTuple):
    """Progress of the ``exists`` notifications, see the columns."""

    audited_until: datetime.datetime | None
    audited_usage_id: int
    audited_since: datetime.datetime | None
    auditing_until: datetime.datetime | None


_LOCK_STATE = (
    sa.select(*(STATES.c[name] for name in AuditState._fields))
    .where(STATES.c.name == _ALL).with_for_update())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waiting:
    """A notification that waits.

    :ivar message: as oslo.messaging sends it
    """

    id: int
    message_id: str
    message: dict[str, object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Publisher:
    """Whoever publishes the notifications of a transaction.

    :ivar publisher_id: whom they name
    :ivar dropped: counts notifications that are too large to be written
    """

    publisher_id: str
    dropped: Callable[[int], None] = lambda number: None


def enable(session: orm.Session, publisher: Publisher | None) -> None:
    """Note with a transaction who publishes its notifications.

    :param publisher: None: it writes none
    """
    session.info[_KEY] = publisher


def is_enabled(session: orm.Session) -> bool:
    """Return whether a transaction writes notifications."""
    return session.info.get(_KEY) is not None


def add(session: orm.Session, payloads: Iterable[
        tuple[notification.EventType, objects.Payload]]) -> None:
    """Write notifications, in one statement, if they are enabled.

    What is larger than ``MOST_BYTES`` is dropped, with an error in the log.
    """
    publisher: Publisher | None = session.info.get(_KEY)
    if publisher is None:
        return
    now = clock.epoch(session)
    rows = []
    for event_type, payload in payloads:
        row = _row(str(uuid.uuid4()), publisher.publisher_id, now,
                   event_type, payload)
        size = len(row['message'])
        if size <= MOST_BYTES:
            rows.append(row)
            continue
        publisher.dropped(1)
        journal.note(
            session, logging.ERROR,
            f'A notification {event_type} was dropped: it has {size} bytes, '
            f'and may have {MOST_BYTES}. A host sent a text of that size')
    if rows:
        session.execute(_INSERT, rows)


class _Row(typing.TypedDict):
    """Values of a new row of ``notifications``."""

    message_id: str
    created_at: float
    message: str


def _row(message_id: str, publisher_id: str, now: float,
         event_type: notification.EventType,
         payload: objects.Payload) -> _Row:
    at = datetime.datetime.fromtimestamp(now, datetime.UTC)
    return {
        'message_id': message_id, 'created_at': now,
        'message': json.dumps({
            'message_id': message_id,
            'publisher_id': publisher_id,
            'event_type': str(event_type),
            'priority': str(notification.PRIORITIES[event_type]),
            'payload': objects.primitive(payload),
            'timestamp': at.strftime('%Y-%m-%d %H:%M:%S.%f')})}


def may_send(session: orm.Session, sender: str) -> bool:
    """Return whether a notification waits, and no other sender has it."""
    other = sa.exists().where(
        STATES.c.name == _ALL, STATES.c.sender != sender,
        STATES.c.sends_until > clock.now())
    return bool(session.scalar(sa.select(sa.and_(
        sa.exists().where(TABLE.c.id.is_not(None)), ~other))))


def acquire(session: orm.Session, sender: str, seconds: float) -> bool:
    """Become or remain the only sender for some time.

    :param sender: UUID
    :returns: False: another one sends
    """
    now = clock.now()
    done = typing.cast('sa.CursorResult[object]', session.execute(
        sa.update(STATES)
        .where(STATES.c.name == _ALL, sa.or_(
            STATES.c.sender.is_(None), STATES.c.sender == sender,
            STATES.c.sends_until <= now))
        .values(sender=sender, sends_until=now + seconds)))
    return done.rowcount == 1


def give_up(session: orm.Session, sender: str) -> None:
    """Let any conductor send, unless another one does already."""
    session.execute(
        sa.update(STATES)
        .where(STATES.c.name == _ALL, STATES.c.sender == sender)
        .values(sender=None, sends_until=None))


def waiting(session: orm.Session, limit: int) -> list[Waiting]:
    """Return the oldest notifications that wait, in their order."""
    return [
        Waiting(id=row.id, message_id=row.message_id,
                message=json.loads(row.message))
        for row in session.execute(
            sa.select(TABLE.c.id, TABLE.c.message_id, TABLE.c.message)
            .order_by(TABLE.c.id).limit(limit))]


def delete(session: orm.Session, sent: Sequence[Waiting]) -> None:
    """Delete notifications that the broker has."""
    session.execute(sa.delete(TABLE).where(
        TABLE.c.id.in_([row.id for row in sent]),
        TABLE.c.message_id.in_([row.message_id for row in sent])))


def drop_oldest(session: orm.Session, limit: int) -> int:
    """Delete the oldest notifications if more than a limit wait.

    :returns: number of those that were deleted, ``CHUNK`` at most, which are
        counted for ``dropped``
    """
    session.execute(sa.select(STATES.c.name).where(
        STATES.c.name == _ALL).with_for_update())
    least, greatest = session.execute(sa.select(
        sa.func.min(TABLE.c.id), sa.func.max(TABLE.c.id))).one()
    # Ids have gaps; counting the rows takes longer.
    if least is None or greatest - least < limit:
        return 0
    excess = min(CHUNK, number(session) - limit)
    if excess <= 0:
        return 0
    ids = session.scalars(
        sa.select(TABLE.c.id).order_by(TABLE.c.id).limit(excess)).all()
    session.execute(sa.delete(TABLE).where(TABLE.c.id.in_(ids)))
    session.execute(
        sa.update(STATES).where(STATES.c.name == _ALL)
        .values(dropped=STATES.c.dropped + len(ids)))
    return len(ids)


def number(session: orm.Session) -> int:
    """Return how many notifications wait."""
    return int(session.scalars(
        sa.select(sa.func.count()).select_from(TABLE)).one())


def dropped(session: orm.Session) -> int:
    """Return how many notifications were deleted unsent, ever."""
    return int(session.scalars(
        sa.select(STATES.c.dropped).where(STATES.c.name == _ALL)).one())


def lock_state(session: orm.Session) -> AuditState:
    """Return the state, locked until the transaction ends.

    It must be the transaction's first statement, or follow the lock of a host
    (see db.api). Nobody locks a host after it.
    """
    return AuditState(*session.execute(_LOCK_STATE).one())


def set_state(session: orm.Session, state: AuditState) -> None:
    """Store the state, which the transaction has locked."""
    session.execute(sa.update(STATES).where(STATES.c.name == _ALL)
                    .values(state._asdict()))


def audited_until(state: AuditState,
                  usage_id: int) -> datetime.datetime | None:
    """Return until when the ``exists`` notifications of a usage are written.

    :returns: None: none ever was
    """
    return (state.auditing_until if usage_id <= state.audited_usage_id
            else None) or state.audited_until
