# SPDX-License-Identifier: Apache-2.0
"""Rows of ``host_gpu_groups``, with all rows that belong to a group."""

from __future__ import annotations

import collections
import dataclasses
import typing
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import page
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.db import vgpu_type as vgpu_type_db
from gpgpu_plugin.domain import cleaning as cleaning_rules
from gpgpu_plugin.domain import variant as variant_rules


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupRows:
    """Rows of one group; domain.group.GroupCapacity describes their meaning.

    :ivar id: of the group
    :ivar draining: no instance gets a device of the group's host
    :ivar own_policy: the allocation policy is not its variant's
    :ivar own_links: its own table of link partitions; None: its variant's
    :ivar variant_status: whether a change of the variant is being applied
    :ivar types: by id
    :ivar foreign_vgpus: VFs of its GPUs that are not in the group and may have
        a vGPU
    :ivar assignments: active ones, in the order of their claims
    """

    id: int
    draining: bool
    provider_uuid: str
    allocation_policy: str
    own_policy: bool
    own_links: str | None
    variant: variant_rules.Variant
    variant_status: variant_rules.Status
    types: Sequence[vgpu_type_db.VGPUTypeRow]
    devices: Sequence[device_db.DeviceRow] = ()
    foreign_vgpus: Sequence[device_db.DeviceRow] = ()
    assignments: Sequence[assignment_db.AssignmentRow] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostRows:
    """Rows of the groups of a host, and of all that is assigned there.

    :ivar devices: those in groups, those that may have a vGPU, and those that
        are assigned
    :ivar assignments: active ones, in the order of their claims
    """

    groups: Sequence[GroupRows]
    devices: Sequence[device_db.DeviceRow]
    assignments: Sequence[assignment_db.AssignmentRow]

    def after(self, changed: Iterable[device_db.DeviceRow],
              claimed: Iterable[assignment_db.AssignmentRow] = (),
              ended: Collection[str] = ()) -> HostRows:
        """Return the rows after a change, without reading them again.

        :param changed: devices that changed or are new
        :param claimed: new assignments
        :param ended: UUIDs of assignments
        """
        devices = {device.id: device for device in self.devices}
        devices |= {device.id: device for device in changed}
        return _filled(self.groups, list(devices.values()), [
            dataclasses.replace(
                assignment, device=devices[assignment.device.id])
            for assignment in (*self.assignments, *claimed)
            if assignment.uuid not in ended])


_HOSTS = models.Base.metadata.tables['hosts']
_GROUPS = models.Base.metadata.tables['host_gpu_groups']
_VARIANTS = models.Base.metadata.tables['variants']
_TYPES = models.Base.metadata.tables['vgpu_types']
_OF_HOSTS = (
    sa.select(_GROUPS.c.host_id, _GROUPS.c.id, _HOSTS.c.draining,
              _GROUPS.c.provider_uuid, _GROUPS.c.allocation_policy,
              _GROUPS.c.own_policy, _GROUPS.c.link_partitions,
              _VARIANTS.c.status,
              *variant_db.COLUMNS,
              *vgpu_type_db.COLUMNS)
    .select_from(_GROUPS.join(_HOSTS, _GROUPS.c.host_id == _HOSTS.c.id)
                 .join(_VARIANTS, _GROUPS.c.variant_id == _VARIANTS.c.id)
                 .outerjoin(_TYPES, _TYPES.c.gpu_group_id == _GROUPS.c.id))
    .where(_GROUPS.c.host_id.in_(sa.bindparam('host_ids', expanding=True)))
    .order_by(_GROUPS.c.id, _TYPES.c.id))
_WITH_TYPES = (
    sa.select(models.Group)
    .where(models.Group.host_id.in_(sa.bindparam('of_hosts', expanding=True)))
    .options(orm.joinedload(models.Group.types))
    .order_by(models.Group.id))
_OF_VARIANT = 8
_OF_TYPE = _OF_VARIANT + len(variant_db.COLUMNS)


def with_link_tables(session: orm.Session,
                     group_ids: Collection[int]) -> frozenset[int]:
    """Return those of some groups whose link partitions are stated."""
    return frozenset(session.scalars(
        sa.select(_GROUPS.c.id)
        .join(_VARIANTS, _GROUPS.c.variant_id == _VARIANTS.c.id)
        .where(_GROUPS.c.id.in_(group_ids), sa.or_(
            _GROUPS.c.link_partitions.is_not(None),
            _VARIANTS.c.link_partitions.is_not(None)))))


def of_hosts(session: orm.Session,
             host_ids: Collection[int]) -> list[models.Group]:
    """Return the groups of hosts with their types, by id."""
    return list(session.scalars(
        _WITH_TYPES, {'of_hosts': list(host_ids)}).unique())


def of_variant(session: orm.Session, host_id: int,
               variant: str) -> models.Group | None:
    """Return the group of a variant on a host."""
    return next((group for group in of_hosts(session, [host_id])
                 if group.variant.name == variant), None)


def host_ids_of_variant(session: orm.Session, variant_id: int, after: int,
                        limit: int | None = None) -> list[int]:
    """Return which hosts have a group of a variant, by host id.

    :param after: only hosts with a greater id
    """
    return list(session.scalars(
        sa.select(models.Group.host_id)
        .where(models.Group.variant_id == variant_id,
               models.Group.host_id > after)
        .order_by(models.Group.host_id).limit(limit)))


def listed(session: orm.Session, limit: int, host: str | None = None,
           variant: str | None = None, marker: str | None = None,
           ) -> list[tuple[models.Host, models.Group]]:
    """Return groups of live hosts, sorted by the hosts' names.

    :param host: name of the only host
    :param variant: name of the only variant
    :param marker: ``host:variant`` of the group before the first one
    :raises NotFound: no such marker
    """
    query = _of_live_hosts(
        sa.select(models.Host, models.Group), host, variant)
    return list(session.execute(_page(
        session, query, limit, _ORDER, marker, _NAMES)).tuples())


def types_listed(session: orm.Session, limit: int, host: str | None = None,
                 variant: str | None = None, marker: str | None = None,
                 vgpu_type: str | None = None, *, only_enabled: bool = False,
                 ) -> list[tuple[str, models.Group, models.VGPUType]]:
    """Return types of groups of live hosts, with the hosts' names.

    :param host: name of the only host
    :param variant: name of the only variant
    :param marker: ``host:variant:type`` before the first one
    :param vgpu_type: name of the only type
    :param only_enabled: leave out those that are disabled
    :raises NotFound: no such marker
    """
    query = _of_live_hosts(
        sa.select(models.Host.name, models.Group, models.VGPUType),
        host, variant).join(
            models.VGPUType, models.VGPUType.gpu_group_id == models.Group.id)
    if vgpu_type is not None:
        query = query.where(models.VGPUType.vgpu_type == vgpu_type)
    query = _page(session, query, limit, (*_ORDER, models.VGPUType.id),
                  marker, (*_NAMES, models.VGPUType.vgpu_type))
    # Not for the marker, which may have been disabled since.
    if only_enabled:
        query = query.where(models.VGPUType.enabled)
    return list(session.execute(query).tuples())


_ORDER = (models.Host.name, models.Group.id)
_NAMES = (models.Host.name, models.Variant.name)
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
        query = query.where(page.after(order, place))
    return query.order_by(*order).limit(limit)


def _of_live_hosts(query: _Select, host: str | None,
                   variant: str | None) -> _Select:
    """Return a query of groups with their hosts and variants."""
    query = (query.join(models.Host, models.Group.host_id == models.Host.id)
             .join(models.Variant,
                   models.Group.variant_id == models.Variant.id)
             .options(orm.contains_eager(models.Group.variant))
             .where(models.Host.deleted == 0))
    if host is not None:
        query = query.where(models.Host.name == host)
    if variant is not None:
        query = query.where(models.Variant.name == variant)
    return query


def load(session: orm.Session,
         host_ids: Collection[int]) -> dict[int, HostRows]:
    """Return the groups of hosts with all their rows, in two statements.

    :returns: by the host's id
    """
    groups = _groups(session, host_ids)
    devices: dict[int, list[device_db.DeviceRow]] = (
        collections.defaultdict(list))
    assignments: dict[int, list[assignment_db.AssignmentRow]] = (
        collections.defaultdict(list))
    found, active = assignment_db.with_devices(session, host_ids)
    for device in found:
        devices[device.host_id].append(device)
    for assignment in active:
        assignments[assignment.host_id].append(assignment)
    return {host_id: _filled(groups[host_id], devices[host_id],
                             assignments[host_id]) for host_id in host_ids}


def _groups(session: orm.Session,
            host_ids: Collection[int]) -> dict[int, list[GroupRows]]:
    """Return groups with their types only, by the host's id."""
    rows: dict[int, list[sa.Row[typing.Any]]] = collections.defaultdict(list)
    for row in session.execute(_OF_HOSTS, {'host_ids': list(host_ids)}):
        rows[row[1]].append(row)
    groups: dict[int, list[GroupRows]] = collections.defaultdict(list)
    for of_group in rows.values():
        (host_id, group_id, draining, provider_uuid, policy, own, own_links,
         status) = of_group[0][:_OF_VARIANT]
        groups[host_id].append(GroupRows(
            id=group_id, draining=draining, provider_uuid=provider_uuid,
            allocation_policy=policy, own_policy=own, own_links=own_links,
            variant_status=variant_rules.Status(status),
            variant=variant_db.value(*of_group[0][_OF_VARIANT:_OF_TYPE]),
            types=[vgpu_type_db.VGPUTypeRow(*row[_OF_TYPE:])
                   for row in of_group if row[_OF_TYPE] is not None]))
    return groups


def _filled(groups: Iterable[GroupRows],
            devices: Sequence[device_db.DeviceRow],
            assignments: Sequence[assignment_db.AssignmentRow]) -> HostRows:
    """Return the rows of a host, each with its group."""
    of_group, foreign = _by_group(devices)
    assigned: dict[int | None, list[assignment_db.AssignmentRow]] = (
        collections.defaultdict(list))
    for assignment in assignments:
        assigned[assignment.device.group_id].append(assignment)
    return HostRows(devices=devices, assignments=assignments, groups=[
        dataclasses.replace(
            group, devices=of_group.get(group.id, ()),
            foreign_vgpus=foreign.get(group.id, ()),
            assignments=assigned.get(group.id, ()))
        for group in groups])


def _by_group(devices: Collection[device_db.DeviceRow]) -> tuple[
        dict[int, list[device_db.DeviceRow]],
        dict[int, list[device_db.DeviceRow]]]:
    """Return the devices of groups, and the foreign vGPUs of their GPUs."""
    group_ids = {device.id: device.group_id for device in devices}
    of_group: dict[int, list[device_db.DeviceRow]] = (
        collections.defaultdict(list))
    foreign: dict[int, list[device_db.DeviceRow]] = (
        collections.defaultdict(list))
    for device in devices:
        if device.group_id is not None:
            of_group[device.group_id].append(device)
        of_gpu = group_ids.get(device.parent_id or 0)
        if (of_gpu not in (None, device.group_id)
                and device.vgpu_type is not None):
            foreign[of_gpu].append(device)
    return of_group, foreign


def policy(session: orm.Session, group_id: int | None,
           ) -> tuple[str | None, str, int | None]:
    """Return the variant of a group, its cleaning policy and MiB of memory.

    A device in no group has no variant, and the default policy.
    """
    row = session.execute(
        sa.select(models.Variant.name, models.Variant.cleaning_policy,
                  models.Variant.memory_mib)
        .join(models.Group, models.Group.variant_id == models.Variant.id)
        .where(models.Group.id == group_id)).tuples().first()
    return row or (None, cleaning_rules.DEFAULT, None)
