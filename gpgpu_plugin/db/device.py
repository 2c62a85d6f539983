# SPDX-License-Identifier: Apache-2.0
"""Rows of ``devices``, and their lists."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import health as health_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import codec

T = typing.TypeVar('T')

TABLE = tables.DEVICES

_PARSED = 10000
"""Number of texts of one JSON column whose values are kept in memory.

Both take about 4 kB. The values are immutable.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRow:
    """A row as it was read; tables.DEVICES gives the meaning of its columns.

    The defaults are those of a device that nobody knew before.

    :ivar id: negative: it is not stored yet (db.host_rows)
    :ivar holds: kinds of its holds, and of those of its GPU
    """

    id: int
    uuid: str
    host_id: int
    stable_id: str
    address: str
    pci_function: str
    group_id: int | None = None
    parent_id: int | None = None
    kind: str = str(device_rules.DeviceKind.PCI)
    vgpu_type: str | None = None
    placement_id: int | None = None
    state: str = str(device_rules.DeviceState.AVAILABLE)
    present: bool = True
    reason: str | None = None
    clean_token: str | None = None
    clean_attempt: str | None = None
    cleaned_steps: str | None = None
    new_in_place: bool = False
    awaits_replacement: bool = False
    replaced_by: str | None = None
    vendor_id: str = ''
    product_id: str = ''
    vgpu_capability: str | None = None
    driver_capacity: str | None = None
    health: str | None = None
    health_reason: str | None = None
    errors: str | None = None
    generation: int = 0
    holds: hold_db.Kinds = frozenset()


NAMES = tuple(field.name for field in dataclasses.fields(DeviceRow)
               if field.name != 'holds')
COLUMNS = tuple(TABLE.c[name] for name in NAMES)
"""Columns of a DeviceRow, in its order."""

_WRITTEN = tuple(name for name in NAMES
                 if name not in ('id', 'uuid', 'host_id'))
"""Columns that change."""

_SELECT = sa.select(*COLUMNS)
_INSERT = sa.insert(TABLE).returning(TABLE.c.uuid, TABLE.c.id)


def _cached(kind: type[T]) -> Callable[[str], T]:
    """Return a parser of a JSON column that parses each text once."""
    return functools.lru_cache(maxsize=_PARSED)(
        functools.partial(codec.decode, kind))


_pci_function = _cached(pci.PCIFunction)
_vgpu_capability = _cached(vgpu.VGPUCapability)
_driver_capacity = _cached(vgpu.DriverCapacity)


def pci_function(device: DeviceRow) -> pci.PCIFunction:
    """Return the PCI function as the last scan of the device read it."""
    return _pci_function(device.pci_function)


def identity(device: DeviceRow) -> pci.Identity:
    """Return what any scan has found that tells the device from others."""
    return _identity(device.pci_function)


@functools.lru_cache(maxsize=_PARSED)
def _identity(text: str) -> pci.Identity:
    return pci.Identity.of(_pci_function(text))


def vgpu_capability(device: DeviceRow) -> vgpu.VGPUCapability | None:
    """Return the stored vGPU capability of the device."""
    return (None if device.vgpu_capability is None
            else _vgpu_capability(device.vgpu_capability))


def driver_capacity(device: DeviceRow,
                    ) -> vgpu.DriverCapacity | None:
    """Return the driver report on the device that applies now."""
    return (None if device.driver_capacity is None
            else _driver_capacity(device.driver_capacity))


def errors(device: DeviceRow) -> dict[str, int]:
    """Return the errors of the device that its host has counted."""
    return {} if device.errors is None else codec.decode(
        dict[str, int], device.errors)


def dump(value: object) -> str:
    """Return the form in which values are stored and compared."""
    return json.dumps(codec.to_primitive(value), sort_keys=True)


def ids(function: pci.PCIFunction) -> tuple[str, str]:
    """Return the columns by which variants find a function, '' for none."""
    # What is longer is no id, and no variant matches it.
    return (function.vendor or '')[:4], (function.device or '')[:4]


def observed(device: DeviceRow, function: pci.PCIFunction,
             vgpus: vgpu.VGPUCapability | None,
             driver: vgpu.DriverCapacity | None) -> DeviceRow:
    """Return a device with what is known about it after a scan."""
    vendor_id, product_id = ids(function)
    return dataclasses.replace(
        device, pci_function=dump(function),
        vgpu_capability=None if vgpus is None else dump(vgpus),
        driver_capacity=None if driver is None else dump(driver),
        vendor_id=vendor_id, product_id=product_id)


def give_up_places(session: orm.Session, ids: Collection[int]) -> None:
    """Free the places of devices that get other ones, of each other maybe."""
    if ids:
        session.execute(sa.update(TABLE).where(TABLE.c.id.in_(ids)).values(
            stable_id=TABLE.c.uuid))


def host_ids_by_ids(session: orm.Session, vendor_id: str, product_id: str,
                    after: int, limit: int | None) -> list[int]:
    """Return which hosts have a device with these ids, by host id.

    :param after: only hosts with a greater id
    """
    return list(session.scalars(
        sa.select(TABLE.c.host_id).distinct()
        .where(TABLE.c.vendor_id == vendor_id,
               TABLE.c.product_id == product_id,
               TABLE.c.host_id > after)
        .order_by(TABLE.c.host_id).limit(limit)))


def waits_for_policy(device: DeviceRow) -> bool:
    """Return whether a dirty device waits for another cleaning policy.

    Its last attempt is what was asked for: no other one would prove more.
    """
    return (device.state == device_rules.DeviceState.DIRTY
            and device.clean_token is not None
            and device.clean_attempt == device.clean_token)


def waits_for_vfs(device: DeviceRow) -> bool:
    """Return whether a GPU that is not clean waits for its VFs' removal.

    Its host resets no GPU that has VFs.
    """
    return (device.state in device_rules.UNCLEAN_STATES
            and device.parent_id is None and pci_function(device).has_vfs)


NOTHING_PASSED = ''
"""``cleaned_steps`` of a device whose last verdict does not count any more."""


def delete_of_host(session: orm.Session, host_id: int) -> None:
    """Delete the devices of a host, and their holds."""
    hold_db.delete_of_host(session, host_id)
    session.execute(sa.update(TABLE).where(
        TABLE.c.host_id == host_id).values(parent_id=None))
    session.execute(sa.delete(TABLE).where(TABLE.c.host_id == host_id))


def count_by_variant(session: orm.Session) -> dict[int, int]:
    """Return the number of devices in the groups of each variant, by id."""
    return dict(session.execute(
        sa.select(tables.GROUPS.c.variant_id, sa.func.count())
        .join(TABLE, TABLE.c.group_id == tables.GROUPS.c.id)
        .group_by(tables.GROUPS.c.variant_id)).tuples().all())


def at_address(session: orm.Session, host_id: int,
               address: str) -> DeviceRow | None:
    """Return the PCI function at an address of a host, without its holds.

    It is the one that is there now, else the last one that was; a retired one
    is none.
    """
    return next(iter(_rows(session, _SELECT.where(
        TABLE.c.host_id == host_id, TABLE.c.address == address,
        TABLE.c.kind == str(device_rules.DeviceKind.PCI),
        ~hold_db.is_held([device_rules.HoldKind.RETIRED]))
        .order_by(TABLE.c.present.desc(), TABLE.c.id.desc()).limit(1))), None)


def vfs_with_types(session: orm.Session,
                   gpus: Iterable[int]) -> list[DeviceRow]:
    """Return the VFs of GPUs that have a type which nobody is assigned.

    :param gpus: ids
    """
    return _rows(session, _SELECT.where(
        TABLE.c.parent_id.in_(gpus), TABLE.c.present,
        TABLE.c.kind == str(device_rules.DeviceKind.PCI),
        TABLE.c.state == str(device_rules.DeviceState.AVAILABLE),
        TABLE.c.vgpu_type.is_not(None)).order_by(TABLE.c.stable_id))


def of_ids(session: orm.Session,
           ids: Collection[int]) -> dict[int, DeviceRow]:
    """Return devices without their holds, by id."""
    return {device.id: device for device in _rows(
        session, _SELECT.where(TABLE.c.id.in_(ids)))} if ids else {}


def get(session: orm.Session, uuid: str) -> DeviceRow:
    """Return one device without its holds.

    :raises NotFound: no such UUID
    """
    found = _rows(session, _SELECT.where(TABLE.c.uuid == uuid))
    if not found:
        raise exception.NotFound(kind='device', name=uuid)
    return found[0]


def _rows(session: orm.Session,
          query: sa.Select[*tuple[typing.Any, ...]]) -> list[DeviceRow]:
    return [DeviceRow(*row) for row in session.execute(query)]


def host_id(db: api.Database, uuid: str) -> int:
    """Return the id of a device's host, which never changes.

    :raises NotFound: no such device
    """
    with db.reader() as session:
        return get(session, uuid).host_id


def replaced(session: orm.Session, device: DeviceRow) -> DeviceRow | None:
    """Return the device whose place a device took."""
    return next(iter(_rows(session, _SELECT.where(
        TABLE.c.host_id == device.host_id,
        TABLE.c.replaced_by == device.uuid))), None)


_ENDS_VERDICT = frozenset({
    device_rules.DeviceEvent.RELEASE, device_rules.DeviceEvent.ADOPT})
"""Events after which the last cleaning proves nothing any more."""

_KNOWN_IN_PLACE = frozenset({
    device_rules.DeviceEvent.CLAIM, device_rules.DeviceEvent.CLEAN_PASSED})
"""Events before which the host notes how the device is in its place."""


def after(device: DeviceRow, event: device_rules.DeviceEvent,
          host: str = '') -> DeviceRow:
    """Return the device after an event.

    :param host: name of its host, for the error
    :raises InvalidTransition: the state has no such event
    """
    state = device_rules.next_state(
        device_rules.DeviceState(device.state), event,
        f'{host} {device.address} ({device.uuid})'.strip())
    steps = NOTHING_PASSED if event in _ENDS_VERDICT else device.cleaned_steps
    # Then there is no vGPU any more.
    has_vgpu = state is not device_rules.DeviceState.AVAILABLE
    return dataclasses.replace(
        device, state=str(state), generation=device.generation + 1,
        cleaned_steps=steps,
        new_in_place=device.new_in_place and event not in _KNOWN_IN_PLACE,
        vgpu_type=device.vgpu_type if has_vgpu else None,
        placement_id=device.placement_id if has_vgpu else None)


def insert(session: orm.Session,
           devices: Iterable[DeviceRow]) -> dict[int, int]:
    """Store new devices; return their ids by those that they had before.

    :param devices: their groups and GPUs are stored
    """
    new = {device.uuid: device.id for device in devices}
    values = [{name: getattr(device, name) for name in NAMES
               if name != 'id'} for device in devices]
    return {new[uuid]: id for uuid, id in session.execute(
        _INSERT, values).tuples()} if values else {}


def swap(session: orm.Session,
         changes: Sequence[tuple[DeviceRow, DeviceRow]]) -> None:
    """Store how devices changed, unless another writer was faster.

    :param changes: each device before and after its change; it is one
        statement, however many they are
    :raises Conflict: another writer changed a row since it was read
    """
    if not changes:
        return
    done = (_swap_one(session, *changes[0]) if len(changes) == 1
            else _swap_all(session, changes))
    if done.rowcount != len(changes):  # type: ignore[attr-defined]
        raise exception.Conflict(
            kind='device', name=', '.join(
                before.uuid for before, _ in changes),
            reason='another process changed it at the same time; try again')


def _swap_one(session: orm.Session, before: DeviceRow,
              now: DeviceRow) -> sa.Result[typing.Any]:
    """Change one device; most claims are for one."""
    values = {name: getattr(now, name) for name in _WRITTEN
              if getattr(before, name) != getattr(now, name)}
    return session.execute(_swap_statement(tuple(values)), {
        'of_id': before.id, 'of_generation': before.generation, **values})


@functools.cache
def _swap_statement(names: Sequence[str]) -> sa.Update:
    """Return the statement that changes some columns of one device.

    SQLAlchemy takes longer to make it than to run it.
    """
    return sa.update(TABLE).where(
        TABLE.c.id == sa.bindparam('of_id'),
        TABLE.c.generation == sa.bindparam('of_generation'),
    ).values({name: sa.bindparam(name) for name in names})


def _swap_all(session: orm.Session,
              changes: Sequence[tuple[DeviceRow, DeviceRow]],
              ) -> sa.Result[typing.Any]:
    values = {
        name: _by_id({before.id: getattr(now, name)
                      for before, now in changes})
        for name in _WRITTEN
        if any(getattr(before, name) != getattr(now, name)
               for before, now in changes)}
    generations = {before.id: before.generation for before, _ in changes}
    return session.execute(
        sa.update(TABLE)
        .where(TABLE.c.id.in_(list(generations)),
               TABLE.c.generation == _by_id(generations))
        .values(values))


def _by_id(values: Mapping[int, object]) -> object:
    """Return the expression of a value that may depend on the row's id."""
    distinct = set(values.values())
    if len(distinct) == 1:
        return distinct.pop()
    return sa.case(values, value=TABLE.c.id)


# -- Devices as operators list them: filtered, in pages, with shown states.
#
# The shown state is domain.device.shown_state as an expression of SQL, so that
# the database filters and counts by it. Parts of statements are made once,
# which takes longer than to run them.


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

    row: DeviceRow
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
        (hold_db.is_held([device_rules.HoldKind.RETIRED], device),
         device_rules.RETIRED),
        (hold_db.is_held(device_rules.QUARANTINE, device),
         device_rules.QUARANTINED),
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
        (sa.and_(available, hold_db.is_held([device_rules.HoldKind.DISABLED])),
         device_rules.DISABLED),
        (sa.and_(available, device.host_id.in_(
            hold_db.held_hosts(device_rules.HostHoldKind.RESTORED))),
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
        own, of_child = (hold_db.is_held(device_rules.WITHDRAWING, device)
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
        query = query.where(tables.page_after(_ORDER, _place(session, marker)))
    return _listed(session, query)


def get_listed(session: orm.Session, uuid: str) -> ListedDevice:
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
                  shown_state(), *COLUMNS)
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
        ListedDevice(row=DeviceRow(*row), host=host,
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

    See domain.device; GPUs and VFs that need not be cleaned for being
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
        ~hold_db.is_held(device_rules.WITHDRAWING))
    is_stuck = sa.and_(is_new, device.state == str(_State.DIRTY),
                       device.clean_attempt == device.clean_token)

    def count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        return sa.func.count(sa.case((condition, 1)))
    return [NewDevices(*row) for row in session.execute(
        sa.select(
            device.host_id, tables.GROUPS.c.variant_id, sa.func.count(),
            count(device.cleaned_steps != NOTHING_PASSED),
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
               tables.DEVICES.c.cleaned_steps != NOTHING_PASSED)
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
