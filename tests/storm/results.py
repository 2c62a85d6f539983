# SPDX-License-Identifier: Apache-2.0
"""Read the outcome of a run from the database and the files of the hosts."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable

import sqlalchemy as sa

from gpgpu_plugin.db import api
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.objects import claim as claim_obj
from tests.storm import ground_truth
from tests.storm import host as host_mod

Users = dict[tuple[str, str], str]
"""Instances by the host and stable id of their GPU."""


def assigned(db: api.Database) -> Users:
    """Return the instances of assigned GPUs, by host and stable id."""
    with db.reader() as session:
        return {(host, stable_id): instance for host, stable_id, instance in
                session.execute(
                    sa.select(tables.HOSTS.c.name, tables.DEVICES.c.stable_id,
                              tables.ASSIGNMENTS.c.instance_uuid)
                    .join(tables.DEVICES,
                          tables.ASSIGNMENTS.c.device_id
                          == tables.DEVICES.c.id)
                    .join(tables.HOSTS,
                          tables.DEVICES.c.host_id == tables.HOSTS.c.id)
                    .where(tables.ASSIGNMENTS.c.active == 1))}


def destinations(db: api.Database) -> list[str]:
    """Return the UUIDs of assignments of moves that are not decided."""
    with db.reader() as session:
        return list(session.scalars(
            sa.select(tables.ASSIGNMENTS.c.uuid).where(
                tables.ASSIGNMENTS.c.active == 1,
                tables.ASSIGNMENTS.c.role == claim_obj.ClaimRole.DESTINATION)))


def states(db: api.Database) -> collections.Counter[str]:
    """Return how many GPUs are in each state."""
    with db.reader() as session:
        return collections.Counter(dict(session.execute(
            sa.select(tables.DEVICES.c.state, sa.func.count())
            .where(tables.DEVICES.c.group_id.is_not(None))
            .group_by(tables.DEVICES.c.state)).tuples().all()))


def unavailable(db: api.Database) -> list[tuple[str, str, str, str]]:
    """Return UUID, host, address and state of GPUs that are not available."""
    with db.reader() as session:
        return [tuple(row) for row in session.execute(
            sa.select(tables.DEVICES.c.uuid, tables.HOSTS.c.name,
                      tables.DEVICES.c.address, tables.DEVICES.c.state)
            .join(tables.HOSTS, tables.DEVICES.c.host_id == tables.HOSTS.c.id)
            .where(tables.DEVICES.c.group_id.is_not(None),
                   tables.DEVICES.c.state
                   != device_rules.DeviceState.AVAILABLE)
            .order_by(tables.HOSTS.c.name, tables.DEVICES.c.address))]


def used(settings: Iterable[host_mod.Setting]) -> Users:
    """Return the instances of GPUs in guests, by host and stable id."""
    return {(setting.name, stable_id): instance for setting in settings
            for instance, stable_ids in ground_truth.GroundTruth(
                setting.folder).guests().items()
            for stable_id in stable_ids}


def book_entries(settings: Iterable[host_mod.Setting]) -> list[str]:
    """Return what is left in the books of the hosts."""
    left = []
    for setting in settings:
        path = setting.folder / f'{setting.name}.json'
        book = json.loads(path.read_text())
        left += [f'{setting.name}: {name} {book[name]}'
                 for name in ('assigned', 'pending', 'confirmations')
                 if book[name]]
    return left
