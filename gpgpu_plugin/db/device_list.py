# SPDX-License-Identifier: Apache-2.0
"""Devices as operators list them: filtered, in pages, with shown states.

The shown state is domain.device.shown_state as an expression of SQL, so that
the database filters and counts by it. Parts of statements are made once, which
takes longer than to run them.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import page
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import health as health_rules
from gpgpu_plugin.domain import hold

_State = device_rules.DeviceState
# Row, and the names and UUIDs of ListedDevice in its order.
_Select: typing.TypeAlias = (
    'sa.Select[*tuple[typing.Any, ...]]')
_ORDER = (tables.HOSTS.c.name, tables.DEVICES.c.stable_id)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedDevice:
    """A device, with what operators see beside its row.

    :ivar type: of the variant
    :ivar used_by: UUID of the instance that it is assigned to
    :ivar project_id: project of that instance
    :ivar parent: UUID of the parent of a VF or an mdev row
    :ivar own_state: see domain.device
    """

    row: device_db.DeviceRow
    host: str
    variant: str | None
    type: str | None
    used_by: str | None
    project_id: str | None
    parent: str | None
    own_state: str
    shown_state: str


_RANKS = {str(state): rank for rank, state
          in enumerate(device_rules.SHOWN_OF_CHILDREN)}


def own_state(device: sa.FromClause = tables.DEVICES,
              ) -> sa.ColumnElement[str]:
    """Return domain.device.own_state as an expression.

    :param device: ``tables.DEVICES``, or an alias of the table
    """
    return sa.case(
        (device.c.state.in_(sorted(device_rules.ASSIGNED_STATES)),
         device.c.state),
        (hold_db.is_held([hold.HoldKind.RETIRED], device),
         device_rules.RETIRED),
        (hold_db.is_held(hold.QUARANTINE, device), device_rules.QUARANTINED),
        else_=device.c.state)


@functools.cache
def is_retired() -> sa.ColumnElement[bool]:
    """Return the condition that a device is shown as retired."""
    return own_state() == device_rules.RETIRED


@functools.cache
def _rank_of_vgpus() -> sa.ColumnElement[int]:
    """Return the rank of the state of its vGPUs that a device shows first."""
    child = tables.DEVICES.alias()
    return (sa.select(sa.func.min(sa.case(_RANKS, value=own_state(child))))
            .where(child.c.parent_id == tables.DEVICES.c.id,
                   child.c.group_id.is_not(None))
            .correlate(tables.DEVICES).scalar_subquery())


def ranks_of_vgpus() -> sa.Subquery:
    """Return the same rank of all devices that have vGPUs.

    :returns: ``parent_id``, ``rank``
    """
    child = tables.DEVICES.alias()
    rank = sa.func.min(sa.case(_RANKS, value=own_state(child)))
    return (sa.select(child.c.parent_id.label('parent_id'), rank.label('rank'))
            .where(child.c.parent_id.is_not(None),
                   child.c.group_id.is_not(None))
            .group_by(child.c.parent_id).subquery())


@functools.cache
def shown_state() -> sa.ColumnElement[str]:
    """Return the expression of the shown state of ``devices``.

    The vGPUs of each device are looked up, which is fast for a few devices.
    """
    return shown_state_by(_rank_of_vgpus())


def shown_state_by(rank: sa.ColumnElement[int]) -> sa.ColumnElement[str]:
    """Return the same expression for many devices.

    :param rank: of the device, from ``ranks_of_vgpus``
    """
    derived = sa.case(
        {number: state for state, number in _RANKS.items()}, value=rank)
    device, own = tables.DEVICES.c, own_state()
    assigned = [str(state) for state in device_rules.ASSIGNED_STATES]
    available = own == str(_State.AVAILABLE)
    return sa.case(
        (own.in_([*assigned, device_rules.RETIRED]), own),
        (sa.and_(available, sa.or_(
            derived.in_(assigned),
            sa.and_(derived.is_not(None), device.group_id.is_not(None),
                    device.present))), derived),
        (device.group_id.is_(None), device_rules.UNMANAGED),
        (~device.present, device_rules.MISSING),
        (sa.and_(available, hold_db.is_held([hold.HoldKind.DISABLED])),
         device_rules.DISABLED),
        (sa.and_(available, device.host_id.in_(
            hold_db.held_hosts(hold.HostHoldKind.RESTORED))),
         device_rules.UNKNOWN),
        else_=own)


@functools.cache
def _may_be_shown(state: str) -> sa.ColumnElement[bool]:
    """Return a condition that every device shown in a state meets.

    It may also match others, and is cheaper than the shown state, which looks
    up the vGPUs of each device.
    """
    child = tables.DEVICES.alias()
    if state in (device_rules.QUARANTINED, device_rules.RETIRED):
        own, of_child = (hold_db.is_held(hold.WITHDRAWING, device)
                         for device in (tables.DEVICES, child))
    elif state in {str(state) for state in _State}:
        own, of_child = tables.DEVICES.c.state == state, child.c.state == state
    else:
        return sa.true()
    return sa.or_(own, tables.DEVICES.c.id.in_(
        sa.select(child.c.parent_id).where(
            of_child, child.c.parent_id.is_not(None))))


@functools.cache
def _is_faulty() -> sa.ColumnElement[bool]:
    """Return the condition of devices that somebody should look at."""
    quarantined = device_rules.QUARANTINED
    return sa.or_(
        tables.DEVICES.c.health.in_(
            [str(found) for found in health_rules.FAULTY]),
        sa.and_(
            sa.or_(~tables.DEVICES.c.present, _may_be_shown(quarantined)),
            shown_state().in_([device_rules.MISSING, quarantined])),
        # An instance has it, and its host does not find it.
        sa.and_(~tables.DEVICES.c.present, tables.DEVICES.c.state.in_(
            [str(state) for state in device_rules.ASSIGNED_STATES])))


def listed(session: orm.Session, *, limit: int, host: str | None = None,
           variant: str | None = None, state: str | None = None,
           used_by: str | None = None, project: str | None = None,
           type: str | None = None, vgpu_type: str | None = None,
           health: str | None = None, faulty: bool = False,
           include_retired: bool = False,
           marker: str | None = None) -> list[ListedDevice]:
    """Return devices, sorted by host and stable id.

    :param host: name of the only host
    :param variant: name of the only variant
    :param state: the only shown state
    :param used_by: UUID of the only instance
    :param project: ID of the only project of instances
    :param type: the only type of variants
    :param vgpu_type: the only type of vGPUs
    :param health: the only health of GPUs
    :param faulty: as for Conductor.device_list
    :param include_retired: as for Conductor.device_list
    :param marker: UUID of the device before the first one
    :raises NotFound: no such marker
    """
    conditions = {
        tables.HOSTS.c.name: host, tables.VARIANTS.c.name: variant,
        tables.VARIANTS.c.type: type,
        tables.ASSIGNMENTS.c.instance_uuid: used_by,
        tables.ASSIGNMENTS.c.project_id: project,
        tables.DEVICES.c.vgpu_type: vgpu_type, tables.DEVICES.c.health: health}
    query = _query().order_by(*_ORDER).limit(limit).where(
        *(column == value for column, value in conditions.items()
          if value is not None))
    if not include_retired and state != device_rules.RETIRED:
        query = query.where(~is_retired())
    if state is not None:
        query = query.where(shown_state() == state, _may_be_shown(state))
    if faulty:
        query = query.where(_is_faulty())
    if marker is not None:
        query = query.where(page.after(_ORDER, _place(session, marker)))
    return _listed(session, query)


def get(session: orm.Session, uuid: str) -> ListedDevice:
    """Return one device.

    :raises NotFound: no such UUID
    """
    found = _listed(session, _query().where(tables.DEVICES.c.uuid == uuid))
    if not found:
        raise exception.NotFound(kind='device', name=uuid)
    return found[0]


@functools.cache
def _query() -> _Select:
    parent = tables.DEVICES.alias()
    return (
        sa.select(tables.HOSTS.c.name, tables.VARIANTS.c.name,
                  tables.VARIANTS.c.type, tables.ASSIGNMENTS.c.instance_uuid,
                  tables.ASSIGNMENTS.c.project_id, parent.c.uuid, own_state(),
                  shown_state(), *device_db.COLUMNS)
        .select_from(tables.DEVICES)
        .join(tables.HOSTS, tables.DEVICES.c.host_id == tables.HOSTS.c.id)
        .outerjoin(tables.GROUPS,
                   tables.DEVICES.c.group_id == tables.GROUPS.c.id)
        .outerjoin(tables.VARIANTS,
                   tables.GROUPS.c.variant_id == tables.VARIANTS.c.id)
        .outerjoin(tables.ASSIGNMENTS, sa.and_(
            tables.ASSIGNMENTS.c.device_id == tables.DEVICES.c.id,
            tables.ASSIGNMENTS.c.active == 1))
        .outerjoin(parent, tables.DEVICES.c.parent_id == parent.c.id))


def _listed(session: orm.Session, query: _Select) -> list[ListedDevice]:
    return [
        ListedDevice(row=device_db.DeviceRow(*row), host=host,
                     variant=variant, type=type, used_by=used_by,
                     project_id=project, parent=parent, own_state=own,
                     shown_state=shown)
        for host, variant, type, used_by, project, parent, own, shown, *row
        in session.execute(query)]


def _place(session: orm.Session, marker: str) -> tuple[str, str]:
    found = session.execute(
        sa.select(*_ORDER).join(
            tables.HOSTS, tables.DEVICES.c.host_id == tables.HOSTS.c.id)
        .where(tables.DEVICES.c.uuid == marker)).tuples().first()
    if found is None:
        raise exception.NotFound(kind='device', name=marker)
    return found


class NewDevices(typing.NamedTuple):
    """Numbers of devices of a variant on a host, some of which are new.

    See domain.first_cleaning; GPUs and VFs that need not be cleaned for being
    new are left out.
    """

    host_id: int
    variant_id: int
    devices: int
    cleaned: int
    waiting: int
    cleaning: int
    stuck: int


def count_new(session: orm.Session,
              host_ids: Collection[int]) -> list[NewDevices]:
    """Return the variants on hosts of which a new device is not clean yet."""
    device = tables.DEVICES.c
    is_new = sa.and_(
        device.cleaned_steps.is_(None),
        device.state.in_(sorted(device_rules.UNCLEAN_STATES)),
        ~hold_db.is_held(hold.WITHDRAWING))
    is_stuck = sa.and_(is_new, device.state == str(_State.DIRTY),
                       device.clean_attempt == device.clean_token)

    def count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        return sa.func.count(sa.case((condition, 1)))
    return [NewDevices(*row) for row in session.execute(
        sa.select(
            device.host_id, tables.GROUPS.c.variant_id, sa.func.count(),
            count(device.cleaned_steps != device_db.NOTHING_PASSED),
            count(is_new) - count(is_stuck),
            count(sa.and_(is_new, device.state == str(_State.CLEANING))),
            count(is_stuck))
        .join(tables.GROUPS, tables.GROUPS.c.id == device.group_id)
        .where(device.host_id.in_(host_ids), device.present,
               device.kind == str(device_rules.DeviceKind.PCI),
               sa.or_(device.cleaned_steps.is_not(None), is_new))
        .group_by(device.host_id, tables.GROUPS.c.variant_id)
        .having(count(is_new) > 0)).tuples()]


def cleaned_of_variant(session: orm.Session, variant_id: int,
                       limit: int) -> list[str]:
    """Return the UUIDs of some clean devices of a variant."""
    return list(session.scalars(
        sa.select(tables.DEVICES.c.uuid)
        .join(tables.GROUPS, tables.GROUPS.c.id == tables.DEVICES.c.group_id)
        .where(tables.GROUPS.c.variant_id == variant_id,
               tables.DEVICES.c.cleaned_steps != device_db.NOTHING_PASSED)
        .order_by(tables.DEVICES.c.id.desc()).limit(limit)))


def count_by_state(session: orm.Session, host_ids: Collection[int],
                   ) -> dict[int, dict[str, int]]:
    """Return the numbers of devices of hosts by shown state.

    Neither mdev rows nor retired devices count.

    :returns: by the host's id; hosts without a device are left out
    """
    shown = shown_state().label('shown')
    states = (sa.select(tables.DEVICES.c.host_id, shown)
              .where(tables.DEVICES.c.host_id.in_(host_ids),
                     tables.DEVICES.c.kind == str(device_rules.DeviceKind.PCI),
                     ~is_retired())
              .subquery())
    found: dict[int, dict[str, int]] = {}
    for host_id, state, count in session.execute(
            sa.select(states.c.host_id, states.c.shown, sa.func.count())
            .group_by(states.c.host_id, states.c.shown)
            .order_by(states.c.shown)):
        found.setdefault(host_id, {})[state] = count
    return found
