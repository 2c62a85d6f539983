# SPDX-License-Identifier: Apache-2.0
"""Read the outcome of a run from the database and the files of the hosts."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable

import sqlalchemy as sa

from gpgpu_plugin.db import api
from gpgpu_plugin.db import models
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
                    sa.select(models.Host.name, models.Device.stable_id,
                              models.Assignment.instance_uuid)
                    .join(models.Device,
                          models.Assignment.device_id == models.Device.id)
                    .join(models.Host,
                          models.Device.host_id == models.Host.id)
                    .where(models.Assignment.active == 1))}


def destinations(db: api.Database) -> list[str]:
    """Return the UUIDs of assignments of moves that are not decided."""
    with db.reader() as session:
        return list(session.scalars(
            sa.select(models.Assignment.uuid).where(
                models.Assignment.active == 1,
                models.Assignment.role == claim_obj.ClaimRole.DESTINATION)))


def states(db: api.Database) -> collections.Counter[str]:
    """Return how many GPUs are in each state."""
    with db.reader() as session:
        return collections.Counter(dict(session.execute(
            sa.select(models.Device.state, sa.func.count())
            .where(models.Device.group_id.is_not(None))
            .group_by(models.Device.state)).tuples().all()))


def unavailable(db: api.Database) -> list[tuple[str, str, str, str]]:
    """Return UUID, host, address and state of GPUs that are not available."""
    with db.reader() as session:
        return [tuple(row) for row in session.execute(
            sa.select(models.Device.uuid, models.Host.name,
                      models.Device.address, models.Device.state)
            .join(models.Host, models.Device.host_id == models.Host.id)
            .where(models.Device.group_id.is_not(None),
                   models.Device.state != device_rules.DeviceState.AVAILABLE)
            .order_by(models.Host.name, models.Device.address))]


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
