# SPDX-License-Identifier: Apache-2.0
"""Table ``usages``: which instances used which devices, and when.

A usage begins when a guest runs with a device: when a claim is activated or,
for a migration, when Nova confirms it. It ends with the assignment. Claims
that no guest used, and devices of a migration that was reverted, have none.

If the instance begins to use devices elsewhere, as in an evacuation, the usage
ends with that for the present. Any host may claim its own devices for any
instance, and an evacuation may fail, so only the host of the assignment
decides: it resumes the usage, or releases the devices. A host that was not
restarted since then had the guest until the release.

A row stands by itself, so that it outlives what it names: all names are as
they were in the beginning. Unique key: the usage of an assignment is kept
once, and the UUID remains known. Indexes: the usage of a project, of a host
and of all in a period; the usage of an instance, which ends elsewhere when it
moves; what is to be exported, in the order of the end.
"""

from __future__ import annotations

import datetime
import typing
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import notification as notification_db
from gpgpu_plugin.db import outbox
from gpgpu_plugin.db import tables
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import history

TABLE = sa.Table(
    'usages', tables.METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('assignment_uuid', tables.UUID, nullable=False,
              comment='UUID of the assignment.'),
    sa.Column('instance_uuid', tables.UUID, nullable=False,
              comment='Instance that used the device.'),
    sa.Column('project_id', tables.NAME, nullable=False,
              comment='Project of the instance.'),
    sa.Column('user_id', tables.NAME, nullable=False,
              comment='User who created the instance.'),
    sa.Column('flavor', tables.NAME, nullable=False,
              comment='Name of the flavor that was claimed for.'),
    sa.Column('host', tables.NAME, nullable=False,
              comment='Name of the host.'),
    sa.Column('device_uuid', tables.UUID, nullable=False,
              comment='UUID of the device.'),
    sa.Column('address', sa.String(32), nullable=False,
              comment='PCI address of the device.'),
    sa.Column('serial', tables.NAME,
              comment='Serial number of the GPU; NULL: unknown.'),
    sa.Column('variant', sa.String(64),
              comment='Name of the variant; NULL: the device was in no '
              'group.'),
    sa.Column('vgpu_type', sa.String(64), nullable=False,
              comment='Type that was claimed.'),
    sa.Column('resource_class', tables.NAME, nullable=False,
              comment='Class that Placement allocated for it.'),
    sa.Column('began_at', sa.DateTime, nullable=False,
              comment='When it began (UTC, whole seconds).'),
    sa.Column('ended_at', sa.DateTime,
              comment='When it ended (UTC, whole seconds); NULL: it goes on.'),
    sa.Column('exported_at', sa.DateTime,
              comment='When "usage export" wrote it (UTC); NULL: not yet.'),
    sa.UniqueConstraint('assignment_uuid'),
    sa.Index(None, 'project_id', 'ended_at'),
    sa.Index(None, 'host', 'ended_at'),
    sa.Index(None, 'ended_at'),
    sa.Index(None, 'instance_uuid'),
    sa.Index(None, 'exported_at', 'ended_at'))

_ASSIGNMENTS = tables.ASSIGNMENTS
_HOSTS = tables.HOSTS
_DEVICES = tables.DEVICES
_GPUS = _DEVICES.alias('gpus')
_GROUPS = tables.GROUPS
_VARIANTS = tables.VARIANTS
_ON_INSTANCE = TABLE.alias('on_instance')

IS_USED = sa.and_(_ASSIGNMENTS.c.lease_expires_at.is_(None),
                  _ASSIGNMENTS.c.role == str(claim_obj.ClaimRole.INSTANCE))
"""Condition that a guest has or had the device of an assignment."""

_COPIED = (
    _ASSIGNMENTS.c.uuid.label('assignment_uuid'),
    *(_ASSIGNMENTS.c[name] for name in (
        'instance_uuid', 'project_id', 'user_id', 'flavor', 'vgpu_type',
        'resource_class')),
    _HOSTS.c.name.label('host'), _DEVICES.c.uuid.label('device_uuid'),
    _DEVICES.c.address, _VARIANTS.c.name.label('variant'))
_NAMES = tuple(copied.name for copied in _COPIED)
_SOURCE = (
    _ASSIGNMENTS
    .join(_HOSTS, _ASSIGNMENTS.c.host_id == _HOSTS.c.id)
    .join(_DEVICES, _ASSIGNMENTS.c.device_id == _DEVICES.c.id)
    .outerjoin(_GPUS, _DEVICES.c.parent_id == _GPUS.c.id)
    .outerjoin(_GROUPS, _DEVICES.c.group_id == _GROUPS.c.id)
    .outerjoin(_VARIANTS, _GROUPS.c.variant_id == _VARIANTS.c.id))

_BEGINNING = (
    sa.select(
        *_COPIED, _DEVICES.c.pci_function.label('function'),
        _GPUS.c.pci_function.label('function_of_gpu'),
        _ON_INSTANCE.c.assignment_uuid.label('elsewhere'))
    .select_from(_SOURCE.outerjoin(_ON_INSTANCE, sa.and_(
        _ON_INSTANCE.c.instance_uuid == _ASSIGNMENTS.c.instance_uuid,
        _ON_INSTANCE.c.ended_at.is_(None))))
    .where(_ASSIGNMENTS.c.uuid.in_(sa.bindparam('uuids', expanding=True)))
    .order_by(_ASSIGNMENTS.c.id))
_INSERT = sa.insert(TABLE).inline()
_AT = sa.bindparam('at', type_=sa.DateTime())
_ALIVE_SINCE = sa.bindparam('alive_since', type_=sa.DateTime())
_NOT_ALIVE = datetime.datetime.max
_UUIDS: sa.BindParameter[str] = sa.bindparam('uuids', expanding=True)
# By the unique key alone: MariaDB locks all rows of the index that it reads.
# See db.clock: a transaction may have an earlier time than the one before.
_END = (sa.update(TABLE)
        .where(TABLE.c.assignment_uuid.in_(_UUIDS))
        .values(ended_at=sa.case(
            (TABLE.c.ended_at <= _ALIVE_SINCE, TABLE.c.ended_at),
            (TABLE.c.began_at > _AT, TABLE.c.began_at), else_=_AT)))
_SUSPENDED = (
    sa.select(TABLE.c.assignment_uuid, TABLE.c.instance_uuid)
    .join(_ASSIGNMENTS, _ASSIGNMENTS.c.uuid == TABLE.c.assignment_uuid)
    .where(TABLE.c.assignment_uuid.in_(_UUIDS), TABLE.c.ended_at.is_not(None),
           _ASSIGNMENTS.c.host_id == sa.bindparam('host_id'),
           _ASSIGNMENTS.c.active == 1, IS_USED))
_RESUME = (sa.update(TABLE).where(TABLE.c.assignment_uuid.in_(_UUIDS))
           .values(ended_at=None))

_LOCKED = (sa.select(TABLE)
           .where(TABLE.c.assignment_uuid.in_(_UUIDS))
           .order_by(TABLE.c.assignment_uuid).with_for_update())


def begin(session: orm.Session, uuids: Collection[str],
          at: datetime.datetime, *, ends_elsewhere: bool = True) -> None:
    """Record that guests begin to use the devices of assignments.

    :param uuids: of assignments without a usage
    :param ends_elsewhere: the guests use nothing else from now on, such as
        the devices on a host that an instance was evacuated from, which
        stay assigned until that host is back and releases them
    """
    # Not INSERT ... SELECT, for which MariaDB locks each row that it reads,
    # those of variants too. An UPDATE that finds no row locks a gap.
    rows = session.execute(_BEGINNING, {'uuids': list(uuids)}).mappings().all()
    elsewhere = {row['elsewhere'] for row in rows} - {None, *uuids}
    if ends_elsewhere and elsewhere:
        end(session, elsewhere, at)
    found = {row['assignment_uuid']: _values(row, at) for row in rows}
    if found:
        session.execute(_INSERT, list(found.values()))
        notification_db.usages_began(session, found.values())


def end(session: orm.Session, uuids: Collection[str], at: datetime.datetime,
        alive_since: datetime.datetime | None = None) -> None:
    """Record that the usage of assignments ends, unless it ended before.

    :param at: when the guests ended; may be earlier than an end that was
        recorded meanwhile
    :param alive_since: when the host of the assignments, which ends them, was
        started: it had their guests until then, whatever other hosts began
        since; None: unknown, or somebody else ends them
    """
    whole = _whole(at)
    # Its host may say that it was earlier, but not that it was later than an
    # end from before its start.
    since = (_NOT_ALIVE if alive_since is None
             else min(_whole(alive_since), whole))
    if notification_db.is_enabled(session):
        _notify_of_end(session, uuids, whole, since)
    session.execute(_END, {
        'uuids': sorted(uuids), 'at': whole, 'alive_since': since})


def resume(session: orm.Session, host_id: int,
           uuids: Collection[str]) -> list[str]:
    """Record that usage goes on, though another host began one later.

    :param uuids: assignments that the host, asking Nova, found to be used
    :returns: UUIDs of the instances whose usage had ended for that
    """
    found = session.execute(
        _SUSPENDED, {'uuids': list(uuids), 'host_id': host_id}).all()
    if found:
        uuids = sorted(row.assignment_uuid for row in found)
        if notification_db.is_enabled(session):
            _notify_of_gaps(session, [
                ({**row, 'ended_at': None}, row['ended_at'])
                for row in _locked(session, uuids) if row['ended_at']])
        session.execute(_RESUME, {'uuids': uuids})
    return sorted({row.instance_uuid for row in found})


def going_on(session: orm.Session, uuids: Collection[str],
             heard_after: datetime.datetime) -> set[str]:
    """Return those of some assignments whose usage has not ended.

    :param heard_after: only of hosts that called after this time (UTC)
    """
    since = heard_after.replace(tzinfo=datetime.UTC).timestamp() + 1
    return set(session.scalars(
        sa.select(TABLE.c.assignment_uuid)
        .join(_ASSIGNMENTS, _ASSIGNMENTS.c.uuid == TABLE.c.assignment_uuid)
        .join(_HOSTS, _HOSTS.c.id == _ASSIGNMENTS.c.host_id)
        .where(TABLE.c.assignment_uuid.in_(uuids), TABLE.c.ended_at.is_(None),
               _HOSTS.c.heard_at > since)))


def of_hosts(session: orm.Session,
             hosts: Collection[str] | None) -> list[tuple[str, str]]:
    """Return usages that go on: their host, and the assignment's UUID.

    :param hosts: names; None: of all hosts that do not exist
    """
    live = sa.select(_HOSTS.c.id).where(
        _HOSTS.c.name == TABLE.c.host, _HOSTS.c.deleted == 0)
    return list(session.execute(
        sa.select(TABLE.c.host, TABLE.c.assignment_uuid)
        .where(TABLE.c.ended_at.is_(None), ~live.exists() if hosts is None
               else TABLE.c.host.in_(hosts))
        .order_by(TABLE.c.id)).tuples())


def _notify_of_end(session: orm.Session, uuids: Collection[str],
                   at: datetime.datetime,
                   alive_since: datetime.datetime) -> None:
    """Notify of the usages whose end _END sets, and not of those it keeps.

    Two transactions may end one usage: the one that releases the device, and
    one of another host to which the instance moved. If the former was right,
    there is a second notification, with its end.
    """
    ended = [
        ({**row, 'ended_at': end}, row['ended_at'])
        for row in _locked(session, uuids)
        if (end := max(row['began_at'], at)) != row['ended_at'] and (
            row['ended_at'] is None or row['ended_at'] > alive_since)]
    notification_db.usages_ended(session, [row for row, _ in ended])
    _notify_of_gaps(
        session, [(row, before) for row, before in ended if before])


def _locked(session: orm.Session,
            uuids: Collection[str]) -> Sequence[sa.RowMapping]:
    return session.execute(
        _LOCKED, {'uuids': sorted(uuids)}).mappings().all()


def _notify_of_gaps(session: orm.Session, gaps: Collection[
        tuple[Mapping[str, typing.Any], datetime.datetime]]) -> None:
    """Notify of use of which the ``exists`` notifications know nothing.

    :param gaps: usages with their new values, each with the time at which it
        had counted as ended
    """
    if not gaps:
        return
    # Waits for an audit of this moment, which does not see this transaction.
    state = outbox.lock_state(session)
    if state.audited_since is None:
        return
    for row, ended in gaps:
        until = outbox.audited_until(state, row['id'])
        since = max(ended, state.audited_since)
        if until is not None and since < min(until, row['ended_at'] or until):
            notification_db.usages_exist(session, [row], since, until)


def in_period(session: orm.Session, beginning: datetime.datetime,
              ending: datetime.datetime, after: int,
              limit: int) -> list[dict[str, typing.Any]]:
    """Return usages that went on in a period, in the order of their ids.

    :param after: id of the usage before the first one
    """
    # By the index on the end: what ended long ago is most of the table.
    ids = sa.union_all(*(
        sa.select(TABLE.c.id).where(TABLE.c.id > after, condition)
        for condition in (TABLE.c.ended_at.is_(None),
                          TABLE.c.ended_at > beginning))).subquery()
    return [dict(row) for row in session.execute(
        sa.select(TABLE).join(ids, ids.c.id == TABLE.c.id)
        .where(TABLE.c.began_at < ending)
        .order_by(TABLE.c.id).limit(limit)).mappings()]


def _values(row: sa.RowMapping,
            began_at: datetime.datetime) -> dict[str, typing.Any]:
    return {name: row[name] for name in _NAMES} | {
        'serial': (
            notification_db.serial(row['function'])
            or notification_db.serial(row['function_of_gpu'])),
        'began_at': _whole(began_at), 'ended_at': None}


def _whole(at: datetime.datetime) -> datetime.datetime:
    """Return a time in whole seconds, which all databases keep.

    What ends and what begins at one time have no gap between them.
    """
    return at.replace(microsecond=0)


# -- Rows of ``usages`` as they are listed, summed and exported.


_TABLE = TABLE
_SAME = ('project_id', 'user_id', 'instance_uuid', 'flavor', 'host',
         'device_uuid', 'address', 'serial', 'variant', 'vgpu_type',
         'resource_class')
_KEYS: Mapping[history.UsageKey, sa.ColumnElement[str | None]] = {
    history.UsageKey.PROJECT: _TABLE.c.project_id,
    history.UsageKey.USER: _TABLE.c.user_id,
    history.UsageKey.INSTANCE: _TABLE.c.instance_uuid,
    history.UsageKey.FLAVOR: _TABLE.c.flavor,
    history.UsageKey.HOST: _TABLE.c.host,
    history.UsageKey.VARIANT: _TABLE.c.variant,
    history.UsageKey.VGPU_TYPE: _TABLE.c.vgpu_type}
_EXPORT_ORDER = (_TABLE.c.ended_at, _TABLE.c.id)


def listed(session: orm.Session, query: history.UsageQuery,
           now: datetime.datetime, limit: int,
           marker: str | None = None) -> tuple[history.UsageInfo, ...]:
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


def summed(session: orm.Session, query: history.UsageQuery,
           by: Sequence[history.UsageKey], now: datetime.datetime,
           limit: int, after: Sequence[str | None] | None = None,
           ) -> tuple[history.UsageSum, ...]:
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
        found = found.where(tables.page_after(
            keys, [value or '' for value in after]))
    return tuple(
        history.UsageSum(values=tuple(value or None for value in values),
                         usages=count, seconds=int(seconds))
        for *values, count, seconds in session.execute(found))


def unexported(session: orm.Session, limit: int,
               marker: str | None = None) -> tuple[history.UsageInfo, ...]:
    """Return ended usage that was not exported, in the order of its end.

    Usage of an assignment that is still active may be resumed (``resume``).

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
        found = found.where(tables.page_after(
            _EXPORT_ORDER, _place(session, marker)))
    return _infos(session, found)


def mark_exported(session: orm.Session, uuids: Collection[str],
                  at: datetime.datetime) -> int:
    """Record that ended usage was exported.

    :returns: number of those that were not marked before
    """
    # By the unique key alone, as in ``end``.
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


def _conditions(query: history.UsageQuery) -> list[sa.ColumnElement[bool]]:
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


def _seconds(query: history.UsageQuery,
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
           ) -> tuple[history.UsageInfo, ...]:
    return tuple(
        history.UsageInfo(
            uuid=row['assignment_uuid'], began_at=_text(row['began_at']),
            ended_at=None if row['ended_at'] is None
            else _text(row['ended_at']), seconds=int(row['seconds']),
            **{name: row[name] for name in _SAME})
        for row in session.execute(query).mappings())


def _text(at: datetime.datetime) -> str:
    return at.isoformat(timespec='seconds') + 'Z'
