# SPDX-License-Identifier: Apache-2.0
"""``exists`` notifications: one per usage and audit period, after its end.

Any number of conductors may write them at once. The row of the state of
notifications orders them, and says how far they are. Which periods have ended
is a matter of the database's clock: that of one conductor may be wrong.
"""

from __future__ import annotations

import datetime
import functools
import logging
from collections.abc import Callable

from sqlalchemy import orm

from gpgpu_plugin.db import api
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import journal
from gpgpu_plugin.db import limits
from gpgpu_plugin.db import notification as notification_db
from gpgpu_plugin.db import outbox
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.domain import audit

CHUNK = 500
"""Number of notifications that one transaction writes."""

DELAY = datetime.timedelta(seconds=2 * limits.TRANSACTION)
"""Time from the end of a period until its usage is known for certain.

A transaction that began or ended usage in it may be committed late.
"""

MISSED = 24
"""Number of periods that are made up for, if no conductor ran."""


def run(db: api.Database, period: audit.AuditPeriod,
        is_stopped: Callable[[], bool] = lambda: False) -> None:
    """Write the notifications of all periods that have ended."""
    write = functools.partial(_write_chunk, period)
    while not is_stopped() and db.write(write):
        pass


def _write_chunk(period: audit.AuditPeriod, session: orm.Session) -> bool:
    """Write some notifications; return whether there may be more."""
    locked = outbox.lock_state(session)
    now = clock.utc(session)
    state = _leave_future(session, locked, period, now)
    # What was begun is completed, even if the length was changed.
    if state.auditing_until is None:
        state = _begin_next(state, period, now)
    beginning, ending = state.audited_until, state.auditing_until
    if beginning is not None and ending is not None:
        rows = usage_db.in_period(
            session, beginning, ending, state.audited_usage_id, CHUNK)
        notification_db.usages_exist(session, rows, beginning, ending)
        state = (_begin_at(state, ending) if len(rows) < CHUNK
                 else state._replace(audited_usage_id=rows[-1]['id']))
    if state != locked:
        outbox.set_state(session, state)
    return ending is not None


def _leave_future(session: orm.Session, state: outbox.AuditState,
                  period: audit.AuditPeriod,
                  now: datetime.datetime) -> outbox.AuditState:
    """Go on with the present period, if later ones were written.

    The clock of the database was ahead.
    """
    until = state.auditing_until or state.audited_until
    if (until is None or state.audited_since is None
            or until <= audit.ending(period, now)):
        return state
    complete = audit.beginning(period, now - DELAY)
    journal.note(
        session, logging.ERROR,
        f'exists notifications were written until {until} UTC, but the '
        f'database has {now:%Y-%m-%d %H:%M:%S}: a clock was ahead. They go on '
        f'from {complete}. Periods before it may have none, and those from it '
        f'to {until} that were written have a second one, which is right')
    return _begin_at(state, complete)._replace(
        audited_since=min(state.audited_since, complete))


def _begin_next(state: outbox.AuditState, period: audit.AuditPeriod,
                now: datetime.datetime) -> outbox.AuditState:
    """Begin with the next period, unless it is not over yet."""
    complete = audit.beginning(period, now - DELAY)
    if state.audited_until is None:
        # Nothing was promised for the time before notifications were enabled.
        return state._replace(audited_since=complete, audited_until=complete)
    beginning = max(state.audited_until, _earliest(period, complete))
    if beginning > state.audited_until:
        state = _begin_at(state, beginning)
    # Shorter than a period, if its length was changed.
    return state if beginning >= complete else state._replace(
        auditing_until=audit.ending(period, beginning))


def _begin_at(state: outbox.AuditState,
              beginning: datetime.datetime) -> outbox.AuditState:
    """Return the state in which the next period begins at a time."""
    return state._replace(audited_until=beginning, audited_usage_id=0,
                          auditing_until=None)


def _earliest(period: audit.AuditPeriod,
              complete: datetime.datetime) -> datetime.datetime:
    """Return the beginning of the first period that is made up for."""
    found = complete
    for _ in range(MISSED):
        found = audit.beginning(
            period, found - datetime.timedelta(microseconds=1))
    return found
