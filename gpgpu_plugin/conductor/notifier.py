# SPDX-License-Identifier: Apache-2.0
"""Thread that sends notifications after the transactions that wrote them.

Any number of conductors have this thread, and one of them sends at a time
(db.outbox). An event waits until the broker has confirmed its notifications.
If the conductor dies in between, the next one sends those of up to ``BATCH``
events again: consumers get each at least once, in the order in which they were
written, apart from repetitions.
"""

from __future__ import annotations

import threading
import time
import typing
import uuid
from collections.abc import Callable
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import usage_audit
from gpgpu_plugin.db import api
from gpgpu_plugin.db import outbox
from gpgpu_plugin.domain import audit

LOG = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two searches for notifications."""

LONGEST_PAUSE = 30.0
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


class Publisher(typing.Protocol):
    """rpc.publisher.Publisher, as far as it is used here."""

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

    def __init__(self, db: api.Database, publisher: Publisher,
                 observer: Observer, *, limit: int = LIMIT,
                 period: audit.AuditPeriod | None = None,
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
                self._pause = min(2 * self._pause, LONGEST_PAUSE)
        except exception.ConductorUnavailable as exc:
            LOG.warning('Cannot read notifications, trying again in '
                        '%(seconds)d s: %(reason)s',
                        {'seconds': LONGEST_PAUSE, 'reason': exc})
            return LONGEST_PAUSE
        except Exception:
            LOG.exception('Cannot send notifications, trying again in %d s',
                          LONGEST_PAUSE)
            return LONGEST_PAUSE
        return self._pause

    def _audit(self) -> None:
        now = self._clock()
        if self._period is not None and (
                self._audited is None or now - self._audited > AUDIT_INTERVAL):
            self._audited = now
            try:
                usage_audit.run(
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
                            'event': waiting.id, 'limit': outbox.MOST_BYTES})
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
