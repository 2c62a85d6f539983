# SPDX-License-Identifier: Apache-2.0
"""Events of refusals, which a thread stores soon after the answer.

Neither a claim that is denied nor a scheduler waits for the database. Equal
denials within a minute are one event, which counts them. So are the refusals
of a project beyond its quota of each kind (domain.quota). What is not stored
yet, for about two seconds or while the database does not answer, is lost if
the conductor dies.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Sequence

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.db import author
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.domain import notification
from gpgpu_plugin.domain import quota
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import scheduling

LOG = logging.getLogger(__name__)

INTERVAL = 2
"""Seconds between two transactions."""

PERIOD = 60.0
"""Seconds in which equal denials are one event."""

CHUNK = 500
"""Number of events that one transaction stores."""

FAILURES = 3
"""After so many events in a row that are refused one by one, the others wait:
the events may not be the cause."""

_LIMIT = 10000

K = typing.TypeVar('K')
V = typing.TypeVar('V')
_Key = tuple[str, str, str]
_Decision = tuple[object, ...]


@dataclasses.dataclass(kw_only=True, eq=False)
class _Refusal:
    """An event of a refusal.

    :ivar event: what is stored; without a time, as of ``at``
    :ivar at: when, by the clock of the process
    :ivar id: of the row; None: it is not stored yet
    :ivar more: refusals that it stands for since its count was written
    """

    event: event_db.Published
    at: float
    id: int | None = None
    more: int = 0


class RefusalEvents:
    """The refusals of the last minute, and those that wait. Thread-safe.

    :param clock: seconds of a clock that never goes back
    :param observer: called with the kind of each event of a request that no
        host is left for
    """

    def __init__(self, db: api.Database,
                 clock: Callable[[], float] = time.monotonic,
                 observer: Callable[[str], None] = lambda kind: None,
                 ) -> None:
        self._db = db
        self._clock = clock
        self._observer = observer
        self._lock = threading.Lock()
        self._denials: collections.OrderedDict[_Key, _Refusal] = (
            collections.OrderedDict())
        self._waiting: collections.deque[_Refusal] = collections.deque()
        self._repeated: list[_Refusal] = []
        self._quota = quota.Quota(clock)
        # The last event of each kind and project, of the newest ones.
        self._last: collections.OrderedDict[
            tuple[object, object], _Refusal] = collections.OrderedDict()
        # Those dropped since the last line of the log.
        self._dropped = 0
        # Decisions of schedulers that were taken, the newest ones.
        self._filtered: collections.OrderedDict[_Decision, None] = (
            collections.OrderedDict())

    def denied(self, by: author.Author, request: claim_obj.ClaimRequest,
               denied: exception.ClaimDenied) -> None:
        """Have it recorded that a claim was denied."""
        self._repeatable(
            (request.instance_uuid, request.host, denied.reason),
            event_db.denied(by, request, denied.reason,
                            str(denied.kwargs.get('detail'))))

    def no_candidate(self, by: author.Author, instance_uuid: str,
                     project_id: str | None, detail: str) -> bool:
        """Have it recorded that Placement had no candidate for GPUs.

        :returns: whether it is an event of its own
        """
        self._observer(notification.NO_CANDIDATE)
        return self._repeatable(
            (instance_uuid, '', notification.NO_CANDIDATE),
            event_db.no_candidate(by, instance_uuid, project_id, detail))

    def _repeatable(self, key: _Key, event: event_db.Published) -> bool:
        """Have a refusal recorded; equal ones within a minute are counted.

        :param key: what equal refusals have in common
        :returns: whether it is an event of its own
        """
        with self._lock:
            now = self._clock()
            found = self._denials.get(key)
            if found is not None and now - found.at < PERIOD:
                self._repeat(found)
                return False
            if len(self._waiting) >= _LIMIT:
                self._dropped += 1
                return False
            found = self._add(event)
            _keep(self._denials, key, found)
            return found.event is event

    def _add(self, event: event_db.Published) -> _Refusal:
        """Have a refusal stored, or counted if its project has had many.

        :returns: the event that stands for it
        """
        row, _ = event
        key = row['kind'], row['project_id']
        last = self._last.get(key)
        if not self._quota.take(key) and last is not None:
            self._repeat(last)
            return last
        refusal = _Refusal(event=event, at=self._clock())
        _keep(self._last, key, refusal)
        self._waiting.append(refusal)
        return refusal

    def _repeat(self, refusal: _Refusal) -> None:
        refusal.more += 1
        if refusal.more == 1:
            self._repeated.append(refusal)

    def filtered(self, by: author.Author,
                 refusals: Sequence[scheduling.FilterRefusal]) -> bool:
        """Have decisions of schedulers recorded.

        A scheduler that got no answer sends them again. Those that this
        conductor has taken before are left out.

        :returns: False: too many wait, and the scheduler has to send them
            again
        """
        with self._lock:
            new = {key: refusal for refusal in refusals
                   if (key := _identity(by, refusal)) not in self._filtered}
            if len(self._waiting) + len(new) > _LIMIT:
                return False
            for key, refusal in new.items():
                if not refusal.passed:
                    self._observer('filter_refused')
                self._add(event_db.filtered(by, refusal))
                _keep(self._filtered, key, None)
            return True

    def run_once(self) -> None:
        """Store what waits, and the counts; never raises."""
        self._log_dropped()
        try:
            while self._store(self._next()):
                pass
            self._count()
        except exception.ConductorUnavailable as exc:
            LOG.warning('Cannot record what was refused, trying again in '
                        '%(seconds)s s: %(reason)s',
                        {'seconds': INTERVAL, 'reason': exc})
        except Exception:
            LOG.exception('Cannot record what was refused')

    def _log_dropped(self) -> None:
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            LOG.warning('Dropped %s refusals without event or notification: '
                        'too many waited for the database, or it refused '
                        'them', dropped)

    def _next(self) -> list[_Refusal]:
        with self._lock:
            return list(itertools.islice(self._waiting, CHUNK))

    def _store(self, chunk: list[_Refusal]) -> bool:
        """Store some events; return whether there were any.

        :raises ConductorUnavailable: the database is busy or away; they wait
        """
        if not chunk:
            return False
        try:
            self._store_together(chunk)
        except exception.ConductorUnavailable:
            raise
        except Exception:
            LOG.exception('Cannot record what was refused')
            return self._store_singly(chunk)
        return True

    def _store_together(self, chunk: Sequence[_Refusal]) -> None:
        """Store the first ones that wait, in one transaction."""
        ids = self._db.write(functools.partial(self._write, chunk))
        with self._lock:
            for refusal, event_id in zip(chunk, ids, strict=True):
                refusal.id = event_id
        self._remove(len(chunk))

    def _write(self, chunk: Sequence[_Refusal],
               session: orm.Session) -> list[int]:
        """Record refusals, and notify of them; return their events' ids."""
        now = self._clock()
        return event_db.store(session, [
            ({'at': clock.utc(session, now - refusal.at), **row}, published)
            for refusal in chunk for row, published in [refusal.event]])

    def _store_singly(self, chunk: Sequence[_Refusal]) -> bool:
        """Store the first ones that wait, and drop what is refused alone.

        :returns: False: too many were; those after them wait
        """
        failures = 0
        for refusal in chunk:
            if failures == FAILURES:
                return False
            try:
                self._store_together([refusal])
                failures = 0
            except exception.ConductorUnavailable:
                raise
            except Exception:
                LOG.exception(
                    'Cannot record %s; dropping it', refusal.event[0])
                failures += 1
                self._remove(1, dropped=1)
        return True

    def _remove(self, number: int, dropped: int = 0) -> None:
        """Remove the first ones that wait; only one thread does so."""
        with self._lock:
            for _ in range(number):
                self._waiting.popleft()
            self._dropped += dropped

    def _count(self) -> None:
        """Write how many refusals the events stand for."""
        with self._lock:
            # Some may have come after the last one was stored.
            waiting = set(self._waiting)
            repeated, self._repeated = self._repeated, [
                refusal for refusal in self._repeated if refusal in waiting]
            counts = {refusal: refusal.more for refusal in repeated
                      if refusal.id is not None}
        if not counts:
            return
        try:
            self._db.write(lambda session: event_db.count_more(session, {
                refusal.id: more for refusal, more in counts.items()
                if refusal.id is not None}))
        except exception.ConductorUnavailable:
            with self._lock:
                self._repeated.extend(counts)
            raise
        except Exception:
            LOG.exception('Cannot count refusals; dropping their counts')
        with self._lock:
            for refusal, more in counts.items():
                refusal.more -= more
                if refusal.more:
                    # Some came meanwhile.
                    self._repeated.append(refusal)


def _keep(known: collections.OrderedDict[K, V], key: K, value: V) -> None:
    """Keep a value as the newest one; the oldest one goes if they are many."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > _LIMIT:
        known.popitem(last=False)


def _identity(by: author.Author, refusal: scheduling.FilterRefusal,
              ) -> _Decision:
    """Return what no other decision has."""
    return (by.actor, refusal.at, refusal.request_id, refusal.instance_uuid,
            refusal.filter)
