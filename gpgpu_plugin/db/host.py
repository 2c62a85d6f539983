# SPDX-License-Identifier: Apache-2.0
"""Rows of ``hosts``, their lock and their last report."""

from __future__ import annotations

import dataclasses
import datetime
import typing
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.objects import scheduling

TABLE = tables.HOSTS


@dataclasses.dataclass(frozen=True, slots=True)
class HostRow:
    """A row as it was read; tables.HOSTS gives its columns' meaning."""

    id: int
    name: str
    node: str
    node_uuid: str
    generation: int
    changed_at: float
    deleted: int
    problems: str
    reported_at: datetime.datetime | None
    session: int
    session_began_at: datetime.datetime
    variants_version: int
    plugin_version: str
    start_uuid: str | None
    key_number: int | None
    machine: str
    heard_at: float
    takeover: bool
    report_number: int
    comparison_number: int
    report_digest: str | None
    report_generation: int


_NAMES = tuple(field.name for field in dataclasses.fields(HostRow))
# Made once: SQLAlchemy takes longer to make them than to run them.
_HOSTS = sa.select(*(TABLE.c[name] for name in _NAMES))
_IS_LIVE = TABLE.c.deleted == 0
_OF_NAME = (TABLE.c.name == sa.bindparam('of_name'), _IS_LIVE)
_FIND = _HOSTS.where(*_OF_NAME)
_VERSIONS = sa.select(TABLE.c.id, TABLE.c.generation,
                      TABLE.c.changed_at).order_by(TABLE.c.id)
_CHANGED_SINCE = _VERSIONS.where(TABLE.c.changed_at >= sa.bindparam('since'))
_LIVE_AFTER = _VERSIONS.where(
    _IS_LIVE, TABLE.c.id > sa.bindparam('after'),
).limit(sa.bindparam('limit', type_=sa.Integer))
_WITH_IDS = TABLE.c.id.in_(sa.bindparam('ids', expanding=True))
_BY_IDS = _HOSTS.where(_WITH_IDS).order_by(TABLE.c.id)

LOCKS = sa.Table(
    'locks', tables.METADATA,
    sa.Column('name', sa.String(32), primary_key=True,
              comment='What the lock is for, such as "variants".'),
    sa.Column('value', sa.BigInteger, nullable=False, default=0,
              comment='Of "variants": number of changes of variants.'))
"""Rows that are locked where no other row orders two writers."""

_LOCK_ROW = (sa.select(LOCKS.c.name)
             .where(LOCKS.c.name == sa.bindparam('of_name'))
             .with_for_update())


def _read(session: orm.Session, statement: sa.Select[*tuple[typing.Any, ...]],
          values: Mapping[str, object] | None = None) -> list[HostRow]:
    return [HostRow(*row) for row in session.execute(statement, values)]


def find(session: orm.Session, name: str) -> HostRow | None:
    """Return the live host of a name, not locked."""
    return next(iter(_read(session, _FIND, {'of_name': name})), None)


def get(session: orm.Session, name: str) -> HostRow:
    """Return the live host of a name, not locked.

    :raises NotFound: it never reported, or was deleted
    """
    return _known(find(session, name), name)


def _known(host: HostRow | None, name: str) -> HostRow:
    if host is None:
        raise exception.NotFound(kind='host', name=name)
    return host


def last_generation(session: orm.Session, name: str, node_uuid: str) -> int:
    """Return the highest generation of deleted hosts of a name or a node.

    The host's resource tracker and the schedulers may still have data of that
    generation, and drop everything with a lower one.
    """
    return session.scalar(
        sa.select(sa.func.max(TABLE.c.generation)).where(
            TABLE.c.deleted != 0,
            sa.or_(TABLE.c.name == name,
                   TABLE.c.node_uuid == node_uuid))) or 0


def last_deleted(session: orm.Session, name: str) -> int | None:
    """Return the id of the last deleted host of a name."""
    return session.scalar(
        sa.select(TABLE.c.id)
        .where(TABLE.c.name == name, TABLE.c.deleted != 0)
        .order_by(TABLE.c.id.desc()).limit(1))


def lock(session: orm.Session, name: str) -> HostRow | None:
    """Return the live host, locked until the transaction ends.

    Must be the transaction's first statement (see db.api).
    """
    found = _lock(session, _LOCK, {'of_name': name})
    return found[0] if found else None


def lock_known(session: orm.Session, name: str) -> HostRow:
    """Return the live host, locked until the transaction ends.

    :raises NotFound: it never reported, or was deleted
    """
    return _known(lock(session, name), name)


def lock_ids(session: orm.Session, ids: Sequence[int], *,
             skip_locked: bool = False) -> list[HostRow]:
    """Return hosts by id, locked in the order that all writers keep.

    :param skip_locked: leave out hosts that another transaction has locked
        instead of waiting for them
    """
    return _lock(session, _LOCK_FREE_IDS if skip_locked else _LOCK_IDS,
                 {'ids': list(ids)})


def lock_all(session: orm.Session) -> list[HostRow]:
    """Return all live hosts, locked in the order that all writers keep."""
    return _lock(session, _locking(_IS_LIVE))


_Select = sa.Select[*tuple[typing.Any, ...]]


def _locking(*conditions: sa.ColumnElement[bool],
             skip_locked: bool = False) -> _Select:
    return (_HOSTS.add_columns(clock.now()).where(*conditions)
            .order_by(TABLE.c.id).with_for_update(skip_locked=skip_locked))


_LOCK = _locking(*_OF_NAME)
_LOCK_IDS = _locking(_WITH_IDS)
_LOCK_FREE_IDS = _locking(_WITH_IDS, skip_locked=True)


def _lock(session: orm.Session, statement: _Select,
          values: Mapping[str, object] | None = None) -> list[HostRow]:
    """Lock hosts, and note the time of their changes."""
    rows = session.execute(statement, values).all()
    if rows:
        clock.note(session, rows[0][-1])
    return [HostRow(*row[:-1]) for row in rows]


def insert(session: orm.Session, host: HostRow) -> HostRow:
    """Store a new host, whose id is not known yet; return the stored one."""
    values = dataclasses.asdict(host)
    del values['id']
    done = session.execute(sa.insert(TABLE), values)
    return dataclasses.replace(
        host, id=done.inserted_primary_key[0])  # type: ignore[attr-defined]


def store(session: orm.Session, before: HostRow, after: HostRow) -> None:
    """Store how a (locked) host changed."""
    changed = {name: now for name in _NAMES
               if (now := getattr(after, name)) != getattr(before, name)}
    if changed:
        session.execute(sa.update(TABLE).where(
            TABLE.c.id == after.id).values(changed))


def by_node_uuids(session: orm.Session,
                  uuids: Collection[str]) -> dict[str, HostRow]:
    """Return live hosts by the UUID of their node, not locked."""
    return {host.node_uuid: host for host in _read(session, _HOSTS.where(
        _IS_LIVE, TABLE.c.node_uuid.in_(uuids)))}


def listed(session: orm.Session, limit: int,
           marker: str | None = None) -> list[HostRow]:
    """Return live hosts by name, not locked.

    :param marker: name of the host before the first one
    """
    query = _HOSTS.where(_IS_LIVE).order_by(TABLE.c.name).limit(limit)
    if marker is not None:
        query = query.where(TABLE.c.name > marker)
    return _read(session, query)


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


def by_ids(session: orm.Session, ids: Iterable[int]) -> list[HostRow]:
    """Return hosts, also deleted ones, by id, not locked."""
    return _read(session, _BY_IDS, {'ids': list(ids)})


def changed(session: orm.Session, host: HostRow) -> HostRow:
    """Return a host that changes at the time of the transaction."""
    return dataclasses.replace(host, generation=host.generation + 1,
                               changed_at=clock.epoch(session))


def lock_row(session: orm.Session, name: str) -> None:
    """Lock one row of ``locks`` until the transaction ends."""
    session.execute(_LOCK_ROW, {'of_name': name}).one()


def silence(session: orm.Session, host: HostRow) -> float:
    """Return the seconds since a host called."""
    return clock.epoch(session) - host.heard_at


def hear(session: orm.Session, host: HostRow) -> None:
    """Record that the (locked) host calls."""
    session.execute(sa.update(TABLE).where(TABLE.c.id == host.id).values(
        heard_at=clock.epoch(session)))


def hear_if_free(session: orm.Session, host_id: int) -> None:
    """Record that a host calls, unless somebody has locked the host.

    This never waits. A host that makes no other call calls again before it
    counts as silent.
    """
    free = session.scalar(
        sa.select(TABLE.c.id).where(TABLE.c.id == host_id)
        .with_for_update(skip_locked=True))
    if free is not None:
        session.execute(sa.update(TABLE).where(TABLE.c.id == free)
                        .values(heard_at=clock.now()))


def count(session: orm.Session) -> int:
    """Return the number of live hosts."""
    return session.scalars(
        sa.select(sa.func.count()).select_from(TABLE).where(_IS_LIVE)).one()


class ClosedHost(typing.NamedTuple):
    """Host that gets no instance with GPUs, and the time of its last call."""

    state: host_rules.HostState
    heard_at: float


def closed(session: orm.Session, since: float) -> dict[str, ClosedHost]:
    """Return the live hosts that get no instance with GPUs, by name.

    They are silent, restored, disabled or draining.

    :param since: a host that has not called since then is silent
    """
    states, kinds = host_rules.HostState, device.HostHoldKind
    restored, disabled, draining = map(hold_db.is_host_held, (
        kinds.RESTORED, kinds.SERVICE_DISABLED, kinds.DRAINING))
    found = session.execute(
        sa.select(TABLE.c.name, TABLE.c.heard_at, restored, disabled)
        .where(_IS_LIVE, sa.or_(
            TABLE.c.heard_at < since, restored, disabled, draining))
        .order_by(TABLE.c.name))
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
        sa.select(TABLE.c.name, TABLE.c.plugin_version)
        .where(TABLE.c.deleted == 0, TABLE.c.heard_at >= since,
               TABLE.c.plugin_version != version)
        .order_by(TABLE.c.name)).tuples())


def names(session: orm.Session) -> list[str]:
    """Return the names of all live hosts."""
    return list(session.scalars(
        sa.select(TABLE.c.name).where(TABLE.c.deleted == 0)
        .order_by(TABLE.c.name)))


# -- The last report of a host, as far as ``hosts`` keeps it.


class LastReport(typing.NamedTuple):
    """A live host with its last report; tables.HOSTS describes the columns.

    :ivar changes: number of changes of variants, read before the host was
        locked
    """

    id: int
    name: str
    session: int
    start_uuid: str | None
    generation: int
    report_number: int
    report_digest: str | None
    report_generation: int
    report_answer: str | None
    changes: int


# Made once: SQLAlchemy takes longer to make them than to run them.
_LAST_REPORT_LOCK = (
    sa.select(
        *(TABLE.c[name] for name in LastReport._fields[:-1]),
        sa.select(LOCKS.c.value)
        .where(LOCKS.c.name == 'variants').scalar_subquery())
    .where(TABLE.c.name == sa.bindparam('host'),
           TABLE.c.deleted == 0)
    .with_for_update())
_REPEAT = (
    sa.update(TABLE).where(TABLE.c.id
                                        == sa.bindparam('host_id'))
    .values(report_number=sa.bindparam('number'),
            heard_at=clock.now()))


def lock_last_report(session: orm.Session, name: str) -> LastReport | None:
    """Return the last report of a live host, which is locked.

    On MariaDB, later reads of the transaction see a snapshot from before it
    waited for the lock. Read only what may be stale: an assignment that is
    missing there (restore_recovery.unknown) merely causes the report to be
    stored.
    """
    row: Sequence[typing.Any] | None = session.connection().execute(
        _LAST_REPORT_LOCK, {'host': name}).first()
    return LastReport(*row) if row is not None else None


def repeat_report(session: orm.Session, last: LastReport, number: int) -> None:
    """Note that the (locked) host reported the same again.

    :param number: of the scan
    """
    session.connection().execute(
        _REPEAT, {'host_id': last.id, 'number': number})


def note_report(session: orm.Session, host_id: int, *, digest: str,
                generation: int, answer: str) -> None:
    """Keep the report of a (locked) host that had no news, and the answer."""
    session.execute(sa.update(TABLE).where(TABLE.c.id
                                                        == host_id).values(
        report_digest=digest, report_generation=generation,
        report_answer=answer))


def report_arrived(session: orm.Session, host_id: int,
                   at: datetime.datetime) -> None:
    """Note when a report of a (locked) host that had news arrived."""
    session.execute(sa.update(TABLE).where(
        TABLE.c.id == host_id).values(reported_at=at))
