# SPDX-License-Identifier: Apache-2.0
"""Check the events of each device against the table of its states."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Mapping

import sqlalchemy as sa

from gpgpu_plugin.db import api
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules

_S, _E = device_rules.DeviceState, device_rules.DeviceEvent

# Transitions of the device that an event may record. Events that are not here
# do not change a device's state.
_TRANSITIONS: Mapping[str, tuple[device_rules.DeviceEvent, ...]] = {
    'claim': (_E.CLAIM,),
    'activate': (_E.ACTIVATE,),
    'abort': (_E.ABORT_UNTOUCHED, _E.RELEASE),
    'release': (_E.RELEASE,),
    'clean_started': (_E.CLEAN,),
    'clean_interrupted': (_E.CLEAN_INTERRUPTED,),
    'clean_passed': (_E.CLEAN_PASSED,),
    'clean_failed': (_E.CLEAN_INTERRUPTED,),
    'adopt': (_E.ADOPT,),
    'distrust': (_E.DISTRUST,),
}
_BEGINS, _ENDS = ('claim', 'adopt'), ('abort', 'release')

Event = tuple[str, str | None]
"""Kind of an event, and the UUID of its assignment."""


def read(db: api.Database) -> dict[str, list[Event]]:
    """Return the events of each device of a group, by its UUID.

    A device that nobody can get is not dirty, whatever is not known of it.
    """
    found: dict[str, list[Event]] = collections.defaultdict(list)
    with db.reader() as session:
        for device, kind, assignment in session.execute(
                sa.select(event_db.TABLE.c.device_uuid, event_db.TABLE.c.kind,
                          event_db.TABLE.c.assignment_uuid)
                .join(tables.DEVICES, tables.DEVICES.c.uuid
                      == event_db.TABLE.c.device_uuid)
                .where(tables.DEVICES.c.group_id.is_not(None))
                .order_by(event_db.TABLE.c.id)):
            found[device].append((kind, assignment))
    return dict(found)


def contradiction(events: Iterable[Event]) -> str | None:
    """Return the first contradiction in the events of a device.

    The states must follow each other as in the table of states, from available
    to available, and each assignment must end before the next one begins.
    """
    reached = {_S.AVAILABLE}
    current: str | None = None
    for number, (kind, assignment) in enumerate(events):
        if kind not in _TRANSITIONS:
            continue
        reached = {
            device_rules.TRANSITIONS[state, event] for state in reached
            for event in _TRANSITIONS[kind]
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
