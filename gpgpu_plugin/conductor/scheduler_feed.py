# SPDX-License-Identifier: Apache-2.0
"""Changes of hosts for schedulers, and the requests that they counted.

Each change of a host raises its generation and sets ``changed_at``, a time
within the transaction by the database's clock, in one statement. A reader
locks no row. It reads the database's time t, and then the hosts with
``changed_at >= since``. It answers ``since = t - WINDOW`` for the next call.
Proof that the next reader finds each change that this one does not see:

* The change becomes visible after t, since hosts are read after t.
* It becomes visible within WINDOW of its ``changed_at``: its transaction began
  before ``changed_at``, is rolled back if it takes longer than
  ``TRANSACTION_LIMIT`` (db.api), and is ended by the server if it then is not
  committed within ``COMMIT_LIMIT``. Only PostgreSQL and MariaDB do so, not
  MySQL, and none ends a commit that waits for a synchronous standby:
  schedulers find such a change when they read the host again, whether it
  changed or not (scheduler_filters.scheduler_view).
* Hence ``changed_at > t - WINDOW``, which is what the next reader asks for.

A reader therefore finds each change several times. It sends the versions that
it knows, and gets only others. If the clock of the database is set back, no
change is missed as long as the step plus the duration of the longest
transaction is less than WINDOW. A ``since`` in the future shows a larger step
or another database; the view is then read from the start.
"""

from __future__ import annotations

import collections
import functools
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.db import api
from gpgpu_plugin.db import clock as clock_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import request_kind
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain import weighing
from gpgpu_plugin.domain.allocation import feasibility
from gpgpu_plugin.objects import scheduling

LOG = logging.getLogger(__name__)

WINDOW = api.TRANSACTION_LIMIT + api.COMMIT_LIMIT
"""Seconds after which a change is visible or rolled back."""

_PAGE = 500
"""Hosts of a page, which a scheduler must get within its time limit."""

_MAX_KEPT = 20000
"""Hosts whose encoded masks are kept, of about 2 kB each."""


class SchedulerFeed:
    """The feed of one conductor, which keeps the encoded masks of hosts."""

    def __init__(self, db: api.Database) -> None:
        self._db = db
        self._keeping = threading.Lock()
        self._encoded: dict[int, tuple[scheduling.HostVersion, bytes]] = {}

    def changes_since(self, since: float,
                      known: Iterable[scheduling.HostVersion] = (),
                      marker: int | None = None) -> scheduling.Changes:
        """Return one page of the hosts that changed (Conductor).

        :param since: 0, or in the future: all live hosts
        :param known: versions that are not sent again
        :param marker: id of the last host of the page before
        """
        with self._db.reader() as session:
            # Before the hosts are read.
            now = clock_db.epoch(session)
            if since > now:
                since, marker = 0.0, None
            page = (_changed(session, since, frozenset(known), marker or 0)
                    if since
                    else host_db.live_after(session, marker or 0, _PAGE + 1))
            masks = self._masks(session, page[:_PAGE])
        return scheduling.Changes(
            since=now - WINDOW, packed=scheduling.pack([
                masks[version.id] for version in page[:_PAGE]
                if version.id in masks]),
            marker=page[_PAGE - 1].id if len(page) > _PAGE else None,
            anew=not since and marker is None)

    def _masks(self, session: orm.Session,
               versions: Collection[scheduling.HostVersion]) -> dict[int,
                                                                     bytes]:
        """Return the encoded masks of these versions of hosts, or newer ones.

        :returns: by the host's id
        """
        found = self._kept(versions)
        missing = sorted(version.id for version in versions
                         if version.id not in found)
        for masks in _read(session, missing) if missing else ():
            found[masks.version.id] = scheduling.encode(masks)
            self._keep(masks.version, found[masks.version.id])
        return found

    def _kept(self, versions: Iterable[scheduling.HostVersion],
              ) -> dict[int, bytes]:
        kept = ((version, self._encoded.get(version.id))
                for version in versions)
        return {version.id: entry[1] for version, entry in kept
                if entry is not None and entry[0] == version}

    def _keep(self, version: scheduling.HostVersion, encoded: bytes) -> None:
        with self._keeping:
            self._encoded.pop(version.id, None)
            self._encoded[version.id] = version, encoded
            if len(self._encoded) > _MAX_KEPT:
                del self._encoded[next(iter(self._encoded))]


def _changed(session: orm.Session, since: float,
             known: Collection[scheduling.HostVersion],
             marker: int) -> list[scheduling.HostVersion]:
    """Return the hosts that changed, more than a page if another follows."""
    return [version for version in host_db.changed_since(session, since)
            if version.id > marker and version not in known]


def _read(session: orm.Session, ids: list[int]) -> list[scheduling.HostMasks]:
    # Their versions first: what changes before the rest is read is newer than
    # the version under which it is kept, and is read again.
    hosts = host_db.by_ids(session, ids)
    groups = capacity.load(
        session, (host for host in hosts if not host.deleted))
    return [host_masks(host, [group.value
                              for group in groups.get(host.id, [])])
            for host in hosts]


def host_masks(host: host_db.HostRow,
               groups: Sequence[group_rules.GroupCapacity],
               ) -> scheduling.HostMasks:
    """Return the masks of a host for schedulers."""
    offers = [(group, offered) for group in groups
              for offered in group.types if offered.listed]
    masks = feasibility.masks(
        [group.offer(offered) for group, offered in offers])
    of_group: dict[str,
                   list[tuple[scheduling.TypeMasks, feasibility.Masks]]] = {}
    for (group, offered), mask in zip(offers, masks, strict=True):
        of_group.setdefault(group.provider_uuid, []).append(
            (_type_masks(group, offered, mask), mask))
    return scheduling.HostMasks(
        host=host.name, node_uuid=host.node_uuid,
        version=scheduling.HostVersion(
            host.id, host.generation, host.changed_at),
        deleted=bool(host.deleted),
        instances=tuple(sorted({
            scheduling.short_id(assigned.instance_uuid)
            for group in groups for assigned in group.assignments})),
        groups=tuple(_group_masks(group, of_group[group.provider_uuid])
                     for group in groups if group.provider_uuid in of_group))


def _type_masks(group: group_rules.GroupCapacity,
                offered: group_rules.OfferedType, mask: feasibility.Masks,
                ) -> scheduling.TypeMasks:
    return scheduling.TypeMasks(
        resource_class=group.resource_class(offered.vgpu_type),
        free=mask.free, available=mask.available,
        most=max(group.max_instances(offered), default=1),
        partitions=mask.partitions, fabric=mask.fabric, problem=mask.problem)


def _group_masks(group: group_rules.GroupCapacity,
                 types: Sequence[tuple[scheduling.TypeMasks,
                                       feasibility.Masks]],
                 ) -> scheduling.GroupMasks:
    _, first = types[0]
    return scheduling.GroupMasks(
        variant=group.variant.name, provider_uuid=group.provider_uuid,
        numa=first.numa, numa_nodes=first.numa_nodes,
        switches=first.switches, alone=first.alone,
        states=group.shown_states(),
        allocation_policy=group.allocation_policy,
        types=tuple(type_masks for type_masks, _ in types))


# -- Hosts that schedulers chose a moment ago, for the other schedulers.
#
# They are kept in memory. Schedulers send each choice to all conductors, so
# that each conductor can answer without the database or the other conductors.
# A conductor that has just started lacks some, which costs at most a denied
# claim.


_MAX_CHOICES = 2000


class RecentChoices:
    """Choices of the last minute, the newest ones only. Thread-safe.

    :param clock: seconds of a clock that never goes back
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: collections.deque[tuple[float,
                                             scheduling.SchedulerChoice]] = (
            collections.deque(maxlen=_MAX_CHOICES))

    def add(self, choices: Iterable[scheduling.SchedulerChoice]) -> None:
        """Keep choices that have just arrived."""
        with self._lock:
            now = self._clock()
            while self._known and (
                    self._known[0][0] < now - scheduling.LIFETIME):
                self._known.popleft()
            self._known.extend((now, choice) for choice in choices)

    def newer_than(self, seconds: float) -> tuple[scheduling.SchedulerChoice,
                                                  ...]:
        """Return the choices that are not older, in order of arrival."""
        found = []
        with self._lock:
            oldest = self._clock() - min(
                seconds, scheduling.LIFETIME)
            # A scheduler that asks often needs only the last few.
            for at, choice in reversed(self._known):
                if at < oldest:
                    break
                found.append(choice)
        return tuple(reversed(found))


# -- The cloud's mix of requests, as all schedulers count it.
#
# A thread adds what schedulers and Nova's notifications name to the database,
# so that neither they nor their requests wait for it. An instance counts once,
# however many schedulers and notifications name it, on whichever conductors.
# What is not stored yet, for a few seconds or while the database does not
# answer, is lost if the conductor dies: a mix of thousands of requests does
# not miss them.


MIX_INTERVAL = 5
"""Seconds between two transactions."""

_KINDS = 100
"""Kinds of requests with GPUs that a mix has, and kinds without."""

_MAX_WAITING = 10_000
"""Requests that wait at most; further ones are not counted."""

# Of the columns.
_MAX_NAME = 255
_LARGEST = 2**31 - 1

_READ_AGAIN = 60.0
"""Seconds after which requests that other conductors counted are read."""


class CountedMix:
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
                    if instance and len(self._waiting) < _MAX_WAITING:
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
                        {'seconds': MIX_INTERVAL, 'reason': exc})
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
        version = weighing.mix_version(arrivals)
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
    return (len(kind.resource_class) <= _MAX_NAME
            and all(0 <= number <= _LARGEST for number in (
                kind.vcpus, kind.memory_mib, kind.units)))


def _exchange(waiting: Mapping[str, scheduling.RequestKind],
              session: orm.Session,
              ) -> tuple[int, tuple[scheduling.CountedRequests, ...]]:
    """Add requests.

    :param waiting: by instance
    :returns: how many there were ever, and the most frequent ones
    """
    now = clock_db.epoch(session)
    new = request_kind.count(session, waiting.keys(), now)
    kinds = collections.Counter(waiting[instance] for instance in new)
    request_kind.add(session, [
        scheduling.CountedRequests(kind, number)
        for kind, number in kinds.items()], now)
    return (request_kind.arrivals(session),
            request_kind.most_frequent(session, _KINDS, now))
