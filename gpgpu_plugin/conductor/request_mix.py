# SPDX-License-Identifier: Apache-2.0
"""The cloud's mix of requests, as all schedulers count it.

A thread adds what schedulers and Nova's notifications name to the database, so
that neither they nor their requests wait for it. An instance counts once,
however many schedulers and notifications name it, on whichever conductors.
What is not stored yet, for a few seconds or while the database does not
answer, is lost if the conductor dies: a mix of thousands of requests does not
miss them.
"""

from __future__ import annotations

import collections
import functools
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import request_kind
from gpgpu_plugin.domain.weighing import mix
from gpgpu_plugin.objects import scheduling

LOG = logging.getLogger(__name__)

INTERVAL = 5
"""Seconds between two transactions."""

_KINDS = 100
"""Kinds of requests with GPUs that a mix has, and kinds without."""

_MOST = 10_000
"""Requests that wait at most; further ones are not counted."""

# Of the columns.
_LONGEST_NAME = 255
_LARGEST = 2**31 - 1

_READ_AGAIN = 60.0
"""Seconds after which requests that other conductors counted are read."""


class Requests:
    """Requests that wait for the database, and the mix. Thread-safe.

    :param clock: seconds of a clock that never goes back
    """

    def __init__(self, db: api.Database,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, scheduling.RequestKind] = {}
        self._read_at = float('-inf')
        self._mix: scheduling.RequestMix | None = None

    def add(self, arrived: Iterable[scheduling.ArrivedRequests]) -> None:
        """Have requests counted, unless their instances were before."""
        with self._lock:
            for kind, instances in arrived:
                if not _is_storable(kind):
                    continue
                for instance in map(_uuid, instances):
                    if instance and len(self._waiting) < _MOST:
                        self._waiting.setdefault(instance, kind)

    def newer(self, version: int) -> scheduling.RequestMix | None:
        """Return the mix if it has a higher version."""
        found = self._mix
        return found if found is not None and found.version > version else None

    def run_once(self) -> None:
        """Store what waits, and read the mix; never raises."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        if not waiting and self._clock() - self._read_at < _READ_AGAIN:
            return
        try:
            arrivals, requests = self._db.write(
                functools.partial(_exchange, waiting))
        except exception.ConductorUnavailable as exc:
            LOG.warning('Cannot count requests, trying again in %(seconds)s '
                        's: %(reason)s',
                        {'seconds': INTERVAL, 'reason': exc})
            with self._lock:
                self._waiting = waiting | self._waiting
        except Exception:
            # The database would refuse them again.
            LOG.exception('Cannot count requests; dropping them')
        else:
            self._read_at = self._clock()
            self._use(arrivals, requests)

    def _use(self, arrivals: int,
             requests: tuple[scheduling.CountedRequests, ...]) -> None:
        version = mix.version(arrivals)
        if not version:
            self._mix = None
        elif self._mix is None or self._mix.version != version:
            self._mix = scheduling.RequestMix(
                version=version, requests=requests)


def _uuid(instance: str) -> str | None:
    """Return the UUID of an instance as Nova writes it.

    :returns: None: it is no UUID; the database might refuse it with all others
    """
    try:
        return str(uuid.UUID(instance))
    except ValueError:
        return None


def _is_storable(kind: scheduling.RequestKind) -> bool:
    """Return whether the database would take it; else it refused all."""
    return (len(kind.resource_class) <= _LONGEST_NAME
            and all(0 <= number <= _LARGEST for number in (
                kind.vcpus, kind.memory_mib, kind.units)))


def _exchange(waiting: Mapping[str, scheduling.RequestKind],
              session: orm.Session,
              ) -> tuple[int, tuple[scheduling.CountedRequests, ...]]:
    """Add requests.

    :param waiting: by instance
    :returns: how many there were ever, and the most frequent ones
    """
    now = clock.epoch(session)
    new = request_kind.count(session, waiting.keys(), now)
    kinds = collections.Counter(waiting[instance] for instance in new)
    request_kind.add(session, [
        scheduling.CountedRequests(kind, number)
        for kind, number in kinds.items()], now)
    return (request_kind.arrivals(session),
            request_kind.most_frequent(session, _KINDS, now))
