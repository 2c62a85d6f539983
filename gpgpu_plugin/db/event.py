# SPDX-License-Identifier: Apache-2.0
"""Table ``events``: the history, written in the transaction that it records.

The author of an event is that of the transaction (db.transaction). Those of
refusals, which change nothing, are stored later (conductor.refusals).

An event has the notifications of what happened to its device and its
assignment, and a row in ``unsent`` until they are sent (db.outbox). A change
that has notifications, but no event, gets one of kind ``update`` or ``usage``.
Those of kind ``exists`` change nothing, and go once they are sent.

``events`` has no foreign keys, so that it outlives the objects that it names.
Indexes: the history of a device and of an instance; the oldest events, which
``db purge`` deletes; the newest events of a host, a kind or a project, and
those of a request, for ``event list``.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import typing
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import clock
from gpgpu_plugin.db import notification as notification_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import transaction
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import event
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import history
from gpgpu_plugin.objects import scheduling

if typing.TYPE_CHECKING:
    from gpgpu_plugin.db import assignment as assignment_db
    from gpgpu_plugin.db import device as device_db

_Objects: typing.TypeAlias = (
    'tuple[device_db.DeviceRow | None, assignment_db.AssignmentRow | None]')

Row = dict[str, object]
"""Values of an event, by column."""

Published = tuple[Row, Sequence[notification_db.Notification]]
"""An event with its notifications."""

TABLE = sa.Table(
    'events', tables.METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('at', sa.DateTime, nullable=False,
              comment='When it happened (UTC).'),
    sa.Column('kind', sa.String(32), nullable=False, comment='What happened.'),
    sa.Column('host', tables.NAME,
              comment='Name of the host that it concerns, if any.'),
    sa.Column('device_uuid', tables.UUID,
              comment='UUID of the device that it concerns, if any.'),
    sa.Column('assignment_uuid', tables.UUID,
              comment='UUID of the assignment that it concerns, if any.'),
    sa.Column('instance_uuid', tables.UUID,
              comment='UUID of the instance that it concerns, if any.'),
    sa.Column('project_id', tables.NAME, comment='Project of that instance.'),
    sa.Column('actor', tables.NAME, nullable=False,
              comment='Who caused it, such as "host compute1".'),
    sa.Column('request_id', sa.String(40),
              comment='Request of the user to Nova, or else the call that '
              'caused it; NULL: no call did.'),
    sa.Column('reason', sa.String(64),
              comment='Name of the reason of a refusal.'),
    sa.Column('detail', sa.Text, comment='Further information for operators.'),
    sa.Column('count', sa.Integer, nullable=False, default=1,
              comment='How many refusals the row stands for.'),
    sa.Column('notifications', tables.LONG_TEXT,
              comment='JSON of the messages that publish it, with the facts '
              'of then; NULL: there are none.'),
    sa.Index(None, 'device_uuid'),
    sa.Index(None, 'instance_uuid'),
    sa.Index(None, 'at'),
    sa.Index(None, 'host', 'id'),
    sa.Index(None, 'kind', 'id'),
    sa.Index(None, 'project_id', 'id'),
    sa.Index(None, 'request_id'), sqlite_autoincrement=True)

UNSENT = sa.Table(
    'unsent', tables.METADATA,
    sa.Column('event_id', sa.Integer, primary_key=True, autoincrement=False,
              comment='Event of which the broker has not confirmed all '
              'notifications.'))

_EVENTS = 'gpgpu_events'
_INSERT = sa.insert(TABLE).inline()
_STORE = sa.insert(TABLE).returning(
    TABLE.c.id, sort_by_parameter_order=True)
_INSERT_UNSENT = sa.insert(UNSENT)
_COUNT = (
    sa.update(TABLE).where(TABLE.c.id == sa.bindparam('event_id'))
    .values(count=TABLE.c['count'] + sa.bindparam('more')))
_INFO = tuple(TABLE.c[field.name]
              for field in dataclasses.fields(history.EventInfo))

# Characters that the columns take.
_UUID = 36
_MAX_LENGTH = 255
_REASON = 64


def add(session: orm.Session, kind: event.Kind, host: str | None = None,
        detail: str | None = None) -> None:
    """Record what happened to a host, or to none."""
    add_all(session, host, [Event(kind, [(None, None)], detail)])


class Event(typing.NamedTuple):
    """An event of devices, each with its assignment.

    ``level``: of the line in the log; None: that of the kind.
    """

    kind: event.Kind
    objects: Sequence[_Objects]
    detail: str | None = None
    level: int | None = None


def add_all(session: orm.Session, host: str | None,
            events: Iterable[Event]) -> None:
    """Record what happened on a host, at the end of the transaction."""
    rows = session.info.setdefault(_EVENTS, [])
    for happened in events:
        _log(session, host, happened)
        common = _values(
            transaction.author_of(session), happened.kind, host,
            happened.detail)
        rows += [common | _objects(device, assignment)
                 for device, assignment in happened.objects]


def write(session: orm.Session) -> None:
    """Store the events of a transaction, with their notifications."""
    events: list[tuple[Row, list[notification_db.Notification]]] = [
        (row, []) for row in session.info.pop(_EVENTS, ())]
    # Of several events of one object the last one has its notifications.
    about = {found[0][name]: found for found in events
             for name in ('device_uuid', 'assignment_uuid')}
    for event_type, payload in notification_db.take(session):
        assert isinstance(payload, (history.DevicePayload,
                                    history.AssignmentPayload))
        if payload.uuid not in about:
            about[payload.uuid] = _of_notification(
                session, event_type, payload), []
            events.append(about[payload.uuid])
        about[payload.uuid][1].append((event_type, payload))
    if notification_db.is_enabled(session):
        store(session, events)
    elif events:
        at = clock.utc(session)
        session.execute(_INSERT, [{'at': at, **row} for row, _ in events])


def _of_notification(
        session: orm.Session, event_type: event.EventType,
        payload: (history.DevicePayload
                  | history.AssignmentPayload)) -> Row:
    """Return the event of a change that has no other one."""
    if isinstance(payload, history.DevicePayload):
        return _values(transaction.author_of(session), 'update', payload.host,
                       None) | {
            **_objects(None, None), 'device_uuid': payload.uuid}
    is_exists = event_type == event.EventType.ASSIGNMENT_EXISTS
    return _values(
        transaction.author_of(session), 'exists' if is_exists else 'usage',
        payload.host,
        None) | {
            'device_uuid': payload.device_uuid,
            'assignment_uuid': payload.uuid,
            'instance_uuid': payload.instance_uuid,
            'project_id': payload.project_id}


def denied(by: transaction.Author, request: claim_obj.ClaimRequest,
           reason: str, detail: str) -> Published:
    """Return the event of a claim that is denied, but for its time."""
    row = _values(by, 'claim_denied', request.host, detail) | {
        # Of a claim that may be malformed.
        'instance_uuid': request.instance_uuid[:_UUID],
        'project_id': request.project_id[:_MAX_LENGTH],
        'reason': reason[:_REASON]}
    return row, [notification_db.refused(
        row, 'gpgpu-conductor', {str(row['reason']): 1}, None)]


def filtered(by: transaction.Author,
             refusal: scheduling.FilterRefusal) -> Published:
    """Return the event of a decision in which a filter refused hosts."""
    row = _values(by, 'filter_refused', None, refusal.text) | {
        'at': refusal.at, 'request_id': refusal.request_id,
        'instance_uuid': refusal.instance_uuid,
        'project_id': refusal.project_id,
        'reason': refusal.reason[:_REASON]}
    return row, [notification_db.refused(
        row, refusal.filter, refusal.reasons, refusal.passed)]


def no_candidate(by: transaction.Author, instance_uuid: str,
                 project_id: str | None, detail: str) -> Published:
    """Return the event of a request without a candidate, but for its time."""
    row = _values(by, 'no_candidate', None, detail) | {
        'instance_uuid': instance_uuid[:_UUID],
        'project_id': project_id and project_id[:_MAX_LENGTH],
        'reason': event.NO_CANDIDATE}
    return row, [notification_db.refused(row, 'placement', {}, 0)]


def has_refusal(session: orm.Session, instance_uuid: str,
                request_id: str | None) -> bool:
    """Return whether a request was refused by a filter or a host."""
    return request_id is not None and session.scalar(
        sa.select(TABLE.c.id).where(
            TABLE.c.request_id == request_id,
            TABLE.c.instance_uuid == instance_uuid,
            TABLE.c.kind.in_(['filter_refused', 'claim_denied']),
            ).limit(1)) is not None


def store(session: orm.Session, events: Sequence[Published]) -> list[int]:
    """Store events with their notifications; return their ids."""
    if not events:
        return []
    now = clock.utc(session)
    rows = []
    for row, notifications in events:
        at = typing.cast(datetime.datetime, row.get('at', now))
        rows.append({**row, 'at': at, 'notifications':
                     notification_db.messages(session, at, notifications)})
    ids = list(session.scalars(_STORE, rows))
    unsent = [{'event_id': event_id} for event_id, row in zip(
        ids, rows, strict=True) if row['notifications'] is not None]
    if unsent:
        session.execute(_INSERT_UNSENT, unsent)
    return ids


def count_more(session: orm.Session, more: Mapping[int, int]) -> None:
    """Add equal refusals to the counts of events, by their ids."""
    session.execute(_COUNT, [
        {'event_id': event_id, 'more': number}
        for event_id, number in sorted(more.items())])


def _log(session: orm.Session, host: str | None, happened: Event) -> None:
    """Log what an operator wants to read, when it is committed."""
    kind, objects, detail, level = happened
    if level is None:
        level = (logging.WARNING if kind in event.WARNED
                 else logging.INFO if kind in event.INFORMED else None)
    if level is None or not objects:
        return
    parts = [f'{kind} on {host}' if host else kind,
             f'by {transaction.author_of(session).actor}']
    addresses = [device.address for device, _ in objects if device]
    if addresses:
        parts.append(f'device {", ".join(addresses)}')
    for instance in {row.instance_uuid for _, row in objects if row}:
        parts.append(f'instance {instance}')
    if detail:
        parts.append(cleaning.shortened(detail))
    transaction.note_line(session, level, '; '.join(parts))


def _values(by: transaction.Author, kind: event.Kind, host: str | None,
            detail: str | None) -> Row:
    return {
        'kind': kind, 'host': host,
        'actor': by.actor[:_MAX_LENGTH], 'request_id': by.request_id,
        'detail': detail and cleaning.shortened(detail)}


def _objects(device: device_db.DeviceRow | None,
             assignment: assignment_db.AssignmentRow | None,
             ) -> Row:
    return {
        'device_uuid': device.uuid if device else None,
        'assignment_uuid': assignment.uuid if assignment else None,
        'instance_uuid': assignment.instance_uuid if assignment else None,
        'project_id': assignment.project_id if assignment else None}


def listed(session: orm.Session, wanted: history.EventFilter, limit: int,
           after: int | None = None) -> tuple[history.EventInfo, ...]:
    """Return events, the one that was stored last first.

    :param after: id of the event before the first one
    """
    ids = TABLE.c.id
    query = sa.select(*_INFO).where(*_conditions(wanted))
    if after is not None:
        query = query.where(ids < after)
    return tuple(
        history.EventInfo(**{
            **row, 'at': row['at'].isoformat(timespec='seconds') + 'Z'})
        for row in session.execute(
            query.order_by(ids.desc()).limit(limit)).mappings())


def _conditions(wanted: history.EventFilter,
                ) -> Iterator[sa.ColumnElement[bool]]:
    for of_event, value in (
            (TABLE.c.host, wanted.host),
            (TABLE.c.device_uuid, wanted.device),
            (TABLE.c.instance_uuid, wanted.instance),
            (TABLE.c.project_id, wanted.project),
            (TABLE.c.kind, wanted.kind),
            (TABLE.c.request_id, wanted.request)):
        if value is not None:
            yield of_event == value
    if wanted.since is not None:
        yield TABLE.c.at >= wanted.since
    if wanted.until is not None:
        yield TABLE.c.at < wanted.until
