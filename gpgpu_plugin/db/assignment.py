# SPDX-License-Identifier: Apache-2.0
"""Rows of ``assignments``."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import typing
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.objects import claim as claim_obj

TABLE = tables.ASSIGNMENTS

_ORDER = (tables.HOSTS.c.name, TABLE.c.id)

UNKNOWN_REQUEST = ''
"""``request`` of an assignment that was adopted from its host."""


@dataclasses.dataclass(frozen=True, slots=True)
class AssignmentRow:
    """An active assignment; tables.ASSIGNMENTS gives its columns' meaning.
    """

    device: device_db.DeviceRow
    uuid: str
    host_id: int
    instance_uuid: str
    role: str
    migration_uuid: str
    ordinal: int
    vgpu_type: str
    resource_class: str
    request: str
    allocated: bool
    lease_expires_at: float | None
    host_generation: int
    source_host: str | None
    project_id: str
    user_id: str
    flavor: str
    exact: bool
    claimed_at: datetime.datetime
    guest_addresses: str | None = None


_NAMES = tuple(field.name for field in dataclasses.fields(AssignmentRow)
               if field.name != 'device')

COLUMNS = tuple(TABLE.c[name] for name in _NAMES)
"""Columns of an AssignmentRow after its device, in its order."""

_INSERT = sa.insert(TABLE).inline()
_ACTIVE = (
    sa.select(tables.HOSTS.c.name, tables.VARIANTS.c.name, *COLUMNS,
              *device_db.COLUMNS)
    .select_from(TABLE)
    .join(tables.HOSTS, tables.HOSTS.c.id == TABLE.c.host_id)
    .join(device_db.TABLE, device_db.TABLE.c.id == TABLE.c.device_id)
    .outerjoin(tables.GROUPS, tables.GROUPS.c.id == device_db.TABLE.c.group_id)
    .outerjoin(tables.VARIANTS,
               tables.VARIANTS.c.id == tables.GROUPS.c.variant_id)
    .where(TABLE.c.active == 1))
_OF_DEVICE = 2 + len(COLUMNS)
_END = (sa.update(TABLE)
        .where(TABLE.c.uuid.in_(sa.bindparam('uuids', expanding=True)))
        .values(active=None, ended_at=sa.bindparam('at')))


def insert(session: orm.Session, rows: Iterable[AssignmentRow], *,
           ended_at: datetime.datetime | None = None) -> None:
    """Store new assignments, in one statement.

    :param ended_at: they have ended then; None: they are active
    """
    values = [
        {name: getattr(row, name) for name in _NAMES} | {
            'device_id': row.device.id, 'active': None if ended_at else 1,
            'ended_at': ended_at}
        for row in rows]
    if values:
        session.execute(_INSERT, values)


def end(session: orm.Session, rows: Collection[AssignmentRow],
        at: datetime.datetime) -> None:
    """Record that assignments have ended, in one statement."""
    if rows:
        session.execute(_END, {'uuids': [row.uuid for row in rows], 'at': at})


def update(session: orm.Session,
           changes: Sequence[tuple[AssignmentRow, AssignmentRow]]) -> None:
    """Store how active assignments changed.

    It is one statement for those that change in the same way.

    :param changes: each assignment before and after its change
    """
    by_values: dict[tuple[tuple[str, object], ...], list[str]] = {}
    for before, now in changes:
        values = tuple((name, getattr(now, name)) for name in _NAMES
                       if getattr(before, name) != getattr(now, name))
        if values:
            by_values.setdefault(values, []).append(now.uuid)
    for values, uuids in by_values.items():
        session.execute(_update(tuple(name for name, _ in values)), {
            'uuids': uuids, **dict(values)})


@functools.cache
def _update(names: Sequence[str]) -> sa.Update:
    """Return the statement that changes some columns of assignments.

    SQLAlchemy takes longer to make it than to run it.
    """
    return (sa.update(TABLE)
            .where(TABLE.c.uuid.in_(sa.bindparam('uuids', expanding=True)))
            .values({name: sa.bindparam(name) for name in names}))


class Active(typing.NamedTuple):
    """An active assignment.

    ``host``: name of its host. ``variant``: that of the device's group; None:
    the device is in no group.
    """

    row: AssignmentRow
    host: str
    variant: str | None


def of_hosts(session: orm.Session,
             host_ids: Collection[int]) -> list[Active]:
    """Return the active assignments of hosts, in the order of their claims."""
    return _listed(session, _ACTIVE.where(
        TABLE.c.host_id.in_(host_ids)).order_by(TABLE.c.id))


def of_instance(session: orm.Session, instance_uuid: str) -> list[Active]:
    """Return the active assignments of an instance, as ``of_hosts`` does."""
    return _listed(session, _ACTIVE.where(
        TABLE.c.instance_uuid == instance_uuid).order_by(TABLE.c.id))


def listed(session: orm.Session, host: str | None = None,
           instance_uuid: str | None = None, limit: int | None = None,
           marker: str | None = None) -> list[Active]:
    """Return active assignments in order of host and claim.

    :param host: name; None: of all hosts
    :param limit: number of rows at most; None: all
    :param marker: UUID of the assignment before the first one, which may have
        ended
    :raises NotFound: no such marker
    """
    query = _ACTIVE.order_by(*_ORDER).limit(limit)
    if marker is not None:
        place = session.execute(
            sa.select(*_ORDER).join(
                tables.HOSTS, tables.HOSTS.c.id == TABLE.c.host_id)
            .where(TABLE.c.uuid == marker)).first()
        if place is None:
            raise exception.NotFound(kind='assignment', name=marker)
        query = query.where(tables.page_after(_ORDER, place))
    if host is not None:
        query = query.where(tables.HOSTS.c.name == host)
    if instance_uuid is not None:
        query = query.where(TABLE.c.instance_uuid == instance_uuid)
    return _listed(session, query)


def _listed(session: orm.Session,
            query: sa.Select[*tuple[typing.Any, ...]]) -> list[Active]:
    return [
        Active(AssignmentRow(device_db.DeviceRow(*row[_OF_DEVICE:]),
                             *row[2:_OF_DEVICE]), row[0], row[1])
        for row in session.execute(query)]


def hosts_of_instance(session: orm.Session, instance_uuid: str,
                      known: Collection[int]) -> list[str]:
    """Return the names of the hosts on which an instance has assignments.

    :param known: ids of hosts to leave out
    """
    return list(session.scalars(
        sa.select(tables.HOSTS.c.name).distinct()
        .join(TABLE,
              TABLE.c.host_id == tables.HOSTS.c.id)
        .where(TABLE.c.active == 1,
               TABLE.c.instance_uuid == instance_uuid,
               tables.HOSTS.c.id.not_in(list(known)))))


def instance_of_variant(session: orm.Session,
                        variant_id: int) -> str | None:
    """Return an instance that a device of the variant is assigned to."""
    return session.scalar(
        sa.select(TABLE.c.instance_uuid)
        .join(tables.DEVICES, tables.DEVICES.c.id == TABLE.c.device_id)
        .join(tables.GROUPS, tables.DEVICES.c.group_id == tables.GROUPS.c.id)
        .where(TABLE.c.active == 1,
               tables.GROUPS.c.variant_id == variant_id).limit(1))


def counts_by_type(session: orm.Session, group_ids: Collection[int],
                   ) -> dict[tuple[int | None, str], int]:
    """Return the number of active assignments by group id and type."""
    return {(group_id, vgpu_type): count for group_id, vgpu_type, count
            in session.execute(
                sa.select(tables.DEVICES.c.group_id,
                          TABLE.c.vgpu_type, sa.func.count())
                .select_from(TABLE)
                .join(tables.DEVICES, tables.DEVICES.c.id == TABLE.c.device_id)
                .where(TABLE.c.active == 1,
                       tables.DEVICES.c.group_id.in_(group_ids))
                .group_by(tables.DEVICES.c.group_id,
                          TABLE.c.vgpu_type))}


def delete_of_host(session: orm.Session, host_id: int) -> None:
    """Delete the assignments of a host, all of which have ended.

    Their usage stays.
    """
    session.execute(sa.delete(TABLE).where(
        TABLE.c.host_id == host_id))


def host_ids(session: orm.Session, uuids: Sequence[str]) -> set[int]:
    """Return the ids of the hosts of assignments, including ended ones."""
    return set(session.scalars(
        sa.select(TABLE.c.host_id)
        .where(TABLE.c.uuid.in_(list(uuids)))))


def hosts_with_expired_lease(session: orm.Session,
                             silent_after: float) -> list[str]:
    """Return the names of hosts with an active assignment whose lease is over.

    :param silent_after: only hosts that called within so many seconds
    """
    return list(session.scalars(
        sa.select(tables.HOSTS.c.name).distinct()
        .join(TABLE,
              TABLE.c.host_id == tables.HOSTS.c.id)
        .where(TABLE.c.active == 1,
               TABLE.c.lease_expires_at < clock.now(),
               tables.HOSTS.c.heard_at >= clock.now() - silent_after)
        .order_by(tables.HOSTS.c.name)))


def ended_at(session: orm.Session, uuid: str) -> datetime.datetime | None:
    """Return when an assignment ended; None: that is unknown."""
    return session.scalar(
        sa.select(TABLE.c.ended_at).where(TABLE.c.uuid == uuid))


def other_hosts(session: orm.Session, uuids: Collection[str],
                roles: Collection[str] = tuple(claim_obj.ClaimRole),
                ) -> list[str]:
    """Return the other hosts on which the same instances have assignments.

    :param uuids: UUIDs of assignments, including ended ones
    :param roles: ignore those of other roles among them
    :returns: names of hosts
    """
    given = TABLE.alias()
    return list(session.scalars(
        sa.select(tables.HOSTS.c.name).distinct()
        .join(TABLE,
              TABLE.c.host_id == tables.HOSTS.c.id)
        .join(given,
              given.c.instance_uuid == TABLE.c.instance_uuid)
        .where(TABLE.c.active == 1,
               given.c.uuid.in_(list(uuids)), given.c.role.in_(list(roles)),
               given.c.host_id != TABLE.c.host_id)
        .order_by(tables.HOSTS.c.name)))


_KNOWN = tuple(
    sa.select(column).where(
        column.in_(sa.bindparam('uuids', expanding=True)))
    for column in (
        TABLE.c.uuid,
        usage_db.TABLE.c.assignment_uuid))


def known(session: orm.Session, uuids: Collection[str]) -> set[str]:
    """Return those UUIDs that are assignments', ended and purged ones too."""
    found: set[str] = set()
    for statement in _KNOWN:
        missing = set(uuids) - found
        if missing:
            found.update(session.scalars(
                statement, {'uuids': list(missing)}))
    return found


def places(session: orm.Session, host_id: int,
           names: Collection[str]) -> dict[str, str]:
    """Return the stable ids of the devices of a host's assignments.

    Ended assignments are included.

    :param names: UUIDs; those that are not of assignments are ignored
    :returns: by the assignment's UUID
    """
    if not names:
        return {}
    return dict(session.execute(
        sa.select(TABLE.c.uuid, tables.DEVICES.c.stable_id)
        .join(tables.DEVICES, tables.DEVICES.c.id == TABLE.c.device_id)
        .where(
            TABLE.c.host_id == host_id,
            TABLE.c.uuid.in_(list(names)))).tuples().all())


def activated(session: orm.Session,
              device_ids: Collection[int]) -> set[int]:
    """Return the ids of those devices that a guest had.

    A purge leaves the last assignment that shows it.
    """
    return set(session.scalars(
        sa.select(TABLE.c.device_id).distinct()
        .where(TABLE.c.device_id.in_(list(device_ids)),
               TABLE.c.lease_expires_at.is_(None))))


class LastAssignment(typing.NamedTuple):
    """The last assignment of a device, which may have ended."""

    uuid: str
    instance_uuid: str
    project_id: str


def last_of_device(session: orm.Session,
                   device_id: int) -> LastAssignment | None:
    """Return the last assignment of a device; None: it never had one."""
    row = session.execute(
        sa.select(*(TABLE.c[name] for name in LastAssignment._fields))
        .where(TABLE.c.device_id == device_id)
        .order_by(TABLE.c.id.desc()).limit(1)).first()
    return LastAssignment(*row) if row else None


def last_of(session: orm.Session,
            device_ids: Collection[int]) -> dict[int, str]:
    """Return the UUIDs of the last assignments of devices, by device id."""
    newest = (sa.select(sa.func.max(TABLE.c.id))
              .where(TABLE.c.device_id.in_(list(device_ids)))
              .group_by(TABLE.c.device_id))
    return dict(session.execute(
        sa.select(TABLE.c.device_id, TABLE.c.uuid)
        .where(TABLE.c.id.in_(newest))).tuples().all())
