# SPDX-License-Identifier: Apache-2.0
"""Rows of ``hosts``, and the lock that orders everything about one host."""

from __future__ import annotations

import typing
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import column
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import host_state
from gpgpu_plugin.objects import scheduling

# Made once: SQLAlchemy takes longer to make them than to run them.
_LIVE = (models.Host.name == sa.bindparam('name'), models.Host.deleted == 0)
_FIND = sa.select(models.Host).where(*_LIVE)
_VERSIONS = sa.select(models.Host.id, models.Host.generation,
                      models.Host.changed_at).order_by(models.Host.id)
_CHANGED_SINCE = _VERSIONS.where(
    models.Host.changed_at >= sa.bindparam('since'))
_LIVE_AFTER = _VERSIONS.where(
    models.Host.deleted == 0, models.Host.id > sa.bindparam('after'),
).limit(sa.bindparam('limit', type_=sa.Integer))
_TABLE = models.Base.metadata.tables['hosts']
_CHANGE = sa.update(_TABLE).where(
    _TABLE.c.id == sa.bindparam('host_id')).values(
        generation=sa.bindparam('generation'),
        changed_at=sa.bindparam('changed_at'))
_WITH_IDS = models.Host.id.in_(sa.bindparam('ids', expanding=True))
_BY_IDS = sa.select(models.Host).where(_WITH_IDS).order_by(models.Host.id)

LOCKS = sa.Table(
    'locks', column.METADATA,
    sa.Column('name', sa.String(32), primary_key=True,
              comment='What the lock is for, such as "variants".'),
    sa.Column('value', sa.BigInteger, nullable=False, default=0,
              comment='Of "variants": number of changes of variants.'))
"""Rows that are locked where no other row orders two writers."""

_LOCK_ROW = (sa.select(LOCKS.c.name)
             .where(LOCKS.c.name == sa.bindparam('of_name'))
             .with_for_update())


def find(session: orm.Session, name: str) -> models.Host | None:
    """Return the live host of a name, not locked."""
    return session.scalar(_FIND, {'name': name})


def get(session: orm.Session, name: str) -> models.Host:
    """Return the live host of a name, not locked.

    :raises NotFound: it never reported, or was deleted
    """
    host = find(session, name)
    if host is None:
        raise exception.NotFound(kind='host', name=name)
    return host


def last_generation(session: orm.Session, name: str, node_uuid: str) -> int:
    """Return the highest generation of deleted hosts of a name or a node.

    The host's resource tracker and the schedulers may still have data of that
    generation, and drop everything with a lower one.
    """
    return session.scalar(
        sa.select(sa.func.max(models.Host.generation)).where(
            models.Host.deleted != 0,
            sa.or_(models.Host.name == name,
                   models.Host.node_uuid == node_uuid))) or 0


def was_draining(session: orm.Session, name: str) -> bool:
    """Return whether a host was being drained when it was deleted."""
    return session.scalar(
        sa.select(models.Host.draining)
        .where(models.Host.name == name, models.Host.deleted != 0)
        .order_by(models.Host.id.desc()).limit(1)) or False


def lock(session: orm.Session, name: str) -> models.Host | None:
    """Return the live host, locked until the transaction ends.

    Must be the transaction's first statement (see db.api).
    """
    found = _lock(session, _LOCK, {'name': name})
    return found[0] if found else None


def lock_ids(session: orm.Session, ids: Sequence[int], *,
             skip_locked: bool = False) -> list[models.Host]:
    """Return hosts by id, locked in the order that all writers keep.

    :param skip_locked: leave out hosts that another transaction has locked
        instead of waiting for them
    """
    return _lock(session, _LOCK_FREE_IDS if skip_locked else _LOCK_IDS,
                 {'ids': list(ids)})


def lock_all(session: orm.Session) -> list[models.Host]:
    """Return all live hosts, locked in the order that all writers keep."""
    return _lock(session, _locking(models.Host.deleted == 0))


_Locking = sa.Select[models.Host, float]


def _locking(*conditions: sa.ColumnElement[bool],
             skip_locked: bool = False) -> _Locking:
    return (sa.select(models.Host, clock.now()).where(*conditions)
            .order_by(models.Host.id).with_for_update(skip_locked=skip_locked)
            .execution_options(populate_existing=True))


_LOCK = _locking(*_LIVE)
_LOCK_IDS = _locking(_WITH_IDS)
_LOCK_FREE_IDS = _locking(_WITH_IDS, skip_locked=True)


def _lock(session: orm.Session, statement: _Locking,
          values: Mapping[str, object] | None = None) -> list[models.Host]:
    """Lock hosts, and note the time of their changes."""
    rows = session.execute(statement, values).all()
    if rows:
        clock.note(session, rows[0][1])
    return [host for host, _ in rows]


def by_node_uuid(session: orm.Session, node_uuid: str) -> models.Host | None:
    """Return the live host of a compute node, not locked."""
    return session.scalar(sa.select(models.Host).where(
        models.Host.node_uuid == node_uuid, models.Host.deleted == 0))


def by_node_uuids(session: orm.Session,
                  uuids: Collection[str]) -> dict[str, models.Host]:
    """Return live hosts by the UUID of their node, not locked."""
    return {host.node_uuid: host for host in session.scalars(
        sa.select(models.Host).where(
            models.Host.deleted == 0, models.Host.node_uuid.in_(uuids)))}


def listed(session: orm.Session, limit: int,
           marker: str | None = None) -> list[models.Host]:
    """Return live hosts by name, not locked.

    :param marker: name of the host before the first one
    """
    query = (sa.select(models.Host).where(models.Host.deleted == 0)
             .order_by(models.Host.name).limit(limit))
    if marker is not None:
        query = query.where(models.Host.name > marker)
    return list(session.scalars(query))


def changed_since(session: orm.Session,
                  at: float) -> list[scheduling.HostVersion]:
    """Return hosts, also deleted ones, that changed at a time or later.

    No row is locked. They are sorted by id.
    """
    return _versions(session, _CHANGED_SINCE, {'since': at})


def live_after(session: orm.Session, host_id: int,
               limit: int) -> list[scheduling.HostVersion]:
    """Return some live hosts with a higher id, sorted by id."""
    return _versions(session, _LIVE_AFTER, {'after': host_id, 'limit': limit})


def _versions(session: orm.Session, statement: sa.Select[int, int, float],
              values: Mapping[str, object]) -> list[scheduling.HostVersion]:
    return [scheduling.HostVersion(*row)
            for row in session.execute(statement, values)]


def by_ids(session: orm.Session, ids: list[int]) -> list[models.Host]:
    """Return hosts, also deleted ones, by id, not locked."""
    return list(session.scalars(_BY_IDS, {'ids': ids}))


def changed(host: models.Host) -> None:
    """Mark the (locked) host as changed, at a time in its transaction."""
    host.generation += 1
    host.changed_at = clock.epoch(_session(host))


def change(host: models.Host) -> None:
    """Store at once that the (locked) host changed, as a claim does.

    A flush of the session, as after ``changed``, takes twice as long.
    """
    session = _session(host)
    # Not an expression, which would need a statement for each host.
    values = {'generation': host.generation + 1,
              'changed_at': clock.epoch(session)}
    session.execute(_CHANGE, {'host_id': host.id, **values})
    for name, value in values.items():
        orm.attributes.set_committed_value(host, name, value)


def _session(host: models.Host) -> orm.Session:
    session = orm.object_session(host)
    assert session is not None
    return session


def lock_row(session: orm.Session, name: str) -> None:
    """Lock one row of ``locks`` until the transaction ends."""
    session.execute(_LOCK_ROW, {'of_name': name}).one()


def silence(host: models.Host) -> float:
    """Return the seconds since a host called."""
    return clock.epoch(_session(host)) - host.heard_at


def hear(host: models.Host) -> None:
    """Note that the (locked) host calls."""
    host.heard_at = clock.epoch(_session(host))


def heard(session: orm.Session, host_id: int) -> None:
    """Record that a host calls, unless somebody has locked the host.

    This never waits. A host that makes no other call calls again before it
    counts as silent.
    """
    free = session.scalar(
        sa.select(models.Host.id).where(models.Host.id == host_id)
        .with_for_update(skip_locked=True))
    if free is not None:
        session.execute(
            sa.update(models.Host).where(models.Host.id == free)
            .values(heard_at=clock.now())
            .execution_options(synchronize_session=False))


def count(session: orm.Session) -> int:
    """Return the number of live hosts."""
    return session.scalars(
        sa.select(sa.func.count()).select_from(models.Host)
        .where(models.Host.deleted == 0)).one()


class ClosedHost(typing.NamedTuple):
    """Host that gets no instance with GPUs, and the time of its last call."""

    state: host_state.HostState
    heard_at: float


def closed(session: orm.Session, since: float) -> dict[str, ClosedHost]:
    """Return the live hosts that get no instance with GPUs, by name.

    They are silent, restored, disabled or draining.

    :param since: a host that has not called since then is silent
    """
    host, states = models.Host, host_state.HostState
    found = session.execute(
        sa.select(host.name, host.heard_at, host.restored,
                  host.service_disabled)
        .where(host.deleted == 0, sa.or_(
            host.heard_at < since, host.restored, host.service_disabled,
            host.draining))
        .order_by(host.name))
    return {
        name: ClosedHost(
            states.SILENT if at < since else states.RESTORED if restored
            else states.DISABLED if disabled else states.DRAINING, at)
        for name, at, restored, disabled in found}


def of_other_versions(session: orm.Session, version: str,
                      since: float) -> list[tuple[str, str]]:
    """Return name and version of live hosts with another version.

    :param since: only hosts that called since then
    """
    return list(session.execute(
        sa.select(models.Host.name, models.Host.plugin_version)
        .where(models.Host.deleted == 0, models.Host.heard_at >= since,
               models.Host.plugin_version != version)
        .order_by(models.Host.name)).tuples())


def names(session: orm.Session) -> list[str]:
    """Return the names of all live hosts."""
    return list(session.scalars(
        sa.select(models.Host.name).where(models.Host.deleted == 0)
        .order_by(models.Host.name)))
