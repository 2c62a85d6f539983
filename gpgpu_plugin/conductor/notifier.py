# SPDX-License-Identifier: Apache-2.0
"""Notifications, sent after the transactions that wrote them.

Any number of conductors have this thread, and one of them sends at a time
(db.outbox). An event waits until the broker has confirmed its notifications.
If the conductor dies in between, the next one sends those of up to ``BATCH``
events again: consumers get each at least once, in the order in which they were
written, apart from repetitions.
"""

from __future__ import annotations

import datetime
import functools
import logging as std_logging
import threading
import time
import typing
import uuid
from collections.abc import Callable
from collections.abc import Sequence

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.db import clock as clock_db
from gpgpu_plugin.db import notification as notification_db
from gpgpu_plugin.db import outbox
from gpgpu_plugin.db import transaction
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.domain import event

LOG = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two searches for notifications."""

MAX_PAUSE = 30.0
"""Seconds after which a broker that is away is tried again at the latest."""

BATCH = 100
"""Number of events whose notifications are read and sent at once."""

BATCHES = 100
"""Number of batches after which other duties of the thread are due again."""

LIMIT = 1_000_000
"""Notifications that may wait, of about a kilobyte each."""

LEASE = 60.0
"""Seconds after which another conductor sends, if this one has died."""

AUDIT_INTERVAL = 30.0
"""Seconds between two searches for an audit period that has ended."""


class NotificationPublisher(typing.Protocol):
    """rpc.transport.Publisher, as far as it is used here."""

    def publish(self, message: dict[str, object]) -> None:
        """Publish a message.

        :raises BrokerUnavailable: it is not certain that the broker has it
        """

    def close(self) -> None:
        """Close all connections."""


class Observer(typing.Protocol):
    """Counters of the notifications of this process."""

    def published(self, number: int) -> None:
        """Count notifications that the broker has."""

    def publish_failed(self) -> None:
        """Count an attempt to send one that failed."""

    def notifications_dropped(self, number: int) -> None:
        """Count events whose notifications are never sent."""


class Notifier:
    """Sender of the notifications of a database.

    :param limit: number of events that may wait; the notifications of more
        are never sent, the oldest ones first
    :param period: of ``exists`` notifications; None: there are none
    :param clock: seconds of a clock that never goes back
    """

    def __init__(self, db: api.Database, publisher: NotificationPublisher,
                 observer: Observer, *, limit: int = LIMIT,
                 period: event.AuditPeriod | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._publisher = publisher
        self._observer = observer
        self._limit = limit
        self._period = period
        self._clock = clock
        self._uuid = str(uuid.uuid4())
        self._pause = INTERVAL
        self._audited: float | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def run_once(self) -> float:
        """Send what waits; return how long to wait; never raises."""
        try:
            self._audit()
            if self._send_all():
                self._pause = INTERVAL
            else:
                self._pause = min(2 * self._pause, MAX_PAUSE)
        except exception.ConductorUnavailable as exc:
            LOG.warning('Cannot read notifications, trying again in '
                        '%(seconds)d s: %(reason)s',
                        {'seconds': MAX_PAUSE, 'reason': exc})
            return MAX_PAUSE
        except Exception:
            LOG.exception('Cannot send notifications, trying again in %d s',
                          MAX_PAUSE)
            return MAX_PAUSE
        return self._pause

    def _audit(self) -> None:
        now = self._clock()
        if self._period is not None and (
                self._audited is None or now - self._audited > AUDIT_INTERVAL):
            self._audited = now
            try:
                audit_usage(
                    self._db, self._period, self._stopped.is_set)
            except exception.ConductorUnavailable:
                raise
            except Exception:
                # What waits is sent all the same.
                LOG.exception('Cannot notify of the usage in audit periods, '
                              'trying again in %d s', AUDIT_INTERVAL)

    def _send_all(self) -> bool:
        """Return whether the broker took all that was tried."""
        for batch in range(BATCHES):
            with self._db.reader() as session:
                if (self._stopped.is_set()
                        or not outbox.may_send(session, self._uuid)):
                    return True
            began = self._clock()
            if not self._db.write(lambda session: outbox.acquire(
                    session, self._uuid, LEASE)):
                return True
            if batch == 0:
                self._drop()
            if not self._send_batch(began):
                # Its way to the broker may be the only one that is down.
                self._give_up()
                return False
        return True

    def _send_batch(self, began: float) -> bool:
        """Send those of the oldest events; return whether it took all.

        :param began: when the lease began
        """
        with self._db.reader() as session:
            batch = outbox.waiting(session, BATCH)
        sent: list[outbox.Waiting] = []
        try:
            for waiting in batch:
                if (self._stopped.is_set()
                        or self._clock() - began > LEASE):
                    break
                if not waiting.messages:
                    self._observer.notifications_dropped(1)
                    LOG.error(
                        'The notifications of event %(event)d are not sent: '
                        'they have more than %(limit)d bytes. A host sent a '
                        'text of that size', {
                            'event': waiting.id, 'limit': outbox.MAX_BYTES})
                for message in waiting.messages:
                    self._publisher.publish(message)
                sent.append(waiting)
        except exception.BrokerUnavailable as exc:
            self._observer.publish_failed()
            LOG.warning('Notifications wait until the broker takes them: '
                        '%(reason)s', {'reason': exc})
            return False
        finally:
            self._forget(sent)
        return True

    def _forget(self, sent: Sequence[outbox.Waiting]) -> None:
        if sent:
            self._db.write(lambda session: outbox.delete(session, sent))
            self._observer.published(
                sum(len(waiting.messages) for waiting in sent))

    def _drop(self) -> None:
        while dropped := self._db.write(
                lambda session: outbox.drop_oldest(session, self._limit)):
            self._observer.notifications_dropped(dropped)
            LOG.error('The notifications of %(number)d events will never be '
                      'sent, the oldest ones, since more than %(limit)d '
                      'events waited',
                      {'number': dropped, 'limit': self._limit})

    def _give_up(self) -> None:
        self._db.write(
            lambda session: outbox.give_up(session, self._uuid))

    def start(self) -> None:
        """Send in a thread of its own, until ``stop``."""
        self._stopped.clear()
        self._thread = threading.Thread(
            target=self._run, name='gpgpu-notifications', daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self.run_once()):
            pass

    def stop(self) -> None:
        """End the thread after the notification under way.

        What waits is sent by another conductor, or after the next start.
        """
        if self._thread is not None:
            self._stopped.set()
            self._thread.join()
            self._thread = None
            try:
                self._give_up()
            except exception.ConductorUnavailable as exc:
                LOG.warning('Other conductors send notifications in %(lease)d '
                            's: %(reason)s', {'lease': LEASE, 'reason': exc})
        self._publisher.close()


# -- ``exists`` notifications: one per usage and audit period, after its end.
#
# Any number of conductors may write them at once. The row of the state of
# notifications orders them, and says how far they are. Which periods have
# ended is a matter of the database's clock: that of one conductor may be
# wrong.


AUDIT_CHUNK = 500
"""Number of notifications that one transaction writes."""

AUDIT_DELAY = datetime.timedelta(seconds=2 * api.TRANSACTION_LIMIT)
"""Time from the end of a period until its usage is known for certain.

A transaction that began or ended usage in it may be committed late.
"""

AUDIT_MISSED = 24
"""Number of periods that are made up for, if no conductor ran."""


def audit_usage(db: api.Database, period: event.AuditPeriod,
                is_stopped: Callable[[], bool] = lambda: False) -> None:
    """Write the notifications of all periods that have ended."""
    write = functools.partial(_write_chunk, period)
    while not is_stopped() and db.write(write):
        pass


def _write_chunk(period: event.AuditPeriod, session: orm.Session) -> bool:
    """Write some notifications; return whether there may be more."""
    locked = outbox.lock_state(session)
    now = clock_db.utc(session)
    state = _leave_future(session, locked, period, now)
    # What was begun is completed, even if the length was changed.
    if state.auditing_until is None:
        state = _begin_next(state, period, now)
    beginning, ending = state.audited_until, state.auditing_until
    if beginning is not None and ending is not None:
        rows = usage_db.in_period(
            session, beginning, ending, state.audited_usage_id, AUDIT_CHUNK)
        notification_db.usages_exist(session, rows, beginning, ending)
        state = (_begin_at(state, ending) if len(rows) < AUDIT_CHUNK
                 else state._replace(audited_usage_id=rows[-1]['id']))
    if state != locked:
        outbox.set_state(session, state)
    return ending is not None


def _leave_future(session: orm.Session, state: outbox.AuditState,
                  period: event.AuditPeriod,
                  now: datetime.datetime) -> outbox.AuditState:
    """Go on with the present period, if later ones were written.

    The clock of the database was ahead.
    """
    until = state.auditing_until or state.audited_until
    if (until is None or state.audited_since is None
            or until <= event.period_ending(period, now)):
        return state
    complete = event.period_beginning(period, now - AUDIT_DELAY)
    transaction.note_line(
        session, std_logging.ERROR,
        f'exists notifications were written until {until} UTC, but the '
        f'database has {now:%Y-%m-%d %H:%M:%S}: a clock was ahead. They go on '
        f'from {complete}. Periods before it may have none, and those from it '
        f'to {until} that were written have a second one, which is right')
    return _begin_at(state, complete)._replace(
        audited_since=min(state.audited_since, complete))


def _begin_next(state: outbox.AuditState, period: event.AuditPeriod,
                now: datetime.datetime) -> outbox.AuditState:
    """Begin with the next period, unless it is not over yet."""
    complete = event.period_beginning(period, now - AUDIT_DELAY)
    if state.audited_until is None:
        # Nothing was promised for the time before notifications were enabled.
        return state._replace(audited_since=complete, audited_until=complete)
    beginning = max(state.audited_until, _earliest(period, complete))
    if beginning > state.audited_until:
        state = _begin_at(state, beginning)
    # Shorter than a period, if its length was changed.
    return state if beginning >= complete else state._replace(
        auditing_until=event.period_ending(period, beginning))


def _begin_at(state: outbox.AuditState,
              beginning: datetime.datetime) -> outbox.AuditState:
    """Return the state in which the next period begins at a time."""
    return state._replace(audited_until=beginning, audited_usage_id=0,
                          auditing_until=None)


def _earliest(period: event.AuditPeriod,
              complete: datetime.datetime) -> datetime.datetime:
    """Return the beginning of the first period that is made up for."""
    found = complete
    for _ in range(AUDIT_MISSED):
        found = event.period_beginning(
            period, found - datetime.timedelta(microseconds=1))
    return found
