#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Checks of the database after a storm against the truth of the hosts."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable
from collections.abc import Mapping

import sqlalchemy as sa

from gpgpu_plugin.db import api
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device as device_rules
from tests.storm import host as host_mod
from tests.storm import truth

_S, _E = device_rules.DeviceState, device_rules.DeviceEvent

# What an event in the ledger may have been for the device. Events that are
# not here do not change a device's state.
_MEANINGS: Mapping[str, tuple[device_rules.DeviceEvent, ...]] = {
    'claim': (_E.CLAIM,),
    'activate': (_E.ACTIVATE,),
    'abort': (_E.ABORT_UNTOUCHED, _E.ABORT_TOUCHED, _E.FAULT),
    'release': (_E.RELEASE, _E.ABORT_TOUCHED),
    'clean_started': (_E.CLEAN,),
    'clean_interrupted': (_E.CLEAN_INTERRUPTED,),
    'clean_passed': (_E.CLEAN_PASSED,),
    'clean_failed': (_E.CLEAN_FAILED,),
    'adopt': (_E.ADOPT,),
    'distrust': (_E.DISTRUST,),
    'suspect': (_E.SUSPECT,),
}
_BEGINS, _ENDS = ('claim', 'adopt'), ('abort', 'release')

Event = tuple[str, str | None]
"""Kind of an event, and the UUID of its assignment."""


def assigned(db: api.Database) -> dict[tuple[str, str], str]:
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


def states(db: api.Database) -> collections.Counter[str]:
    """Return how many GPUs are in each state."""
    with db.reader() as session:
        return collections.Counter(dict(session.execute(
            sa.select(models.Device.state, sa.func.count())
            .where(models.Device.group_id.is_not(None))
            .group_by(models.Device.state)).tuples().all()))


def unavailable(db: api.Database) -> list[tuple[str, str, str, str]]:
    """Return UUID, host, address and state of GPUs that nobody can claim."""
    with db.reader() as session:
        return [tuple(row) for row in session.execute(
            sa.select(models.Device.uuid, models.Host.name,
                      models.Device.address, models.Device.state)
            .join(models.Host, models.Device.host_id == models.Host.id)
            .where(models.Device.group_id.is_not(None),
                   models.Device.state != _S.AVAILABLE)
            .order_by(models.Host.name, models.Device.address))]


def used(settings: Iterable[host_mod.Setting]) -> dict[tuple[str, str], str]:
    """Return the instances of GPUs in guests, by host and stable id."""
    return {(setting.name, stable_id): instance for setting in settings
            for instance, stable_ids in truth.Truth(
                setting.folder).guests().items()
            for stable_id in stable_ids}


def left_in_books(settings: Iterable[host_mod.Setting]) -> list[str]:
    """Return what the hosts' books still have."""
    left = []
    for setting in settings:
        path = setting.folder / f'{setting.name}.json'
        book = json.loads(path.read_text())
        left += [f'{setting.name}: {name} {book[name]}'
                 for name in ('assigned', 'pending', 'confirmations')
                 if book[name]]
    return left


def ledger(db: api.Database) -> dict[str, list[Event]]:
    """Return the events of each device, by its UUID."""
    found: dict[str, list[Event]] = collections.defaultdict(list)
    with db.reader() as session:
        for device, kind, assignment in session.execute(
                sa.select(models.Event.device_uuid, models.Event.kind,
                          models.Event.assignment_uuid)
                .where(models.Event.device_uuid.is_not(None))
                .order_by(models.Event.id)):
            found[device].append((kind, assignment))
    return dict(found)


def contradiction(events: Iterable[Event]) -> str | None:
    """Return where the ledger of a device contradicts itself.

    Its states follow each other as the table of them says, from available to
    available, and each assignment ends before the next one begins.
    """
    reached = {_S.AVAILABLE}
    current: str | None = None
    for number, (kind, assignment) in enumerate(events):
        if kind not in _MEANINGS:
            continue
        reached = {
            device_rules.TRANSITIONS[state, event] for state in reached
            for event in _MEANINGS[kind]
            if (state, event) in device_rules.TRANSITIONS}
        if not reached:
            return f'event {number}, {kind}, is not possible there'
        if kind in _BEGINS:
            if current is not None:
                return f'event {number}: {assignment} begins in {current}'
            current = assignment
        elif kind in _ENDS:
            if current != assignment:
                return f'event {number}: {assignment} ends in {current}'
            current = None
    if _S.AVAILABLE not in reached or current is not None:
        return f'it ends in {sorted(reached)}, assignment {current}'
    return None
