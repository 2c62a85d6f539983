# SPDX-License-Identifier: Apache-2.0
"""Table ``holds``: why devices are not offered (domain.device).

A row is of a device or of a host. Unique keys: a device, or a host, has one of
each kind.
"""

from __future__ import annotations

import collections
import datetime
import typing
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules

if typing.TYPE_CHECKING:
    from gpgpu_plugin.db import device as device_db

TABLE = tables.HOLDS


class Hold(typing.NamedTuple):
    """A row as it was read; the table gives the meaning of its columns."""

    id: int
    device_id: int | None
    host_id: int | None
    kind: str
    reason: str | None
    actor: str | None
    since: datetime.datetime


def of_host(host_id: int, kind: device_rules.HostHoldKind,
            reason: str | None = None, actor: str | None = None) -> Hold:
    """Return a hold of a host that is not stored yet."""
    return Hold(id=0, device_id=None, host_id=host_id, kind=str(kind),
                reason=reason, actor=actor, since=SINCE_NOW)


SINCE_NOW = datetime.datetime.max
"""``since`` of a hold that is not stored yet."""

COLUMNS = tuple(TABLE.c[name] for name in Hold._fields)
"""Columns of a Hold, in its order."""

Kinds = frozenset[str]
"""Kinds of the holds of a device, and of those of its GPU."""


def is_held(kinds: Iterable[str],
            device: sa.FromClause = tables.DEVICES,
            ) -> sa.ColumnElement[bool]:
    """Return the condition that a device, or its GPU, has one of some holds.

    :param device: ``tables.DEVICES``, or an alias of the table
    """
    held = sa.select(TABLE.c.device_id).where(
        TABLE.c.kind.in_(sorted(kinds)))
    return sa.or_(device.c.id.in_(held),
                  sa.func.coalesce(device.c.parent_id, 0).in_(held))


def text(found: Hold) -> str | None:
    """Return why a device is held, in words; None: nobody said why."""
    return found.reason if found.actor is None else (
        f'{found.kind}{_origin(found)}')


def described(found: Hold) -> str:
    """Return a hold in words, with its author and its beginning."""
    return f'{found.kind} since {at(found)}{_origin(found)}'


def _origin(found: Hold) -> str:
    return (f' by {found.actor}' if found.actor else '') + (
        f': {found.reason}' if found.reason else '')


def texts(holds: Iterable[Hold]) -> str | None:
    """Return why a device is held, in one text; None: nobody said why."""
    return '; '.join(filter(None, map(text, holds))) or None


def at(found: Hold) -> str:
    """Return since when a hold is there: ISO 8601, UTC."""
    return found.since.isoformat(timespec='seconds') + 'Z'


def store(session: orm.Session, before: Collection[Hold],
          after: Collection[Hold], at: datetime.datetime) -> None:
    """Store which holds there are now of those that there were, and new ones.

    :param after: those with an id were there before
    :param at: since when the new ones are there
    """
    known = {found.id for found in after}
    gone = [found.id for found in before if found.id not in known]
    if gone:
        session.execute(sa.delete(TABLE).where(TABLE.c.id.in_(gone)))
    new = [found._replace(since=at)._asdict() for found in after
           if found.id == 0]
    for values in new:
        del values['id']
    if new:
        session.execute(sa.insert(TABLE), new)


def of_devices(session: orm.Session, device_ids: Collection[int],
               ) -> Mapping[int, Sequence[Hold]]:
    """Return the own holds of devices by their ids, the oldest first."""
    return _of(session, TABLE.c.device_id, device_ids)


def of_hosts(session: orm.Session, host_ids: Collection[int],
             ) -> Mapping[int, Sequence[Hold]]:
    """Return the own holds of hosts by their ids, the oldest first."""
    return _of(session, TABLE.c.host_id, host_ids)


def _of(session: orm.Session, subject: sa.Column[int | None],
        ids: Collection[int]) -> Mapping[int, Sequence[Hold]]:
    found = collections.defaultdict(list)
    for id, *row in session.execute(sa.select(subject, *COLUMNS).where(
            subject.in_(ids)).order_by(TABLE.c.id)):
        found[id].append(Hold(*row))
    return found


def held_hosts(kind: device_rules.HostHoldKind) -> sa.Select[int | None]:
    """Return the query of the ids of hosts that have a hold of a kind."""
    return sa.select(TABLE.c.host_id).where(TABLE.c.kind == kind)


def is_host_held(kind: device_rules.HostHoldKind) -> sa.ColumnElement[bool]:
    """Return the condition that a host has a hold of a kind."""
    return tables.HOSTS.c.id.in_(held_hosts(kind))


def of_rows(session: orm.Session, devices: Collection[device_db.DeviceRow],
            ) -> Mapping[int, Sequence[Hold]]:
    """Return the holds of devices, and then those of their GPUs, by id."""
    found = of_devices(session, {
        id for device in devices for id in (device.id, device.parent_id)
        if id is not None}) if devices else {}
    return {device.id: [*found.get(device.id, ()),
                        *found.get(device.parent_id or 0, ())]
            for device in devices}


def listed(session: orm.Session, host: str | None, kind: str | None,
           limit: int, after: int) -> list[Listed]:
    """Return holds of live hosts and their devices, by id.

    :param host: name of the only host
    :param after: id of the hold before the first one
    """
    query = (
        sa.select(tables.HOSTS.c.name, tables.DEVICES.c.address,
                  tables.DEVICES.c.uuid, *COLUMNS)
        .select_from(TABLE)
        .outerjoin(tables.DEVICES, tables.DEVICES.c.id == TABLE.c.device_id)
        .join(tables.HOSTS, tables.HOSTS.c.id == sa.func.coalesce(
            TABLE.c.host_id, tables.DEVICES.c.host_id))
        .where(TABLE.c.id > after, tables.HOSTS.c.deleted == 0)
        .order_by(TABLE.c.id).limit(limit))
    if host is not None:
        query = query.where(tables.HOSTS.c.name == host)
    if kind is not None:
        query = query.where(TABLE.c.kind == kind)
    return [Listed(name, address, device, Hold(*row))
            for name, address, device, *row in session.execute(query)]


class Listed(typing.NamedTuple):
    """A hold with what it holds; the device is None if it is of a host."""

    host: str
    address: str | None
    device: str | None
    hold: Hold


def inherit(session: orm.Session, host_id: int, deleted_id: int) -> None:
    """Give a new host the holds that were left of a deleted one."""
    session.execute(sa.update(TABLE).where(
        TABLE.c.host_id == deleted_id).values(host_id=host_id))


def delete_of_host(session: orm.Session, host_id: int) -> None:
    """Delete the holds of a host that end with it, and of its devices."""
    session.execute(sa.delete(TABLE).where(
        TABLE.c.host_id == host_id,
        TABLE.c.kind != device_rules.HostHoldKind.DRAINING))
    session.execute(sa.delete(TABLE).where(TABLE.c.device_id.in_(
        sa.select(tables.DEVICES.c.id).where(
            tables.DEVICES.c.host_id == host_id))))
