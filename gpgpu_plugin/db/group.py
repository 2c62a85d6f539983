# SPDX-License-Identifier: Apache-2.0
"""Rows of groups and of their vGPU types."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import cleaning as cleaning_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import variant as variant_rules


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupRows:
    """Rows of one group; domain.group.GroupCapacity describes their meaning.

    :ivar id: of the group; negative: it is not stored yet
    :ivar draining: no instance gets a device of the group's host; False in
        groups with their types only
    :ivar own_policy: the allocation policy is not its variant's
    :ivar own_links: its own table of link partitions; None: its variant's
    :ivar variant_version: number of the last change of the variant
    :ivar is_deleting: the variant is being deleted
    :ivar types: by id
    :ivar devices: those of the group
    :ivar foreign_vgpus: VFs of its GPUs that are not in the group and may have
        a vGPU
    :ivar assignments: active ones, in the order of their claims
    """

    id: int
    provider_uuid: str
    allocation_policy: str
    own_policy: bool
    own_links: str | None
    variant_id: int
    variant: variant_rules.Variant
    variant_version: int
    is_deleting: bool
    types: Sequence[VGPUTypeRow]
    draining: bool = False
    devices: Sequence[device_db.DeviceRow] = ()
    foreign_vgpus: Sequence[device_db.DeviceRow] = ()
    assignments: Sequence[assignment_db.AssignmentRow] = ()

    @property
    def offers_whole(self) -> bool:
        """Return whether guests can get whole GPUs."""
        return any(row.vgpu_type == naming.PASSTHROUGH and row.enabled
                   for row in self.types)


_TYPES = tables.TYPES
_GROUPS = tables.GROUPS
_VARIANTS = tables.VARIANTS


def with_link_tables(session: orm.Session,
                     group_ids: Collection[int]) -> frozenset[int]:
    """Return those of some groups whose link partitions are stated."""
    return frozenset(session.scalars(
        sa.select(_GROUPS.c.id)
        .join(_VARIANTS, _GROUPS.c.variant_id == _VARIANTS.c.id)
        .where(_GROUPS.c.id.in_(group_ids), sa.or_(
            _GROUPS.c.link_partitions.is_not(None),
            _VARIANTS.c.link_partitions.is_not(None)))))


def insert(session: orm.Session, host_id: int,
           group: GroupRows) -> int:
    """Store a new group without its types; return its id."""
    done = session.execute(sa.insert(_GROUPS), {
        'host_id': host_id, 'variant_id': group.variant_id,
        'provider_uuid': group.provider_uuid, **_settings(group)})
    return int(done.inserted_primary_key[0])  # type: ignore[attr-defined]


def update(session: orm.Session, before: GroupRows,
           now: GroupRows) -> None:
    """Store how a group changed, but for its types."""
    if _settings(before) != _settings(now):
        session.execute(sa.update(_GROUPS).where(
            _GROUPS.c.id == now.id).values(_settings(now)))


def _settings(group: GroupRows) -> dict[str, object]:
    return {'allocation_policy': group.allocation_policy,
            'own_policy': group.own_policy,
            'link_partitions': group.own_links}


def delete(session: orm.Session, ids: Collection[int]) -> None:
    """Delete groups without devices, and their types."""
    if ids:
        session.execute(sa.delete(_TYPES).where(
            _TYPES.c.gpu_group_id.in_(ids)))
        session.execute(sa.delete(_GROUPS).where(_GROUPS.c.id.in_(ids)))


def listed(session: orm.Session, limit: int, host: str | None = None,
           variant: str | None = None, marker: str | None = None,
           ) -> list[tuple[str, int, int]]:
    """Return groups of live hosts, sorted by the hosts' names.

    :returns: name and id of the host, and id of the group

    :param host: name of the only host
    :param variant: name of the only variant
    :param marker: ``host:variant`` of the group before the first one
    :raises NotFound: no such marker
    """
    query = _of_live_hosts(
        sa.select(tables.HOSTS.c.name, tables.HOSTS.c.id, tables.GROUPS.c.id),
        host, variant)
    return list(session.execute(_page(
        session, query, limit, _ORDER, marker, _NAMES)).tuples())


def types_listed(session: orm.Session, limit: int, host: str | None = None,
                 variant: str | None = None, marker: str | None = None,
                 vgpu_type: str | None = None, *, only_enabled: bool = False,
                 ) -> list[TypeOfGroup]:
    """Return types of groups of live hosts.

    :param host: name of the only host
    :param variant: name of the only variant
    :param marker: ``host:variant:type`` before the first one
    :param vgpu_type: name of the only type
    :param only_enabled: leave out those that are disabled
    :raises NotFound: no such marker
    """
    query = _of_live_hosts(
        sa.select(tables.HOSTS.c.name, tables.GROUPS.c.id, *variant_db.COLUMNS,
                  *TYPE_COLUMNS), host, variant).join(
            tables.TYPES, tables.TYPES.c.gpu_group_id == tables.GROUPS.c.id)
    if vgpu_type is not None:
        query = query.where(tables.TYPES.c.vgpu_type == vgpu_type)
    query = _page(session, query, limit, (*_ORDER, tables.TYPES.c.id),
                  marker, (*_NAMES, tables.TYPES.c.vgpu_type))
    # Not for the marker, which may have been disabled since.
    if only_enabled:
        query = query.where(tables.TYPES.c.enabled)
    of_type = 2 + len(variant_db.COLUMNS)
    return [TypeOfGroup(row[0], row[1], variant_db.value(*row[2:of_type]),
                        VGPUTypeRow(*row[of_type:]))
            for row in session.execute(query)]


class TypeOfGroup(typing.NamedTuple):
    """A type of a group; ``host`` is the name of the group's host."""

    host: str
    group_id: int
    variant: variant_rules.Variant
    type: VGPUTypeRow


_ORDER = (tables.HOSTS.c.name, tables.GROUPS.c.id)
_NAMES = (tables.HOSTS.c.name, tables.VARIANTS.c.name)
_FORM = ('HOST', 'VARIANT', 'TYPE')
_Select = typing.TypeVar(
    '_Select', bound='sa.Select[*tuple[typing.Any, ...]]')


def _page(session: orm.Session, query: _Select, limit: int,
          order: Sequence[sa.SQLColumnExpression[typing.Any]],
          marker: str | None,
          names: Sequence[sa.SQLColumnExpression[typing.Any]]) -> _Select:
    """Return a query of one page.

    :param marker: values of ``names`` in the row before, with colons between
        them
    :raises NotFound: there is no such row
    """
    if marker is not None:
        values = marker.split(':', len(names) - 1)
        place = None if len(values) < len(names) else session.execute(
            query.with_only_columns(*order).where(*(
                name == value
                for name, value in zip(names, values, strict=True)))).first()
        if place is None:
            form = ':'.join(_FORM[:len(names)])
            raise exception.NotFound(
                kind='marker', name=f'{marker}, of the form {form},')
        query = query.where(tables.page_after(order, place))
    return query.order_by(*order).limit(limit)


def _of_live_hosts(query: _Select, host: str | None,
                   variant: str | None) -> _Select:
    """Return a query of groups with their hosts and variants."""
    query = (query.select_from(tables.GROUPS)
             .join(tables.HOSTS, tables.GROUPS.c.host_id == tables.HOSTS.c.id)
             .join(tables.VARIANTS,
                   tables.GROUPS.c.variant_id == tables.VARIANTS.c.id)
             .where(tables.HOSTS.c.deleted == 0))
    if host is not None:
        query = query.where(tables.HOSTS.c.name == host)
    if variant is not None:
        query = query.where(tables.VARIANTS.c.name == variant)
    return query


def policy(session: orm.Session, group_id: int | None,
           ) -> tuple[str | None, str]:
    """Return the variant of a group, and its cleaning policy.

    A device in no group has no variant, and the default policy.
    """
    row = session.execute(
        sa.select(tables.VARIANTS.c.name, tables.VARIANTS.c.cleaning_policy)
        .join(tables.GROUPS,
              tables.GROUPS.c.variant_id == tables.VARIANTS.c.id)
        .where(tables.GROUPS.c.id == group_id)).tuples().first()
    return row or (None, cleaning_rules.DEFAULT)


# -- Rows of ``vgpu_types``.


@dataclasses.dataclass(frozen=True, slots=True)
class VGPUTypeRow:
    """A row as it was read; tables.TYPES gives its columns' meaning.

    :ivar id: 0: it is not stored yet
    """

    id: int
    vgpu_type: str
    enabled: bool
    listed: bool
    max_vgpu_per_pgpu: int = 1
    max_capacity: int = 0
    remaining_capacity: int = 0
    video_ram: int | None = None
    max_heads: int | None = None
    max_resolution_x: int | None = None
    max_resolution_y: int | None = None


TYPE_COLUMNS = tuple(_TYPES.c[field.name]
                     for field in dataclasses.fields(VGPUTypeRow))
"""Columns of a VGPUTypeRow, in its order."""

_COLUMNS_BUT_ID = tuple(
    field.name for field in dataclasses.fields(VGPUTypeRow)
    if field.name != 'id')
_STORE = (sa.update(_TYPES).where(_TYPES.c.id == sa.bindparam('of_id'))
          .values({name: sa.bindparam(name) for name in _COLUMNS_BUT_ID}))


def store_types(session: orm.Session, groups: Mapping[int, tuple[
        Sequence[VGPUTypeRow], Sequence[VGPUTypeRow]]]) -> None:
    """Store how the types of groups changed.

    :param groups: types before and after that, by the group's id
    """
    gone: list[int] = []
    new: list[dict[str, object]] = []
    changed: list[dict[str, object]] = []
    for group_id, (before, after) in groups.items():
        if before is after:
            continue
        known = {row.id: row for row in before}
        gone += known.keys() - {row.id for row in after}
        new += [{'gpu_group_id': group_id, **_values(row)}
                for row in after if row.id == 0]
        changed += [{'of_id': row.id, **_values(row)} for row in after
                    if row.id != 0 and row != known[row.id]]
    if gone:
        session.execute(sa.delete(_TYPES).where(_TYPES.c.id.in_(gone)))
    if changed:
        session.execute(_STORE, changed)
    if new:
        session.execute(sa.insert(_TYPES), new)


def _values(row: VGPUTypeRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in _COLUMNS_BUT_ID}


def types_by_variant(session: orm.Session, *,
                     only_listed: bool = False) -> list[tuple[str, str]]:
    """Return the types of all groups.

    :param only_listed: only those whose resource class Placement may know
    :returns: name of the variant and of the type, each pair once
    """
    return [(variant, vgpu_type) for variant, vgpu_type in session.execute(
        sa.select(tables.VARIANTS.c.name, tables.TYPES.c.vgpu_type)
        .join(tables.GROUPS,
              tables.GROUPS.c.variant_id == tables.VARIANTS.c.id)
        .join(tables.TYPES,
              tables.TYPES.c.gpu_group_id == tables.GROUPS.c.id)
        .where(tables.TYPES.c.listed if only_listed else sa.true())
        .distinct())]


def remaining_types(session: orm.Session, variants: Collection[str],
                    closed: Collection[str]) -> dict[tuple[str, str], int]:
    """Return how many units of enabled types can be claimed on live hosts.

    :param closed: names of hosts that do not count
    :returns: by the variant and the type
    """
    return {(variant, vgpu_type): int(count) for variant, vgpu_type, count
            in session.execute(
        sa.select(tables.VARIANTS.c.name, tables.TYPES.c.vgpu_type,
                  sa.func.sum(tables.TYPES.c.remaining_capacity))
        .join(tables.GROUPS,
              tables.GROUPS.c.variant_id == tables.VARIANTS.c.id)
        .join(tables.HOSTS, tables.HOSTS.c.id == tables.GROUPS.c.host_id)
        .join(tables.TYPES,
              tables.TYPES.c.gpu_group_id == tables.GROUPS.c.id)
        .where(tables.HOSTS.c.deleted == 0,
               tables.VARIANTS.c.name.in_(variants),
               tables.TYPES.c.enabled, tables.HOSTS.c.name.not_in(closed))
        .group_by(tables.VARIANTS.c.name, tables.TYPES.c.vgpu_type))}


def types_of_variant(session: orm.Session, variant_id: int,
                     host: str | None = None) -> list[str]:
    """Return the names of the types that GPUs of a variant have.

    :param host: name of the only live host
    """
    query = (sa.select(tables.TYPES.c.vgpu_type).distinct()
             .join(tables.GROUPS,
                   tables.TYPES.c.gpu_group_id == tables.GROUPS.c.id)
             .where(tables.GROUPS.c.variant_id == variant_id))
    if host is not None:
        query = query.join(
            tables.HOSTS, tables.GROUPS.c.host_id == tables.HOSTS.c.id).where(
                tables.HOSTS.c.name == host, tables.HOSTS.c.deleted == 0)
    # Not by the database, which may order by a language.
    return sorted(session.scalars(query))


# -- Hosts with groups of GPUs.


_HOSTS = tables.HOSTS
_LOAD = (
    sa.select(_HOSTS.c.name, _HOSTS.c.node_uuid).distinct()
    .select_from(
        _HOSTS.join(tables.GROUPS, tables.GROUPS.c.host_id == _HOSTS.c.id)
        .join(tables.TYPES, tables.TYPES.c.gpu_group_id == tables.GROUPS.c.id))
    .where(_HOSTS.c.deleted == 0, tables.TYPES.c.max_capacity > 0)
    .order_by(_HOSTS.c.name))


class GPUHost(typing.NamedTuple):
    """Host with groups of GPUs."""

    name: str
    node_uuid: str


def load_gpu_hosts(session: orm.Session) -> list[GPUHost]:
    """Return the live hosts with groups that have GPUs, by name."""
    return [GPUHost(*row) for row in session.execute(_LOAD)]
