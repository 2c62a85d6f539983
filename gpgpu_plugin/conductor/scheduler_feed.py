# SPDX-License-Identifier: Apache-2.0
"""``changes_since``: no change is skipped, and no writer waits for it.

Each change of a host raises its generation and sets ``changed_at``, a time
within the transaction by the database's clock, in one statement. A reader
locks no row. It reads the database's time t, and then the hosts with
``changed_at >= since``. It answers ``since = t - WINDOW`` for the next call.
Proof that the next reader finds each change that this one does not see:

* The change becomes visible after t, since hosts are read after t.
* It becomes visible within WINDOW of its ``changed_at``: its transaction began
  before ``changed_at``, is rolled back if it takes longer than
  ``limits.TRANSACTION`` (db.api), and is ended by the server if it then is not
  committed within ``limits.COMMIT``. Only PostgreSQL and MariaDB do so, not
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

import dataclasses
import threading
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import combining
from gpgpu_plugin.db import api
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import limits
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain.allocation import feasibility
from gpgpu_plugin.objects import scheduling as objects

WINDOW = limits.TRANSACTION + limits.COMMIT
"""Seconds after which a change is visible or rolled back."""

_PAGE = 500
"""Hosts of a page, which a scheduler must get within its time limit."""

_PATIENCE = 0.2
"""Seconds that a reading of changes may take before calls stop waiting for it;
it takes milliseconds. A scheduler waits for 3 s."""

_PATIENCE_FOR_PAGE = 1.0
"""The same for a page of all hosts, whose masks may all have to be built."""

_TOGETHER = 50
"""Hosts whose masks one call may build for others, if it builds fewer for
itself."""

_KEPT = 20000
"""Hosts whose encoded masks are kept, of about 2 kB each."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Question:
    """Question for one page of changes.

    :ivar since: 0: all live hosts
    :ivar known: versions that are not sent again
    :ivar marker: id of the last host of the page before
    """

    since: float
    known: frozenset[objects.HostVersion]
    marker: int | None

    def at(self, now: float) -> _Question:
        """Return what to answer: all hosts if ``since`` is in the future."""
        if self.since <= now:
            return self
        return _Question(since=0, known=frozenset(), marker=None)

    @property
    def anew(self) -> bool:
        """Return whether the pages that begin here have all hosts."""
        return not self.since and self.marker is None


class SchedulerFeed:
    """The feed of one conductor, which keeps the encoded masks of hosts.

    Schedulers that ask at the same time share what is read. Pages of all hosts
    may take long, so changes do not wait for them.
    """

    def __init__(self, db: api.Database) -> None:
        self._db = db
        self._changes, self._pages = (
            combining.Combiner(self._answer, patience)
            for patience in (_PATIENCE, _PATIENCE_FOR_PAGE))
        self._keeping = threading.Lock()
        self._encoded: dict[int, tuple[objects.HostVersion, bytes]] = {}

    def changes_since(self, since: float,
                      known: Iterable[objects.HostVersion] = (),
                      marker: int | None = None) -> objects.Changes:
        """Return one page of the hosts that changed (Conductor)."""
        return (self._changes if since else self._pages).ask(_Question(
            since=since, known=frozenset(known), marker=marker))

    def _answer(self, questions: Sequence[_Question],
                ) -> list[objects.Changes]:
        """Answer the first question, and others for which little is built."""
        with self._db.reader() as session:
            # Before the hosts are read.
            now = clock.epoch(session)
            asked = [question.at(now) for question in questions]
            found = _found(session, asked)
            found = found[:self._cheap([
                versions[:_PAGE] for versions in found])]
            masks = self._masks(session, {
                version for versions in found for version in versions[:_PAGE]})
        return [
            objects.Changes(
                since=now - WINDOW, packed=objects.pack([
                    masks[version.id] for version in versions[:_PAGE]
                    if version.id in masks]),
                marker=(versions[_PAGE - 1].id if len(versions) > _PAGE
                        else None),
                anew=question.anew)
            for question, versions in zip(asked, found, strict=False)]

    def _cheap(self, pages: Sequence[Sequence[objects.HostVersion]]) -> int:
        """Return how many of some pages can be built for the first one."""
        building: set[int] = set()
        limit = 0
        for number, page in enumerate(pages):
            kept = self._kept(page)
            building |= {version.id for version in page
                         if version.id not in kept}
            limit = limit or max(len(building), _TOGETHER)
            if len(building) > limit:
                return number
        return len(pages)

    def _masks(self, session: orm.Session,
               versions: Collection[objects.HostVersion]) -> dict[int, bytes]:
        """Return the encoded masks of these versions of hosts, or newer ones.

        :returns: by the host's id
        """
        found = self._kept(versions)
        missing = sorted(version.id for version in versions
                         if version.id not in found)
        for masks in _read(session, missing) if missing else ():
            found[masks.version.id] = objects.encode(masks)
            self._keep(masks.version, found[masks.version.id])
        return found

    def _kept(self, versions: Iterable[objects.HostVersion],
              ) -> dict[int, bytes]:
        kept = ((version, self._encoded.get(version.id))
                for version in versions)
        return {version.id: entry[1] for version, entry in kept
                if entry is not None and entry[0] == version}

    def _keep(self, version: objects.HostVersion, encoded: bytes) -> None:
        with self._keeping:
            self._encoded.pop(version.id, None)
            self._encoded[version.id] = version, encoded
            if len(self._encoded) > _KEPT:
                del self._encoded[next(iter(self._encoded))]


def _found(session: orm.Session, questions: Sequence[_Question],
           ) -> list[list[objects.HostVersion]]:
    """Return the hosts that each question is about.

    If they are more than a page has, another page follows.
    """
    since = min((question.since for question in questions if question.since),
                default=None)
    changed = (() if since is None
               else host_db.changed_since(session, since))
    return [
        [version for version in changed
         if version.changed_at >= question.since
         and version.id > (question.marker or 0)
         and version not in question.known] if question.since
        else host_db.live_after(session, question.marker or 0, _PAGE + 1)
        for question in questions]


def _read(session: orm.Session, ids: list[int]) -> list[objects.HostMasks]:
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
               ) -> objects.HostMasks:
    """Return the masks of a host for schedulers."""
    offers = [(group, offered) for group in groups
              for offered in group.types if offered.listed]
    masks = feasibility.masks(
        [group.offer(offered) for group, offered in offers])
    of_group: dict[str, list[tuple[objects.TypeMasks, feasibility.Masks]]] = {}
    for (group, offered), mask in zip(offers, masks, strict=True):
        of_group.setdefault(group.provider_uuid, []).append(
            (_type_masks(group, offered, mask), mask))
    return objects.HostMasks(
        host=host.name, node_uuid=host.node_uuid,
        version=objects.HostVersion(
            host.id, host.generation, host.changed_at),
        deleted=bool(host.deleted),
        instances=tuple(sorted({
            objects.short_id(assigned.instance_uuid)
            for group in groups for assigned in group.assignments})),
        groups=tuple(_group_masks(group, of_group[group.provider_uuid])
                     for group in groups if group.provider_uuid in of_group))


def _type_masks(group: group_rules.GroupCapacity,
                offered: group_rules.OfferedType, mask: feasibility.Masks,
                ) -> objects.TypeMasks:
    return objects.TypeMasks(
        resource_class=group.resource_class(offered.vgpu_type),
        free=mask.free, available=mask.available,
        most=max(group.max_instances(offered), default=1),
        partitions=mask.partitions, fabric=mask.fabric, problem=mask.problem)


def _group_masks(group: group_rules.GroupCapacity,
                 types: Sequence[tuple[objects.TypeMasks, feasibility.Masks]],
                 ) -> objects.GroupMasks:
    _, first = types[0]
    return objects.GroupMasks(
        variant=group.variant.name, provider_uuid=group.provider_uuid,
        numa=first.numa, numa_nodes=first.numa_nodes,
        switches=first.switches, alone=first.alone,
        states=group.shown_states(),
        allocation_policy=group.allocation_policy,
        types=tuple(type_masks for type_masks, _ in types))
