#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""``exists`` notifications: one per usage and audit period, after its end.

Any number of conductors may write them at once. The row of the state of
notifications orders them, and says how far they are.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable

from sqlalchemy import orm

from gpgpu_plugin.db import api
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import limits
from gpgpu_plugin.db import models
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
    state = outbox.lock_state(session)
    # What was begun is completed, even if the length was changed.
    ending = outbox.auditing_until(state) or _begin_next(state, period)
    beginning = state.audited_until
    if beginning is None or ending is None:
        return False
    rows = usage_db.in_period(
        session, beginning, ending, state.audited_usage_id, CHUNK)
    notification_db.usages_exist(session, rows, beginning, ending)
    if len(rows) < CHUNK:
        _begin_at(state, ending)
    else:
        state.audited_usage_id = rows[-1]['id']
        state.auditing_until = ending
    return True


def _begin_next(state: models.NotificationState,
                period: audit.AuditPeriod) -> datetime.datetime | None:
    """Return the end of the next period; None: it is not over yet."""
    complete = audit.beginning(period, event_db.now() - DELAY)
    if state.audited_until is None:
        # Nothing was promised for the time before notifications were enabled.
        state.audited_since = state.audited_until = complete
    earliest = _earliest(period, complete)
    if state.audited_until < earliest:
        _begin_at(state, earliest)
    if state.audited_until >= complete:
        return None
    # Shorter than a period, if its length was changed.
    return audit.ending(period, state.audited_until)


def _begin_at(state: models.NotificationState,
              beginning: datetime.datetime) -> None:
    """Record that the next period begins at a time."""
    state.audited_until, state.audited_usage_id = beginning, 0
    state.auditing_until = None


def _earliest(period: audit.AuditPeriod,
              complete: datetime.datetime) -> datetime.datetime:
    """Return the beginning of the first period that is made up for."""
    found = complete
    for _ in range(MISSED):
        found = audit.beginning(
            period, found - datetime.timedelta(microseconds=1))
    return found
