# SPDX-License-Identifier: Apache-2.0
"""Outcome of a race: grants compared with the rows of the database."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import sqlalchemy as sa

from gpgpu_plugin.conductor.admin import group
from gpgpu_plugin.db import api
from gpgpu_plugin.db import tables


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grant:
    """One device that was granted to a claimer.

    :ivar seconds: since the claimer's previous grant, refusals included
    :ivar at: time, on the clock that all processes of a machine share
    """

    device: str
    assignment: str
    seconds: float
    at: float


# Grants and errors of one process of claimers, and when it ended.
Answer = tuple[list[Grant], list[str], float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What claimers were granted, and what the database has afterwards.

    :ivar seconds: from the start to the last grant
    :ivar all_seconds: from the start to the last refusal
    :ivar doubles: devices that were granted twice, or that have two active
        assignments
    :ivar lost: claims that were granted but are not in the database
    :ivar assigned: assigned types by GPU, which is (host, stable id)
    :ivar left: what could still be claimed, by type, on all hosts
    :ivar errors: errors other than the expected refusals
    """

    granted: int
    seconds: float
    all_seconds: float
    latencies: tuple[float, ...]
    doubles: int
    lost: int
    errors: tuple[str, ...]
    assigned: dict[tuple[str, str], list[str]] = dataclasses.field(
        default_factory=dict)
    left: dict[str, int] = dataclasses.field(default_factory=dict)


def judge(db: api.Database, began: float,
          answers: Sequence[Answer]) -> Outcome:
    """Compare the grants of all claimers with the database."""
    grants = [grant for part, _, _ in answers for grant in part]
    active = _active(db)
    left: collections.Counter[str] = collections.Counter()
    for info in group.list_types(db):
        left[info.vgpu_type] += info.remaining_capacity
    doubles = {
        device for owners in (
            collections.Counter(grant.device for grant in grants),
            collections.Counter(device for device, _ in active))
        for device, count in owners.items() if count > 1}
    known = {assignment for _, assignment in active}
    return Outcome(
        granted=len(grants),
        seconds=max((grant.at for grant in grants), default=began) - began,
        all_seconds=max(ended for _, _, ended in answers) - began,
        latencies=tuple(sorted(grant.seconds for grant in grants)),
        doubles=len(doubles),
        lost=sum(grant.assignment not in known for grant in grants),
        errors=tuple(error for _, part, _ in answers for error in part),
        assigned=_assigned(db), left=dict(left))


def _active(db: api.Database) -> list[tuple[str, str]]:
    """Return the UUIDs of devices and of their active assignments."""
    with db.reader() as session:
        return [(device, assignment) for device, assignment in
                session.execute(
                    sa.select(tables.DEVICES.c.uuid, tables.ASSIGNMENTS.c.uuid)
                    .select_from(tables.ASSIGNMENTS)
                    .join(tables.DEVICES)
                    .where(tables.ASSIGNMENTS.c.active == 1))]


def _assigned(db: api.Database) -> dict[tuple[str, str], list[str]]:
    """Return the assigned types by host and stable id of the GPU."""
    assigned: dict[tuple[str, str], list[str]] = (
        collections.defaultdict(list))
    with db.reader() as session:
        for host, stable_id, name in session.execute(
                sa.select(tables.HOSTS.c.name, tables.DEVICES.c.stable_id,
                          tables.ASSIGNMENTS.c.vgpu_type)
                .join(tables.DEVICES,
                      tables.ASSIGNMENTS.c.device_id == tables.DEVICES.c.id)
                .join(tables.HOSTS,
                      tables.DEVICES.c.host_id == tables.HOSTS.c.id)
                .where(tables.ASSIGNMENTS.c.active == 1)):
            assigned[host, stable_id.partition('/mdev')[0]].append(name)
    return dict(assigned)
