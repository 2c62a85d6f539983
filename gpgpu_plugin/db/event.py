# SPDX-License-Identifier: Apache-2.0
"""Rows of ``events``, added in the transaction that they record.

Their author is that of the transaction (db.author). Those of refusals, which
change nothing, are stored later (conductor.refusal_events).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import author
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import journal
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import event
from gpgpu_plugin.domain import notification
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import event as event_obj
from gpgpu_plugin.objects import scheduling

_Objects = tuple[device_db.AnyDevice | None,
                 assignment_db.AnyAssignment | None]

Row = dict[str, object]
"""Values of an event, by column."""

_TABLE = models.Base.metadata.tables['events']
_INSERT = sa.insert(_TABLE).inline()
_COUNT = (
    sa.update(_TABLE).where(_TABLE.c.id == sa.bindparam('event_id'))
    .values(count=_TABLE.c['count'] + sa.bindparam('more')))

# Characters that the columns take.
_UUID = 36
_LONGEST = 255
_REASON = 64


def add(session: orm.Session, kind: event.Kind, host: str | None = None,
        device: device_db.AnyDevice | None = None,
        assignment: assignment_db.AnyAssignment | None = None,
        detail: str | None = None, *, level: int | None = None) -> None:
    """Record what happened, to which device and assignment.

    :param level: of the line in the log; default that of the kind
    """
    _log(session, kind, host, [(device, assignment)], detail, level)
    session.add(models.Event(
        at=clock.utc(session),
        **_values(author.of(session), kind, host, detail), **_objects(
            device, assignment)))


def add_all(session: orm.Session, kind: event.Kind, host: str,
            objects: Iterable[tuple[device_db.DeviceRow,
                                    assignment_db.AssignmentRow | None]],
            detail: str | None = None, *,
            level: int | None = None) -> None:
    """Record the same for several devices, in one statement, at once.

    :param level: of the line in the log; default that of the kind
    """
    objects = list(objects)
    _log(session, kind, host, objects, detail, level)
    common = {'at': clock.utc(session),
              **_values(author.of(session), kind, host, detail)}
    rows = [common | _objects(device, assignment)
            for device, assignment in objects]
    if rows:
        session.execute(_INSERT, rows)


def denied(by: author.Author, request: claim_obj.ClaimRequest,
           reason: str, detail: str) -> Row:
    """Return the event of a claim that is denied, but for its time."""
    return _values(by, 'claim_denied', request.host, detail) | {
        # Of a claim that may be malformed.
        'instance_uuid': request.instance_uuid[:_UUID],
        'project_id': request.project_id[:_LONGEST],
        'reason': reason[:_REASON]}


def filtered(by: author.Author, refusal: scheduling.FilterRefusal) -> Row:
    """Return the event of a decision in which a filter refused hosts."""
    return _values(by, 'filter_refused', None, refusal.text) | {
        'at': refusal.at, 'request_id': refusal.request_id,
        'instance_uuid': refusal.instance_uuid,
        'project_id': refusal.project_id,
        'reason': refusal.reason[:_REASON]}


def no_candidate(by: author.Author, instance_uuid: str,
                 project_id: str | None, detail: str) -> Row:
    """Return the event of a request without a candidate, but for its time."""
    return _values(by, 'no_candidate', None, detail) | {
        'instance_uuid': instance_uuid[:_UUID],
        'project_id': project_id and project_id[:_LONGEST],
        'reason': notification.NO_CANDIDATE}


def has_refusal(session: orm.Session, instance_uuid: str,
                request_id: str | None) -> bool:
    """Return whether a request was refused by a filter or a host."""
    return request_id is not None and session.scalar(
        sa.select(models.Event.id).where(
            models.Event.request_id == request_id,
            models.Event.instance_uuid == instance_uuid,
            models.Event.kind.in_(['filter_refused', 'claim_denied']),
            ).limit(1)) is not None


def store(session: orm.Session, rows: Sequence[Row]) -> list[int]:
    """Record events of refusals, whatever their authors; return their ids."""
    events = [models.Event(**row) for row in rows]
    session.add_all(events)
    session.flush()
    return [event.id for event in events]


def count_more(session: orm.Session, more: Mapping[int, int]) -> None:
    """Add equal refusals to the counts of events, by their ids."""
    session.execute(_COUNT, [
        {'event_id': event_id, 'more': number}
        for event_id, number in sorted(more.items())])


def _log(session: orm.Session, kind: event.Kind, host: str | None,
         objects: Sequence[_Objects], detail: str | None,
         level: int | None = None) -> None:
    """Log what an operator wants to read, when it is committed."""
    if level is None:
        level = (logging.WARNING if kind in event.WARNED
                 else logging.INFO if kind in event.INFORMED else None)
    if level is None or not objects:
        return
    parts = [f'{kind} on {host}' if host else kind,
             f'by {author.of(session).actor}']
    addresses = [device.address for device, _ in objects if device]
    if addresses:
        parts.append(f'device {", ".join(addresses)}')
    for instance in {row.instance_uuid for _, row in objects if row}:
        parts.append(f'instance {instance}')
    if detail:
        parts.append(cleaning.shortened(detail))
    journal.note(session, level, '; '.join(parts))


def _values(by: author.Author, kind: event.Kind, host: str | None,
            detail: str | None) -> Row:
    return {
        'kind': kind, 'host': host,
        'actor': by.actor[:_LONGEST], 'request_id': by.request_id,
        'detail': detail and cleaning.shortened(detail)}


def _objects(device: device_db.AnyDevice | None,
             assignment: assignment_db.AnyAssignment | None,
             ) -> Row:
    return {
        'device_uuid': device.uuid if device else None,
        'assignment_uuid': assignment.uuid if assignment else None,
        'instance_uuid': assignment.instance_uuid if assignment else None,
        'project_id': assignment.project_id if assignment else None}


def listed(session: orm.Session, wanted: event_obj.EventFilter, limit: int,
           after: int | None = None, *,
           oldest_first: bool = False) -> list[models.Event]:
    """Return events in the order in which they were stored.

    :param after: id of the event before the first one
    :param oldest_first: False: in the opposite order
    """
    ids = models.Event.id
    query = sa.select(models.Event).where(*_conditions(wanted))
    if after is not None:
        query = query.where(ids > after if oldest_first else ids < after)
    return list(session.scalars(query.order_by(
        ids if oldest_first else ids.desc()).limit(limit)))


def _conditions(wanted: event_obj.EventFilter,
                ) -> Iterator[sa.ColumnElement[bool]]:
    for column, value in (
            (models.Event.host, wanted.host),
            (models.Event.device_uuid, wanted.device),
            (models.Event.instance_uuid, wanted.instance),
            (models.Event.project_id, wanted.project),
            (models.Event.kind, wanted.kind),
            (models.Event.request_id, wanted.request)):
        if value is not None:
            yield column == value
    if wanted.since is not None:
        yield models.Event.at >= wanted.since
    if wanted.until is not None:
        yield models.Event.at < wanted.until
