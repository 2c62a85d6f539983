# SPDX-License-Identifier: Apache-2.0
"""Rows of ``usages`` as they are listed, summed and exported."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import page
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import usage
from gpgpu_plugin.objects import usage as objects

_TABLE = usage.TABLE
_ASSIGNMENTS = tables.ASSIGNMENTS
_SAME = ('project_id', 'user_id', 'instance_uuid', 'flavor', 'host',
         'device_uuid', 'address', 'serial', 'variant', 'vgpu_type',
         'resource_class')
_KEYS: Mapping[objects.UsageKey, sa.ColumnElement[str | None]] = {
    objects.UsageKey.PROJECT: _TABLE.c.project_id,
    objects.UsageKey.USER: _TABLE.c.user_id,
    objects.UsageKey.INSTANCE: _TABLE.c.instance_uuid,
    objects.UsageKey.FLAVOR: _TABLE.c.flavor,
    objects.UsageKey.HOST: _TABLE.c.host,
    objects.UsageKey.VARIANT: _TABLE.c.variant,
    objects.UsageKey.VGPU_TYPE: _TABLE.c.vgpu_type}
_EXPORT_ORDER = (_TABLE.c.ended_at, _TABLE.c.id)


def listed(session: orm.Session, query: objects.UsageQuery,
           now: datetime.datetime, limit: int,
           marker: str | None = None) -> tuple[objects.UsageInfo, ...]:
    """Return usage in the order in which it was recorded.

    :param now: until when running usage is counted
    :param marker: UUID of the usage before the first one
    :raises NotFound: no such marker
    """
    found = (_select(_seconds(query, now)).where(*_conditions(query))
             .order_by(_TABLE.c.id).limit(limit))
    if marker is not None:
        _, place = _place(session, marker)
        found = found.where(_TABLE.c.id > place)
    return _infos(session, found)


def summed(session: orm.Session, query: objects.UsageQuery,
           by: Sequence[objects.UsageKey], now: datetime.datetime,
           limit: int, after: Sequence[str | None] | None = None,
           ) -> tuple[objects.UsageSum, ...]:
    """Return sums of usage, sorted by the values of the keys.

    :param by: keys, at least one
    :param after: values of the sum before the first one
    """
    # A page cannot begin after NULL.
    keys = [sa.func.coalesce(_KEYS[key], sa.literal_column("''"))
            for key in by]
    found = (
        sa.select(*keys, sa.func.count(),
                  sa.func.sum(_seconds(query, now)))
        .where(*_conditions(query)).group_by(*keys).order_by(*keys)
        .limit(limit))
    if after is not None:
        found = found.where(page.after(
            keys, [value or '' for value in after]))
    return tuple(
        objects.UsageSum(values=tuple(value or None for value in values),
                         usages=count, seconds=int(seconds))
        for *values, count, seconds in session.execute(found))


def unexported(session: orm.Session, limit: int,
               marker: str | None = None) -> tuple[objects.UsageInfo, ...]:
    """Return ended usage that was not exported, in the order of its end.

    Usage of an assignment that is still active may be resumed (usage.resume).

    :param marker: UUID of the usage before the first one
    :raises NotFound: no such marker
    """
    found = (
        _select(clock.seconds(_TABLE.c.ended_at)
                - clock.seconds(_TABLE.c.began_at))
        .where(_TABLE.c.exported_at.is_(None), _TABLE.c.ended_at.is_not(None),
               ~sa.exists().where(
                   _ASSIGNMENTS.c.uuid == _TABLE.c.assignment_uuid,
                   _ASSIGNMENTS.c.active == 1))
        .order_by(*_EXPORT_ORDER).limit(limit))
    if marker is not None:
        found = found.where(page.after(
            _EXPORT_ORDER, _place(session, marker)))
    return _infos(session, found)


def mark_exported(session: orm.Session, uuids: Collection[str],
                  at: datetime.datetime) -> int:
    """Record that ended usage was exported.

    :returns: number of those that were not marked before
    """
    # By the unique key alone, as in usage.end.
    rows = session.execute(
        sa.select(_TABLE.c.id, _TABLE.c.ended_at, _TABLE.c.exported_at)
        .where(_TABLE.c.assignment_uuid.in_(sorted(uuids)))
        .order_by(_TABLE.c.id).with_for_update()).all()
    ids = [row.id for row in rows
           if row.ended_at is not None and row.exported_at is None]
    session.execute(sa.update(_TABLE).where(_TABLE.c.id.in_(ids))
                    .values(exported_at=at.replace(microsecond=0)))
    return len(ids)


def _select(seconds: sa.ColumnElement[int]) -> sa.Select[tuple[object, ...]]:
    return sa.select(
        _TABLE.c.assignment_uuid, _TABLE.c.began_at, _TABLE.c.ended_at,
        *(_TABLE.c[name] for name in _SAME), seconds.label('seconds'))


def _place(session: orm.Session,
           uuid: str) -> tuple[datetime.datetime | None, int]:
    """Return the end and the id of a usage, by which lists are sorted.

    :raises NotFound: no usage has this UUID
    """
    place = session.execute(
        sa.select(*_EXPORT_ORDER)
        .where(_TABLE.c.assignment_uuid == uuid)).tuples().first()
    if place is None:
        raise exception.NotFound(kind='usage', name=uuid)
    return place


def _conditions(query: objects.UsageQuery) -> list[sa.ColumnElement[bool]]:
    """Return the conditions on usage that a query asks for."""
    found: list[sa.ColumnElement[bool]] = [
        _TABLE.c[name] == value for name, value in (
            ('project_id', query.project_id), ('user_id', query.user_id),
            ('host', query.host), ('instance_uuid', query.instance_uuid),
            ('variant', query.variant)) if value is not None]
    if query.until is not None:
        found.append(_TABLE.c.began_at < query.until)
    if query.since is not None:
        found.append(sa.or_(_TABLE.c.ended_at > query.since,
                            _TABLE.c.ended_at.is_(None)))
    return found


def _seconds(query: objects.UsageQuery,
             now: datetime.datetime) -> sa.ColumnElement[int]:
    """Return the seconds of a usage within the period.

    They are a difference of whole seconds, so that the parts of consecutive
    periods add up.
    """
    began: sa.ColumnElement[int] = clock.seconds(_TABLE.c.began_at)
    ended: sa.ColumnElement[int] = sa.func.coalesce(
        clock.seconds(_TABLE.c.ended_at), _epoch(now))
    if query.since is not None:
        began = _later(began, _epoch(query.since))
    if query.until is not None:
        until = _epoch(query.until)
        ended = sa.case((ended < until, ended), else_=until)
    # Not negative, if the clock of another conductor is ahead.
    return _later(ended, began) - began


def _later(time: sa.ColumnElement[int],
           other: sa.ColumnElement[int] | int) -> sa.ColumnElement[int]:
    return sa.case((time > other, time), else_=other)


def _epoch(time: datetime.datetime) -> int:
    return int(time.replace(tzinfo=datetime.UTC).timestamp())


def _infos(session: orm.Session, query: sa.Select[tuple[object, ...]],
           ) -> tuple[objects.UsageInfo, ...]:
    return tuple(
        objects.UsageInfo(
            uuid=row['assignment_uuid'], began_at=_text(row['began_at']),
            ended_at=None if row['ended_at'] is None
            else _text(row['ended_at']), seconds=int(row['seconds']),
            **{name: row[name] for name in _SAME})
        for row in session.execute(query).mappings())


def _text(at: datetime.datetime) -> str:
    return at.isoformat(timespec='seconds') + 'Z'
