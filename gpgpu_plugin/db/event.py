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
"""Rows of ``events``, added in the transaction that they record.

Their author is that of the transaction (db.author).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import author
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import event

_TABLE = models.Base.metadata.tables['events']
_INSERT = sa.insert(_TABLE).inline()

_LONGEST = 255
"""Characters of an actor that the column takes."""


def now() -> datetime.datetime:
    """Return the time in UTC without a zone, as all databases store it."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)


def add(session: orm.Session, kind: event.Kind, host: str | None = None,
        device: device_db.AnyDevice | None = None,
        assignment: assignment_db.AnyAssignment | None = None,
        detail: str | None = None) -> None:
    """Record what happened, to which device and assignment."""
    session.add(models.Event(
        **_values(session, kind, host, detail), **_objects(
            device, assignment)))


def add_all(session: orm.Session, kind: event.Kind, host: str,
            objects: Iterable[tuple[device_db.DeviceRow,
                                    assignment_db.AssignmentRow | None]],
            detail: str | None = None) -> None:
    """Record the same for several devices, in one statement, at once."""
    common = _values(session, kind, host, detail)
    rows = [common | _objects(device, assignment)
            for device, assignment in objects]
    if rows:
        session.execute(_INSERT, rows)


def _values(session: orm.Session, kind: event.Kind, host: str | None,
            detail: str | None) -> dict[str, object]:
    found = author.of(session)
    return {
        'at': now(), 'kind': kind, 'host': host,
        'actor': found.actor[:_LONGEST], 'request_id': found.request_id,
        'detail': detail and cleaning.shortened(detail)}


def _objects(device: device_db.AnyDevice | None,
             assignment: assignment_db.AnyAssignment | None,
             ) -> dict[str, object]:
    return {
        'device_uuid': device.uuid if device else None,
        'assignment_uuid': assignment.uuid if assignment else None,
        'instance_uuid': assignment.instance_uuid if assignment else None,
        'project_id': assignment.project_id if assignment else None}
