# SPDX-License-Identifier: Apache-2.0
"""Rows of ``devices``: their values, and compare-and-swap of their state."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import notification as notification_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.domain.vgpu import driver_capacity as driver_capacity_mod
from gpgpu_plugin.objects import codec

T = typing.TypeVar('T')

TABLE = models.Base.metadata.tables['devices']

_PARSED = 10000
"""Number of texts of one JSON column whose values are kept in memory.

Both take about 4 kB. The values are immutable.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRow:
    """A row as it was read; models.Device gives the meaning of its columns.

    Claims read and write such values instead of the ORM's objects, which cost
    them three quarters of their time.

    :ivar holds: kinds of its holds, and of those of its GPU
    """

    id: int
    uuid: str
    host_id: int
    group_id: int | None
    parent_id: int | None
    kind: str
    vgpu_type: str | None
    placement_id: int | None
    stable_id: str
    address: str
    state: str
    present: bool
    reason: str | None
    clean_token: str | None
    clean_attempt: str | None
    cleaned_steps: str | None
    pci_function: str
    vgpu_capability: str | None
    driver_capacity: str | None
    generation: int
    holds: hold_db.Kinds = frozenset()


AnyDevice = models.Device | DeviceRow

COLUMNS = (*(TABLE.c[field.name] for field in dataclasses.fields(DeviceRow)
             if field.name != 'holds'), hold_db.TABLE.c.kind)
"""Columns of a DeviceRow, in its order; the last is the kind of a hold.

A device with several holds has as many rows, see ``rows``.
"""


_WRITTEN = ('state', 'generation', 'vgpu_type', 'placement_id', 'reason',
            'clean_token', 'clean_attempt', 'cleaned_steps')
"""Columns that claims, cleanings and operators change."""

_OF_HOSTS = (
    sa.select(models.Device)
    .where(models.Device.host_id.in_(sa.bindparam('of_hosts', expanding=True)))
    .order_by(models.Device.host_id, models.Device.stable_id))
_WITH_UUID = sa.select(models.Device).where(
    models.Device.uuid == sa.bindparam('of_uuid'))
_BY_UUID = (
    sa.select(*COLUMNS)
    .select_from(TABLE.outerjoin(hold_db.TABLE, hold_db.IS_OF_DEVICE))
    .where(TABLE.c.uuid == sa.bindparam('uuid')))


def rows(found: Iterable[Sequence[typing.Any]]) -> list[DeviceRow]:
    """Return the devices of rows with ``COLUMNS``, each once, in this order.
    """
    devices: dict[int, DeviceRow] = {}
    for *values, kind in found:
        device = devices.get(values[0]) or DeviceRow(*values)
        if kind is not None:
            device = dataclasses.replace(
                device, holds=device.holds | {kind})
        devices[device.id] = device
    return list(devices.values())


def _cached(kind: type[T]) -> Callable[[str], T]:
    """Return a parser of a JSON column that parses each text once."""
    return functools.lru_cache(maxsize=_PARSED)(
        functools.partial(codec.decode, kind))


_pci_function = _cached(pci.PCIFunction)
_identity = _cached(pci.Identity)
_vgpu_capability = _cached(capability.VGPUCapability)
_driver_capacity = _cached(driver_capacity_mod.DriverCapacity)


def pci_function(device: AnyDevice) -> pci.PCIFunction:
    """Return the PCI function as the last scan of the device read it."""
    return _pci_function(device.pci_function)


def identity(device: models.Device) -> pci.Identity:
    """Return what any scan has found that tells the device from others."""
    if device.identity is None:
        return pci.Identity.of(pci_function(device))
    return _identity(device.identity)


def vgpu_capability(device: AnyDevice) -> capability.VGPUCapability | None:
    """Return the stored vGPU capability of the device."""
    return (None if device.vgpu_capability is None
            else _vgpu_capability(device.vgpu_capability))


def driver_capacity(device: AnyDevice,
                    ) -> driver_capacity_mod.DriverCapacity | None:
    """Return the driver report on the device that applies now."""
    return (None if device.driver_capacity is None
            else _driver_capacity(device.driver_capacity))


def errors(device: models.Device) -> dict[str, int]:
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


def set_observed(device: models.Device, function: pci.PCIFunction,
                 vgpus: capability.VGPUCapability | None,
                 driver: driver_capacity_mod.DriverCapacity | None) -> bool:
    """Store what is known about a device after a scan.

    :returns: whether it differs from what was stored
    """
    texts = {'pci_function': dump(function),
             'vgpu_capability': None if vgpus is None else dump(vgpus),
             'driver_capacity': None if driver is None else dump(driver)}
    changed = False
    for column, text in texts.items():
        if getattr(device, column) != text:
            setattr(device, column, text)
            changed = True
    device.vendor_id, device.product_id = ids(function)
    return changed


def of_hosts(session: orm.Session,
             host_ids: Iterable[int]) -> list[models.Device]:
    """Return all devices of hosts, by host and stable id."""
    return list(session.scalars(_OF_HOSTS, {'of_hosts': list(host_ids)}))


def host_ids_by_ids(session: orm.Session, vendor_id: str, product_id: str,
                    after: int, limit: int | None) -> list[int]:
    """Return which hosts have a device with these ids, by host id.

    :param after: only hosts with a greater id
    """
    return list(session.scalars(
        sa.select(models.Device.host_id).distinct()
        .where(models.Device.vendor_id == vendor_id,
               models.Device.product_id == product_id,
               models.Device.host_id > after)
        .order_by(models.Device.host_id).limit(limit)))


def to_clean(session: orm.Session, host_id: int) -> list[models.Device]:
    """Return the present devices of a host that are dirty or cleaning.

    One that is withdrawn is not cleaned (domain.hold). A device without a
    token waits until it is in a group, and a GPU until its mdevs are removed:
    its host resets no GPU that has one. A VF waits for the cleaning of its
    GPU, and a GPU until its VFs are removed. One whose last attempt is what
    was asked for waits for another cleaning policy, see ``try_again``.
    """
    return [device for device in session.scalars(
                _to_clean(), {'of_host': host_id})
            if not waits_for_vfs(device)]


def waits_for_vfs(device: models.Device) -> bool:
    """Return whether a dirty GPU waits until its VFs are removed.

    Its host resets no GPU that has VFs.
    """
    return (device.state == device_rules.DeviceState.DIRTY
            and device.parent_id is None and pci_function(device).has_vfs)


# SQLAlchemy takes longer to make such a statement than to run it.
@functools.cache
def _to_clean() -> sa.Select[models.Device]:
    unclean = sorted(device_rules.UNCLEAN_STATES)
    mdev = orm.aliased(models.Device)
    parent = orm.aliased(models.Device)
    return (
        sa.select(models.Device)
        .where(models.Device.host_id == sa.bindparam('of_host'),
               models.Device.present,
               models.Device.clean_token.is_not(None),
               models.Device.state.in_(unclean),
               sa.or_(models.Device.clean_attempt.is_(None),
                      models.Device.clean_attempt != models.Device.clean_token,
                      models.Device.state == str(
                          device_rules.DeviceState.CLEANING)),
               ~sa.exists().where(
                   mdev.parent_id == models.Device.id,
                   mdev.kind == str(device_rules.DeviceKind.MDEV),
                   mdev.state != str(device_rules.DeviceState.AVAILABLE)),
               # The vGPUs on a GPU that is withdrawn are removed.
               sa.or_(~hold_db.is_held(hold.WITHDRAWING), sa.and_(
                   models.Device.kind == str(device_rules.DeviceKind.MDEV),
                   ~hold_db.is_held(hold.WITHDRAWING, is_inherited=False))),
               ~sa.exists().where(
                   models.Device.kind == str(device_rules.DeviceKind.PCI),
                   parent.id == models.Device.parent_id,
                   parent.state.in_(unclean)))
        .order_by(models.Device.stable_id))


NOTHING_PASSED = ''
"""``cleaned_steps`` of a device whose last verdict does not count any more."""


def try_again(device: models.Device) -> None:
    """Have a dirty device cleaned that waits for another cleaning policy.

    The request stays the same: a new one would accept what a guest changed.
    """
    device.clean_attempt = device.reason = None


def clean_or_new(session: orm.Session, host_ids: Sequence[int],
                 ) -> list[tuple[models.Device, models.Variant | None, bool]]:
    """Return available functions, and dirty ones that are new on their host.

    One whose mdevs are not all available is left out, unless the whole GPU
    may have been used.

    :returns: each with its variant (None: it is unmanaged), and whether its
        group offers whole GPUs
    """
    return [(device, variant, bool(is_enabled))
            for device, variant, is_enabled in session.execute(
                _clean_or_new(), {'of_hosts': list(host_ids)}).tuples()]


@functools.cache
def _clean_or_new() -> sa.Select[models.Device, models.Variant, bool]:
    child = orm.aliased(models.Device)
    return (
        sa.select(models.Device, models.Variant, models.VGPUType.enabled)
        .outerjoin(models.Group, models.Group.id == models.Device.group_id)
        .outerjoin(models.Variant,
                   models.Variant.id == models.Group.variant_id)
        .outerjoin(models.VGPUType, sa.and_(
            models.VGPUType.gpu_group_id == models.Group.id,
            models.VGPUType.vgpu_type == naming.PASSTHROUGH))
        .where(models.Device.host_id.in_(
                   sa.bindparam('of_hosts', expanding=True)),
               models.Device.kind == str(device_rules.DeviceKind.PCI),
               sa.or_(
                   models.Device.state == str(
                       device_rules.DeviceState.AVAILABLE),
                   sa.and_(
                       models.Device.state == str(
                           device_rules.DeviceState.DIRTY),
                       models.Device.cleaned_steps.is_(None))),
               sa.or_(
                   models.Device.cleaned_steps == NOTHING_PASSED,
                   ~sa.exists().where(
                       child.parent_id == models.Device.id,
                       child.kind == str(device_rules.DeviceKind.MDEV),
                       child.state != str(
                           device_rules.DeviceState.AVAILABLE))))
        .order_by(models.Device.id))


def with_vfs(session: orm.Session,
             device: models.Device) -> list[models.Device]:
    """Return a function and its VFs, also those that are away."""
    return [device, *session.scalars(
        sa.select(models.Device).where(
            models.Device.parent_id == device.id,
            models.Device.kind == str(device_rules.DeviceKind.PCI))
        .order_by(models.Device.id))]


def delete_of_host(session: orm.Session, host_id: int) -> None:
    """Delete the devices of a host, and their holds."""
    hold_db.delete_of_host(session, host_id)
    session.execute(sa.update(models.Device).where(
        models.Device.host_id == host_id).values(parent_id=None))
    session.execute(sa.delete(models.Device).where(
        models.Device.host_id == host_id))


def count_by_variant(session: orm.Session) -> dict[int, int]:
    """Return the number of devices in the groups of each variant, by id."""
    return dict(session.execute(
        sa.select(models.Group.variant_id, sa.func.count())
        .join(models.Device, models.Device.group_id == models.Group.id)
        .group_by(models.Group.variant_id)).tuples().all())


def by_stable_id(session: orm.Session, host_id: int,
                 names: Iterable[str]) -> list[models.Device]:
    """Return devices of a host, by stable id."""
    return list(session.scalars(
        sa.select(models.Device)
        .where(models.Device.host_id == host_id,
               models.Device.stable_id.in_(list(names)))
        .order_by(models.Device.stable_id)))


def at_address(session: orm.Session, host_id: int,
               address: str) -> models.Device | None:
    """Return the PCI function at an address of a host.

    It is the one that is there now, else the last one that was; a retired one
    is none.
    """
    return session.scalars(
        sa.select(models.Device)
        .where(models.Device.host_id == host_id,
               models.Device.address == address,
               models.Device.kind == str(device_rules.DeviceKind.PCI),
               ~hold_db.is_held([hold.HoldKind.RETIRED]))
        .order_by(models.Device.present.desc(), models.Device.id.desc())
        .limit(1)).first()


def in_use(session: orm.Session, host_id: int) -> dict[str, str | None]:
    """Return the types of a host's devices that are not available.

    :returns: by stable id
    """
    return dict(session.execute(
        sa.select(models.Device.stable_id, models.Device.vgpu_type).where(
            models.Device.host_id == host_id,
            models.Device.state != device_rules.DeviceState.AVAILABLE))
        .tuples().all())


def vfs_with_types(session: orm.Session,
                   gpus: Iterable[int]) -> list[models.Device]:
    """Return the VFs of GPUs that have a type which nobody is assigned.

    :param gpus: ids
    """
    return list(session.scalars(sa.select(models.Device).where(
        models.Device.parent_id.in_(gpus), models.Device.present,
        models.Device.kind == device_rules.DeviceKind.PCI,
        models.Device.state == device_rules.DeviceState.AVAILABLE,
        models.Device.vgpu_type.is_not(None))
        .order_by(models.Device.stable_id)))


def get(session: orm.Session, uuid: str) -> models.Device:
    """Return one device.

    :raises NotFound: no such UUID
    """
    device = session.scalar(_WITH_UUID, {'of_uuid': uuid})
    if device is None:
        raise exception.NotFound(kind='device', name=uuid)
    return device


def host_id(db: api.Database, uuid: str) -> int:
    """Return the id of a device's host, which never changes.

    :raises NotFound: no such device
    """
    with db.reader() as session:
        return get(session, uuid).host_id


def replaced(session: orm.Session, device: AnyDevice) -> models.Device | None:
    """Return the retired device whose place a device took."""
    return session.scalar(sa.select(models.Device).where(
        models.Device.host_id == device.host_id,
        models.Device.replaced_by == device.uuid))


def lock(session: orm.Session, host_id: int,
         uuid: str) -> tuple[models.Host, models.Device]:
    """Return a device and its host, locked until the transaction ends.

    Must be the transaction's first statement (see db.api).
    """
    [host] = host_db.lock_ids(session, [host_id])
    return host, get(session, uuid)


def row(session: orm.Session, uuid: str) -> DeviceRow:
    """Return one device as a value.

    :raises NotFound: no such UUID
    """
    found = rows(session.execute(_BY_UUID, {'uuid': uuid}))
    if not found:
        raise exception.NotFound(kind='device', name=uuid)
    return found[0]


def row_of(device: models.Device,
           holds: hold_db.Kinds = frozenset()) -> DeviceRow:
    """Return the value of an object that was flushed."""
    return dataclasses.replace(DeviceRow(*(
        getattr(device, column.name) for column in COLUMNS[:-1])),
        holds=holds)


_ENDS_VERDICT = frozenset({
    device_rules.DeviceEvent.RELEASE, device_rules.DeviceEvent.ADOPT})
"""Events after which the last cleaning proves nothing any more."""


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
        vgpu_type=device.vgpu_type if has_vgpu else None,
        placement_id=device.placement_id if has_vgpu else None)


def swap(session: orm.Session,
         changes: Sequence[tuple[DeviceRow, DeviceRow]]) -> None:
    """Store how devices changed, unless another writer was faster.

    All changes of states come through here, so it notifies of them; holds are
    stored by db.hold.

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
    notification_db.devices_changed(session, changes)


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


def transition(session: orm.Session, device: models.Device,
               event: device_rules.DeviceEvent) -> None:
    """Apply one event to the device, unless another writer was faster.

    :raises InvalidTransition: the state has no such event
    :raises Conflict: another writer changed the row since it was read
    """
    session.flush()
    before = row_of(device, hold_db.kinds(session, device))
    host = session.get(models.Host, device.host_id)
    set_row(session, device, before, after(
        before, event, host.name if host is not None else ''))


def set_row(session: orm.Session, device: models.Device, before: DeviceRow,
            now: DeviceRow) -> None:
    """Store how the row of an object changed, and set the object to that."""
    swap(session, [(before, now)])
    # What was written is known; reading it again would cost a round trip.
    for name in _WRITTEN:
        orm.attributes.set_committed_value(device, name, getattr(now, name))
