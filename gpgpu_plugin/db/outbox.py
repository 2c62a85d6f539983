# SPDX-License-Identifier: Apache-2.0
"""Events whose notifications wait to be sent, and the state of sending.

One conductor at a time sends them: it has a lease by the clock of the
database. If its lease ends before its batch, another one sends the same
notifications again, in the same order, which is that of the events. Those of
one host were given their ids while it was locked.

``notification_states`` has one row, named ``all``, for what all conductors
share.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import typing
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import clock
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import tables

CHUNK = 1000
"""Number of rows that one transaction deletes."""

MAX_BYTES = 256 * 1024
"""Size of the notifications of an event that are sent; usual ones have 1 kB.
RabbitMQ refuses more than 16 MiB, and all later notifications would wait for
ever behind one that is refused."""

STATES = sa.Table(
    'notification_states', tables.METADATA,
    sa.Column('name', sa.String(32), primary_key=True, comment='"all".'),
    sa.Column('sender', tables.UUID,
              comment='UUID of the conductor that sends; NULL: none.'),
    sa.Column('sends_until', sa.Double,
              comment='Until when that conductor sends, in seconds since '
              'the epoch.'),
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

_ALL = 'all'
_EVENTS = event_db.TABLE
_UNSENT = event_db.UNSENT
_NUMBER = sa.select(sa.func.count()).select_from(_UNSENT)


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
    """An event whose notifications wait.

    :ivar messages: as oslo.messaging sends them; empty: they are too large
    """

    id: int
    kind: str
    messages: Sequence[dict[str, object]]


def may_send(session: orm.Session, sender: str) -> bool:
    """Return whether a notification waits, and no other sender has it."""
    other = sa.exists().where(
        STATES.c.name == _ALL, STATES.c.sender != sender,
        STATES.c.sends_until > clock.now())
    return bool(session.scalar(sa.select(sa.and_(
        sa.exists().where(_UNSENT.c.event_id.is_not(None)), ~other))))


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
    """Return the oldest events that wait, in their order."""
    return [
        Waiting(id=row.id, kind=row.kind,
                messages=json.loads(row.messages or '[]'))
        for row in session.execute(
            sa.select(_EVENTS.c.id, _EVENTS.c.kind, sa.case((
                sa.func.length(_EVENTS.c.notifications) <= MAX_BYTES,
                _EVENTS.c.notifications)).label('messages'))
            .join(_UNSENT, _UNSENT.c.event_id == _EVENTS.c.id)
            .order_by(_UNSENT.c.event_id).limit(limit))]


def delete(session: orm.Session, sent: Sequence[Waiting]) -> None:
    """Have events wait no more; those that are no history go."""
    ids = [row.id for row in sent]
    session.execute(sa.delete(_UNSENT).where(_UNSENT.c.event_id.in_(ids)))
    # Nobody reads the messages again, which are larger than their events.
    session.execute(sa.update(_EVENTS).where(_EVENTS.c.id.in_(ids)).values(
        notifications=None))
    passing = [row.id for row in sent if row.kind == 'exists']
    if passing:
        session.execute(sa.delete(_EVENTS).where(_EVENTS.c.id.in_(passing)))


def drop_oldest(session: orm.Session, limit: int) -> int:
    """Have the oldest events wait no more, if more than a limit do.

    :returns: number of those events, ``CHUNK`` at most
    """
    session.execute(sa.select(STATES.c.name).where(
        STATES.c.name == _ALL).with_for_update())
    least, greatest = session.execute(sa.select(
        sa.func.min(_UNSENT.c.event_id), sa.func.max(_UNSENT.c.event_id),
        )).one()
    # Ids have gaps; counting the rows takes longer.
    if least is None or greatest - least < limit:
        return 0
    excess = min(CHUNK, number(session) - limit)
    if excess <= 0:
        return 0
    oldest = waiting(session, excess)
    delete(session, oldest)
    return len(oldest)


def number(session: orm.Session) -> int:
    """Return how many events wait."""
    return int(session.scalars(_NUMBER).one())


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
