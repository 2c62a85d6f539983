# SPDX-License-Identifier: Apache-2.0
"""All rows of a host as one value, which rules change and ``store`` writes.

A transaction locks the host, loads its rows, lets rules make other rows of
them, and stores the difference (conductor.settle).
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
import typing
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import event as event_rules

if typing.TYPE_CHECKING:
    from gpgpu_plugin.domain import ledger as ledger_rules

Device = device_db.DeviceRow
Assignment = assignment_db.AssignmentRow
GroupRows = group_db.GroupRows


class CleaningVerdict(typing.NamedTuple):
    """Record for the ledger; ``device`` is as it was before the verdict."""

    device: Device
    verdict: ledger_rules.Verdict
    reason: str | None
    actor: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostRows:
    """Rows of a host.

    :ivar host: row of the host
    :ivar newest_version: number of the last change of variants
    :ivar by_id: all devices, in the order of their stable ids
    :ivar assignments: active ones, in the order of their claims
    :ivar bare_groups: groups with their types, but without their devices;
        ``groups`` has them with all
    :ivar holds: of the host and of the devices, the oldest first
    :ivar events: what happened since the rows were read
    :ivar verdicts: records of ledgers since then
    """

    host: host_db.HostRow
    newest_version: int
    by_id: Mapping[int, Device]
    assignments: Sequence[Assignment]
    bare_groups: Sequence[GroupRows]
    holds: Sequence[hold_db.Hold]
    events: Sequence[event_db.Event] = ()
    verdicts: Sequence[CleaningVerdict] = ()

    # -- what there is ------------------------------------------------------

    @functools.cached_property
    def devices(self) -> Sequence[Device]:
        """Return all devices."""
        return tuple(self.by_id.values())

    @functools.cached_property
    def by_stable_id(self) -> Mapping[str, Device]:
        """Return all devices by their stable ids."""
        return {device.stable_id: device for device in self.devices}

    @functools.cached_property
    def _by_uuid(self) -> Mapping[str, Device]:
        return {device.uuid: device for device in self.devices}

    @functools.cached_property
    def _children(self) -> Mapping[int, Sequence[Device]]:
        found = collections.defaultdict(list)
        for device in self.devices:
            if device.parent_id is not None:
                found[device.parent_id].append(device)
        return found

    @functools.cached_property
    def groups(self) -> Sequence[GroupRows]:
        """Return the groups with all their rows."""
        of_group, foreign = _by_group(self.devices)
        assigned: dict[int | None, list[Assignment]] = (
            collections.defaultdict(list))
        for assignment in self.assignments:
            assigned[assignment.device.group_id].append(assignment)
        is_draining = self.is_held(device_rules.HostHoldKind.DRAINING)
        return [dataclasses.replace(
            group, draining=is_draining, devices=of_group.get(group.id, ()),
            foreign_vgpus=foreign.get(group.id, ()),
            assignments=assigned.get(group.id, ()))
            for group in self.bare_groups]

    def device(self, uuid: str) -> Device:
        """Return one device.

        :raises NotFound: the host has none with this UUID
        """
        if uuid not in self._by_uuid:
            raise exception.NotFound(
                kind='device', name=f'{uuid} on host {self.host.name}')
        return self._by_uuid[uuid]

    def now(self, device: Device) -> Device:
        """Return a device as it is now."""
        return self.by_id[device.id]

    def children(self, device: Device) -> Sequence[Device]:
        """Return the VFs and mdev rows of a device."""
        return self._children.get(device.id, ())

    def gpu_of(self, device: Device) -> Device:
        """Return the GPU of a VF or an mdev row; any other device itself.

        An mdev may be on a VF.
        """
        while device.parent_id is not None:
            device = self.by_id[device.parent_id]
        return device

    def with_vfs(self, device: Device) -> Sequence[Device]:
        """Return a function and its VFs, also those that are away."""
        return device, *(child for child in self.children(device)
                         if child.kind == device_rules.DeviceKind.PCI)

    def group_of(self, device: Device) -> GroupRows | None:
        """Return the group of a device, with its types only."""
        return next((group for group in self.bare_groups
                     if group.id == device.group_id), None)

    def cleaning_policy(self, device: Device) -> str:
        """Return the policy of a device's variant, the default without one."""
        group = self.group_of(device)
        return cleaning.DEFAULT if group is None else (
            group.variant.cleaning_policy)

    @functools.cached_property
    def types_in_use(self) -> Mapping[str, str | None]:
        """Return the types of devices that are not available, by stable id."""
        return {device.stable_id: device.vgpu_type for device in self.devices
                if device.state != device_rules.DeviceState.AVAILABLE}

    def holds_of(self, device: Device) -> Mapping[str, hold_db.Hold]:
        """Return the own holds of a device, by kind."""
        return {found.kind: found for found in self.holds
                if found.device_id == device.id}

    def is_held(self, kind: device_rules.HostHoldKind) -> bool:
        """Return whether the host itself has a hold of a kind."""
        return any(found.host_id is not None and found.kind == kind
                   for found in self.holds)

    # -- other rows ---------------------------------------------------------

    def _with(self, **fields: typing.Any) -> HostRows:
        return dataclasses.replace(self, **fields)

    def put(self, *devices: Device) -> HostRows:
        """Return the rows with devices that changed or are new."""
        changed = {device.id: device for device in devices
                   if self.by_id.get(device.id) != device}
        if not changed:
            return self
        if self.holds:
            # A new part of a GPU is held with it.
            changed = {device.id: device for device in _with_kinds(
                changed.values(), self.holds)}
        return self._with(
            by_id={**self.by_id, **changed},
            assignments=[
                dataclasses.replace(row, device=changed[row.device.id])
                if row.device.id in changed else row
                for row in self.assignments])

    def change(self, device: Device, **values: typing.Any) -> HostRows:
        """Return the rows with other values of a device."""
        return self.put(dataclasses.replace(self.now(device), **values))

    def apply(self, device: Device, event: device_rules.DeviceEvent,
              **values: typing.Any) -> HostRows:
        """Return the rows after an event in the life of a device.

        :param values: other values that change with it
        :raises InvalidTransition: its state has no such event
        """
        return self.put(dataclasses.replace(device_db.after(
            self.now(device), event, self.host.name), **values))

    def new_id(self) -> int:
        """Return the id of a device or a group until it is stored."""
        return min([0, *self.by_id, *(
            group.id for group in self.bare_groups)]) - 1

    def assign(self, assignments: Iterable[Assignment]) -> HostRows:
        """Return the rows with new assignments, and their devices."""
        found = tuple(assignments)
        rows = self.put(*(row.device for row in found))
        return rows._with(assignments=(*rows.assignments, *found))

    def put_assignments(self, *changed: Assignment) -> HostRows:
        """Return the rows with changed assignments; their devices stay."""
        by_uuid = {row.uuid: row for row in changed}
        return self._with(assignments=[
            dataclasses.replace(
                by_uuid.get(row.uuid, row), device=row.device)
            for row in self.assignments])

    def end(self, uuids: Collection[str]) -> HostRows:
        """Return the rows without some assignments."""
        return self._with(assignments=[
            row for row in self.assignments if row.uuid not in uuids])

    def put_groups(self, groups: Sequence[GroupRows]) -> HostRows:
        """Return the rows with other groups, each with its types only."""
        return self._with(bare_groups=groups)

    def change_host(self, **values: typing.Any) -> HostRows:
        """Return the rows with other values of the host."""
        return self._with(host=dataclasses.replace(self.host, **values))

    def hold_host(self, kind: device_rules.HostHoldKind, *, held: bool,
                  reason: str | None = None,
                  actor: str | None = None) -> HostRows:
        """Return the rows with a hold of the host, or without.

        :param held: whether the host is held, which may be so already
        """
        if held == self.is_held(kind):
            return self
        return self._with(holds=[
            *self.holds, hold_db.of_host(self.host.id, kind, reason, actor),
        ] if held else [found for found in self.holds
                        if found.host_id is None or found.kind != kind])

    def hold(self, device: Device, kind: str, reason: str | None,
             actor: str | None = None) -> HostRows:
        """Return the rows with a hold, unless the device has such a one."""
        if kind in self.holds_of(device):
            return self
        return self._held([*self.holds, hold_db.Hold(
            id=0, device_id=device.id, host_id=None, kind=str(kind),
            reason=reason, actor=actor, since=hold_db.SINCE_NOW)], device)

    def unhold(self, device: Device, kinds: Collection[str]) -> HostRows:
        """Return the rows without holds of some kinds of a device."""
        return self._held([
            found for found in self.holds
            if found.device_id != device.id or found.kind not in kinds],
            device)

    def _held(self, holds: Sequence[hold_db.Hold],
              device: Device) -> HostRows:
        """Return the rows with other holds of a device."""
        now = self.now(device)
        changed = dataclasses.replace(now, generation=now.generation + 1)
        rows = self._with(holds=holds)
        return rows.put(*_with_kinds(
            [changed, *self.children(now)], holds))

    def note(self, kind: event_rules.Kind,
             objects: Iterable[Device | Assignment],
             detail: str | None = None, *,
             level: int | None = None) -> HostRows:
        """Return the rows with an event of each device or assignment.

        :param level: of the line in the log; default that of the kind
        """
        found = tuple((row, None) if isinstance(row, Device)
                      else (row.device, row) for row in objects)
        return self if not found else self._with(
            events=(*self.events, event_db.Event(kind, found, detail, level)))

    def note_host(self, kind: event_rules.Kind,
                  detail: str | None = None) -> HostRows:
        """Return the rows with an event of the host itself."""
        return self._with(events=(*self.events, event_db.Event(
            kind, [(None, None)], detail)))

    def record(self, device: Device, verdict: ledger_rules.Verdict,
               reason: str | None, actor: str | None = None) -> HostRows:
        """Return the rows with a record of the ledger of a device."""
        return self._with(verdicts=(
            *self.verdicts, CleaningVerdict(device, verdict, reason, actor)))


def _own_kinds(
        holds: Iterable[hold_db.Hold]) -> Mapping[int | None, set[str]]:
    """Return the kinds of own holds, by the id of the device."""
    own: dict[int | None, set[str]] = collections.defaultdict(set)
    for found in holds:
        if found.device_id is not None:
            own[found.device_id].add(found.kind)
    return own


def _with_kinds(devices: Iterable[Device],
                holds: Iterable[hold_db.Hold]) -> list[Device]:
    """Return devices with the kinds of their holds, and of their GPUs'."""
    own = _own_kinds(holds)
    result = []
    for device in devices:
        kinds = frozenset(own.get(device.id, set())
                          | own.get(device.parent_id, set()))
        result.append(device if kinds == device.holds
                      else dataclasses.replace(device, holds=kinds))
    return result


def _by_group(devices: Collection[Device]) -> tuple[
        dict[int, list[Device]], dict[int, list[Device]]]:
    """Return the devices of groups, and the foreign vGPUs of their GPUs."""
    group_ids = {device.id: device.group_id for device in devices}
    of_group: dict[int, list[Device]] = collections.defaultdict(list)
    foreign: dict[int, list[Device]] = collections.defaultdict(list)
    for device in devices:
        if device.group_id is not None:
            of_group[device.group_id].append(device)
        of_gpu = group_ids.get(device.parent_id or 0)
        if (of_gpu not in (None, device.group_id)
                and device.vgpu_type is not None):
            foreign[of_gpu].append(device)
    return of_group, foreign


# -- the database -----------------------------------------------------------

_HOSTS = tables.HOSTS
_GROUPS = tables.GROUPS
_VARIANTS = tables.VARIANTS
_TYPES = tables.TYPES
_DEVICES = device_db.TABLE
_ASSIGNMENTS = assignment_db.TABLE
_HOLDS = hold_db.TABLE
_OF_GROUP = ('id', 'provider_uuid', 'allocation_policy', 'own_policy',
             'link_partitions', 'variant_id')
# Made once: SQLAlchemy takes longer to make them than to run them.
_GROUPS_OF_HOSTS = (
    sa.select(_HOSTS.c.id,
              sa.select(host_db.LOCKS.c.value).where(
                  host_db.LOCKS.c.name == 'variants').scalar_subquery(),
              *hold_db.COLUMNS, *(_GROUPS.c[name] for name in _OF_GROUP),
              _VARIANTS.c.deleting, _VARIANTS.c.version,
              *variant_db.COLUMNS, *group_db.TYPE_COLUMNS)
    .select_from(
        _HOSTS.outerjoin(_HOLDS, _HOLDS.c.host_id == _HOSTS.c.id)
        .outerjoin(_GROUPS, _GROUPS.c.host_id == _HOSTS.c.id)
        .outerjoin(_VARIANTS, _GROUPS.c.variant_id == _VARIANTS.c.id)
        .outerjoin(_TYPES, _TYPES.c.gpu_group_id == _GROUPS.c.id))
    .where(_HOSTS.c.id.in_(sa.bindparam('host_ids', expanding=True)))
    .order_by(_GROUPS.c.id, _TYPES.c.id))
_OF_GROUPS = 2 + len(hold_db.COLUMNS)
_OF_VARIANT = _OF_GROUPS + len(_OF_GROUP) + 2
_OF_TYPE = _OF_VARIANT + len(variant_db.COLUMNS)
_DEVICES_OF_HOSTS = (
    sa.select(_ASSIGNMENTS.c.id, *assignment_db.COLUMNS, *device_db.COLUMNS,
              *hold_db.COLUMNS)
    .select_from(
        _DEVICES.outerjoin(_ASSIGNMENTS, sa.and_(
            _ASSIGNMENTS.c.device_id == _DEVICES.c.id,
            _ASSIGNMENTS.c.active == 1))
        .outerjoin(_HOLDS, _HOLDS.c.device_id == _DEVICES.c.id))
    .where(_DEVICES.c.host_id.in_(sa.bindparam('host_ids', expanding=True)))
    .order_by(_DEVICES.c.host_id, _DEVICES.c.stable_id, _HOLDS.c.id))
_OF_DEVICE = 1 + len(assignment_db.COLUMNS)
_OF_HOLD = _OF_DEVICE + len(device_db.COLUMNS)


def load(session: orm.Session,
         hosts: Iterable[host_db.HostRow]) -> dict[int, HostRows]:
    """Return all rows of hosts, in two statements.

    :returns: by the host's id
    """
    by_id = {host.id: host for host in hosts}
    asked = {'host_ids': list(by_id)}
    groups: dict[int, list[_Found]] = collections.defaultdict(list)
    for row in session.execute(_GROUPS_OF_HOSTS, asked):
        groups[row[0]].append(row)
    devices: dict[int, list[_Found]] = collections.defaultdict(list)
    host_id = _OF_DEVICE + device_db.NAMES.index('host_id')
    for row in session.execute(_DEVICES_OF_HOSTS, asked):
        devices[row[host_id]].append(row)
    return {id: _host_rows(host, groups[id], devices[id])
            for id, host in by_id.items()}


def load_one(session: orm.Session, host: host_db.HostRow) -> HostRows:
    """Return all rows of a host."""
    return load(session, [host])[host.id]


_Found = Sequence[typing.Any]


def _host_rows(host: host_db.HostRow, groups: Sequence[_Found],
               found: Sequence[_Found]) -> HostRows:
    # A device with several holds has as many rows, and so has a host.
    holds = {row[at]: hold_db.Hold(*row[at:at + len(hold_db.COLUMNS)])
             for rows, at in ((found, _OF_HOLD), (groups, 2))
             for row in rows if row[at] is not None}
    rows = {row[_OF_DEVICE]: row for row in found}
    devices = [Device(*row[_OF_DEVICE:_OF_HOLD]) for row in rows.values()]
    by_id = {device.id: device for device in (
        _with_kinds(devices, holds.values()) if holds else devices)}
    assignments = {
        row[0]: Assignment(by_id[id], *row[1:_OF_DEVICE])
        for id, row in rows.items() if row[0] is not None}
    return HostRows(
        host=host, newest_version=groups[0][1], by_id=by_id,
        holds=sorted(holds.values()), bare_groups=_groups(groups),
        assignments=[assignments[id] for id in sorted(assignments)])


def _groups(found: Iterable[_Found]) -> list[GroupRows]:
    """Return groups with their types only."""
    of_groups: dict[int, dict[int, _Found]] = collections.defaultdict(dict)
    for row in found:
        if row[_OF_GROUPS] is not None:
            of_groups[row[_OF_GROUPS]][row[_OF_TYPE]] = row
    groups = []
    for of_group in of_groups.values():
        row = next(iter(of_group.values()))
        (group_id, provider_uuid, policy, own, own_links, variant_id,
         deleting, version) = row[_OF_GROUPS:_OF_VARIANT]
        groups.append(GroupRows(
            id=group_id, provider_uuid=provider_uuid,
            allocation_policy=policy, own_policy=own, own_links=own_links,
            variant_id=variant_id, variant_version=version,
            is_deleting=deleting,
            variant=variant_db.value(*row[_OF_VARIANT:_OF_TYPE]),
            types=[group_db.VGPUTypeRow(*found[_OF_TYPE:])
                   for type_id, found in of_group.items()
                   if type_id is not None]))
    return groups


def store(session: orm.Session, before: HostRows, after: HostRows,
          at: datetime.datetime | None = None) -> HostRows:
    """Store how the rows of a (locked) host changed.

    A unique key holds after each statement: what leaves a place, a claim or a
    device does so before another comes.

    :param at: when assignments end; None: now
    :returns: the rows with the ids of what is new
    :raises Conflict: another writer changed a device since it was read
    """
    gone = ended(before, after)
    if gone:
        assignment_db.end(session, gone, at or clock.utc(session))
    after = _store_groups(session, before, after)
    # A GPU that a device is found to be a part of may be new.
    early = [change for change in _changed(before, after)
             if (change[1].parent_id or 0) >= 0]
    device_db.give_up_places(session, [
        now.id for old, now in early if old.stable_id != now.stable_id])
    device_db.swap(session, early)
    after = _insert_devices(session, after)
    done = {old.id for old, _ in early}
    device_db.swap(session, [change for change in _changed(before, after)
                             if change[0].id not in done])
    if after.holds is not before.holds:
        hold_db.store(session, before.holds, after.holds, clock.utc(session))
    host_db.store(session, before.host, after.host)
    _store_assignments(session, before, after)
    group_db.store_types(session, {
        group.id: (_types(before, group.id), group.types)
        for group in after.bare_groups})
    group_db.delete(session, {group.id for group in before.bare_groups} - {
        group.id for group in after.bare_groups})
    return after


def _types(rows: HostRows,
           group_id: int) -> Sequence[group_db.VGPUTypeRow]:
    return next((group.types for group in rows.bare_groups
                 if group.id == group_id), ())


def changed(before: HostRows,
            after: HostRows) -> list[tuple[Device, Device]]:
    """Return each device whose row changed or is new, before and after that.

    A new one was available, and nothing held it but its GPU. What began or
    ended to hold a GPU is a change of the GPU, and not of its VFs.
    """
    was, is_now = _own_kinds(before.holds), _own_kinds(after.holds)

    def own(device: Device) -> hold_db.Kinds:
        return frozenset(was.get(device.id, set())
                         | is_now.get(device.parent_id, set()))
    return [*(
        (dataclasses.replace(old, holds=own(now)), now)
        for old, now in _changed(before, after)), *(
        (dataclasses.replace(
            now, state=str(device_rules.DeviceState.AVAILABLE),
            holds=own(now)), now)
        for id, now in after.by_id.items() if id not in before.by_id)]


def _changed(before: HostRows,
             after: HostRows) -> list[tuple[Device, Device]]:
    """Return each device whose row changed, before and after that."""
    return [(old, now) for id, old in before.by_id.items()
            if (now := after.by_id[id]) is not old
            and dataclasses.replace(old, holds=now.holds) != now]


def ended(before: HostRows, after: HostRows) -> list[Assignment]:
    """Return the assignments that ended."""
    active = {row.uuid for row in after.assignments}
    return [row for row in before.assignments if row.uuid not in active]


def _store_groups(session: orm.Session, before: HostRows,
                  after: HostRows) -> HostRows:
    """Store new groups, and those of which more changed than their types."""
    known = {group.id: group for group in before.bare_groups}
    ids = {}
    for group in after.bare_groups:
        if group.id < 0:
            ids[group.id] = group_db.insert(session, after.host.id, group)
        elif group is not known[group.id]:
            group_db.update(session, known[group.id], group)
    if not ids:
        return after
    return after.put(*(
        dataclasses.replace(device, group_id=ids[device.group_id])
        for device in after.devices if device.group_id in ids)).put_groups([
            dataclasses.replace(group, id=ids.get(group.id, group.id))
            for group in after.bare_groups])


def _insert_devices(session: orm.Session, after: HostRows) -> HostRows:
    """Store new devices: GPUs before their VFs and mdev rows."""
    new = [device for device in after.devices if device.id < 0]
    if not new:
        return after
    ids: dict[int, int] = {}
    for is_gpu in (True, False):
        ids |= device_db.insert(session, [
            dataclasses.replace(device, parent_id=ids.get(
                device.parent_id or 0, device.parent_id))
            for device in new if (device.parent_id is None) is is_gpu])
    by_id = {}
    for device in after.devices:
        changed = {} if device.parent_id not in ids else {
            'parent_id': ids[device.parent_id]}
        if device.id in ids:
            changed['id'] = ids[device.id]
        now = dataclasses.replace(
            device, **changed) if changed else device  # type: ignore[arg-type]
        by_id[now.id] = now
    return dataclasses.replace(
        after, by_id=by_id,
        holds=[found._replace(device_id=ids.get(
            found.device_id or 0, found.device_id))
            for found in after.holds],
        assignments=[dataclasses.replace(row, device=by_id[ids.get(
            row.device.id, row.device.id)]) for row in after.assignments])


def _store_assignments(session: orm.Session, before: HostRows,
                       after: HostRows) -> None:
    known = {row.uuid: row for row in before.assignments}
    assignment_db.update(session, [
        (known[row.uuid], row) for row in after.assignments
        if row.uuid in known and row is not known[row.uuid]])
    assignment_db.insert(session, [
        row for row in after.assignments if row.uuid not in known])
