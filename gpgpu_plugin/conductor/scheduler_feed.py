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

import threading
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
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

_KEPT = 20000
"""Hosts whose encoded masks are kept, of about 2 kB each."""


class SchedulerFeed:
    """The feed of one conductor, which keeps the encoded masks of hosts."""

    def __init__(self, db: api.Database) -> None:
        self._db = db
        self._keeping = threading.Lock()
        self._encoded: dict[int, tuple[objects.HostVersion, bytes]] = {}

    def changes_since(self, since: float,
                      known: Iterable[objects.HostVersion] = (),
                      marker: int | None = None) -> objects.Changes:
        """Return one page of the hosts that changed (Conductor).

        :param since: 0, or in the future: all live hosts
        :param known: versions that are not sent again
        :param marker: id of the last host of the page before
        """
        with self._db.reader() as session:
            # Before the hosts are read.
            now = clock.epoch(session)
            if since > now:
                since, marker = 0.0, None
            page = (_changed(session, since, frozenset(known), marker or 0)
                    if since
                    else host_db.live_after(session, marker or 0, _PAGE + 1))
            masks = self._masks(session, page[:_PAGE])
        return objects.Changes(
            since=now - WINDOW, packed=objects.pack([
                masks[version.id] for version in page[:_PAGE]
                if version.id in masks]),
            marker=page[_PAGE - 1].id if len(page) > _PAGE else None,
            anew=not since and marker is None)

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


def _changed(session: orm.Session, since: float,
             known: Collection[objects.HostVersion],
             marker: int) -> list[objects.HostVersion]:
    """Return the hosts that changed, more than a page if another follows."""
    return [version for version in host_db.changed_since(session, since)
            if version.id > marker and version not in known]


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
