# SPDX-License-Identifier: Apache-2.0
"""Drifts in the database, and their repairs (gpgpu-manage doctor).

A repair examines its host once more in the transaction that repairs, after
the host was locked.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.doctor import cloud as cloud_drifts
from gpgpu_plugin.doctor import drift as drift_mod
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import variant as variant_rules
from gpgpu_plugin.rpc import conductor_contract

_Repair = drift_mod.Repair
_DEVICE_EVENTS = {
    _Repair.ADOPT: device_rules.DeviceEvent.ADOPT,
    _Repair.QUARANTINE: device_rules.DeviceEvent.RELEASE}


def page(db: api.Database, host: str | None, limit: int,
         marker: str | None) -> tuple[cloud_drifts.HostRecord, ...]:
    """Return a page of hosts (Conductor.examine_database)."""
    if limit < 1:
        raise exception.Invalid(
            field='limit', value=limit, expected='a number of rows above 0')
    with db.reader() as session:
        hosts = ([host_db.get(session, host)] if host is not None
                 else host_db.listed(session, min(
                    limit, conductor_contract.HOSTS_AT_ONCE), marker))
        return _records(session, hosts)


def cloud_records(db: api.Database) -> cloud_drifts.CloudRecord:
    """Return what belongs to no host (Conductor.examine_cloud)."""
    with db.reader() as session:
        variants = variant_db.values(session)
        return cloud_drifts.CloudRecord(
            resource_classes=tuple(sorted({
                *(variant.resource_class for variant in variants),
                *(naming.resource_class(name, vgpu_type)
                  for name, vgpu_type in group_db.types_by_variant(session)
                  if vgpu_type != naming.PASSTHROUGH)})),
            drifts=(*_variants(variants), *_keys(session),
                    *_usages_of_unknown_hosts(session)))


def _variants(variants: Iterable[variant_rules.Variant],
              ) -> Iterator[drift_mod.Drift]:
    for variant in variants:
        try:
            variant_rules.check(variant)
        except exception.Invalid as exc:
            yield drift_mod.of('rows_unreadable', None, variant.name,
                               database=f'variant {variant.name}: {exc}')


def _keys(session: orm.Session) -> list[drift_mod.Drift]:
    return [
        drift_mod.of('key_of_unknown_host', name, f'key {number}',
                     database=f'{name} is no host and has key {number}')
        for name, number in caller_key_db.of_unknown_hosts(session)]


def _usages_of_unknown_hosts(session: orm.Session) -> list[drift_mod.Drift]:
    return [drift for host, uuid in usage_db.of_hosts(session, None)
            for drift in _usages(host, [uuid], ())]


def _records(session: orm.Session, hosts: Sequence[host_db.HostRow],
             ) -> tuple[cloud_drifts.HostRecord, ...]:
    """Return what the database says; a host that cannot be read is a drift."""
    try:
        return _read(session, hosts)
    except (ValueError, exception.Invalid) as exc:
        if len(hosts) > 1:
            return tuple(record for host in hosts
                         for record in _records(session, [host]))
        [host] = hosts
        return (cloud_drifts.HostRecord(
            host=host.name, node_uuid=host.node_uuid, groups=(),
            assignments=(), drifts=(drift_mod.of(
                'rows_unreadable', host.name, host.name,
                database=str(exc)),)),)


def _read(session: orm.Session, hosts: Sequence[host_db.HostRow],
          ) -> tuple[cloud_drifts.HostRecord, ...]:
    """Return what the database says, in as many statements for all hosts.

    :raises ValueError: a column has a value that is none of its values
    :raises Invalid: the same
    """
    loaded = host_rows.load(session, hosts)
    usages = collections.defaultdict[str, list[str]](list)
    for name, uuid in usage_db.of_hosts(
            session, [host.name for host in hosts]):
        usages[name].append(uuid)
    # A database that lost its unique keys may have two of one device.
    assigned = collections.defaultdict[int, list[host_rows.Assignment]](list)
    for row, *_ in assignment_db.of_hosts(session, list(loaded)):
        assigned[row.host_id].append(row)
    return tuple(_record(
        loaded[host.id], assigned[host.id], usages[host.name])
        for host in hosts)


def _record(loaded: host_rows.HostRows,
            assigned: Sequence[host_rows.Assignment],
            usages: Sequence[str]) -> cloud_drifts.HostRecord:
    host, groups = loaded.host, capacity.groups(loaded)
    providers = {group.rows.id: group.value.provider_uuid
                 for group in groups}
    return cloud_drifts.HostRecord(
        host=host.name, node_uuid=host.node_uuid,
        groups=capacity.inventory(host, groups).groups,
        assignments=tuple(cloud_drifts.AssignedRow(
            uuid=row.uuid, instance_uuid=row.instance_uuid,
            address=row.device.address,
            provider_uuid=providers.get(row.device.group_id or 0),
            resource_class=row.resource_class, allocated=row.allocated)
            for row in assigned),
        drifts=tuple(_drifts(loaded, groups, assigned, usages)))


def _drifts(loaded: host_rows.HostRows,
            groups: Iterable[capacity.LoadedGroup],
            assigned: Sequence[host_rows.Assignment],
            usages: Sequence[str]) -> Iterator[drift_mod.Drift]:
    """Yield the drifts in the rows of a host.

    :param usages: UUIDs of assignments whose usage goes on
    """
    host = loaded.host
    if loaded.is_held(device_rules.HostHoldKind.RESTORED):
        # The rows are those of the backup.
        yield drift_mod.of(
            'host_not_reported', host.name, host.name,
            database=f'it was restored; the host called last at '
                     f'{host_rules.utc(host.heard_at)}')
        return
    yield from _devices(host.name, loaded.devices, assigned)
    yield from _capacities(host.name, groups)
    yield from _usages(host.name, usages, {row.uuid for row in assigned})


def _devices(host: str, devices: Iterable[host_rows.Device],
             assigned: Iterable[host_rows.Assignment],
             ) -> Iterator[drift_mod.Drift]:
    by_device = collections.defaultdict[
        str, list[host_rows.Assignment]](list)
    for row in assigned:
        by_device[row.device.uuid].append(row)
    for uuid, its in by_device.items():
        device = its[0].device
        instances = ', '.join(row.instance_uuid for row in its)
        if len(its) > 1:
            yield drift_mod.of(
                'device_assigned_twice', host, uuid,
                database=f'{device.address} is assigned to {instances}')
        elif device.state not in device_rules.ASSIGNED_STATES:
            yield drift_mod.of(
                'assignment_without_state', host, uuid,
                database=f'{device.address} is {device.state} and '
                         f'assigned to {instances}')
    for device in devices:
        if (device.state in device_rules.ASSIGNED_STATES
                and device.uuid not in by_device):
            yield drift_mod.of(
                'state_without_assignment', host, device.uuid,
                database=f'{device.address} is {device.state} and has no '
                         f'active assignment')


def _capacities(host: str, groups: Iterable[capacity.LoadedGroup],
                ) -> Iterator[drift_mod.Drift]:
    for group in groups:
        for row in group.rows.types:
            stored = _numbers(row)
            computed = _numbers(capacity.with_capacity(group, row))
            if stored != computed:
                yield drift_mod.of(
                    'capacity_wrong', host,
                    f'{group.rows.variant.name}:{row.vgpu_type}',
                    database=f'per GPU, maximum and remaining are stored as '
                             f'{stored}, and computed as {computed}')


def _numbers(row: capacity.TypeRow) -> str:
    return (f'{row.max_vgpu_per_pgpu}, {row.max_capacity}, '
            f'{row.remaining_capacity}')


def _usages(host: str, going_on: Iterable[str],
            active: Collection[str]) -> Iterator[drift_mod.Drift]:
    """Yield usages that go on without an active assignment.

    :param going_on: UUIDs of assignments whose usage goes on
    :param active: UUIDs of active assignments
    """
    for uuid in going_on:
        if uuid not in active:
            yield drift_mod.of(
                'usage_without_assignment', host, uuid,
                database='its usage goes on, and the assignment is not '
                         'active')


# -- repairs ----------------------------------------------------------------


def repair(db: api.Database, found: drift_mod.Drift, actor: str) -> bool:
    """Repair a drift in the database (Conductor.repair_database).

    :param actor: who has it repaired, for the events
    """
    if found.repair not in drift_mod.OF_CONDUCTOR:
        raise exception.Invalid(
            field='repair', value=found.repair, expected='one of '
            f'{", ".join(drift_mod.OF_CONDUCTOR)}')

    def work(session: orm.Session) -> bool:
        host = (host_db.lock(session, found.host)
                if found.host is not None else None)
        drifts = (_usages_of_unknown_hosts(session) if host is None
                  else _records(session, [host])[0].drifts)
        same = next((drift for drift in drifts if drift.key == found.key),
                    None)
        if same is None or same.repair is None:
            return False
        _REPAIRS[same.repair](
            session, host, same, f'{same.name} of {same.subject} by {actor}: '
                                 f'{"; ".join(same.says.values())}')
        return True
    return db.write(work)


def _repair_device(session: orm.Session, host: host_db.HostRow | None,
                   found: drift_mod.Drift, detail: str) -> None:
    """Put a device into the state that its assignment, or its lack, needs."""
    assert host is not None
    assert found.repair is not None
    before = host_rows.load_one(session, host)
    device = before.device(found.subject)
    rows = before.apply(device, _DEVICE_EVENTS[found.repair])
    if found.repair is _Repair.QUARANTINE:
        rows = holds.add(rows, device, device_rules.HoldKind.FAILED,
                         'its state had no assignment; see "gpgpu-manage '
                         'doctor"')
    settle.settle(session, before, rows.note('repair', [device], detail))


def _repair_capacity(session: orm.Session, host: host_db.HostRow | None,
                     found: drift_mod.Drift, detail: str) -> None:
    assert host is not None
    settle.change(session, host,
                  lambda rows: rows.note_host('repair', detail))


def _repair_usage(session: orm.Session, host: host_db.HostRow | None,
                  found: drift_mod.Drift, detail: str) -> None:
    ended = assignment_db.ended_at(session, found.subject)
    usage_db.end(session, [found.subject], ended or clock.utc(session))
    event_db.add(session, 'repair', found.host, detail)


_REPAIRS: Mapping[_Repair, Callable[
    [orm.Session, host_db.HostRow | None, drift_mod.Drift, str], None]] = {
        _Repair.ADOPT: _repair_device,
        _Repair.QUARANTINE: _repair_device,
        _Repair.CAPACITY: _repair_capacity,
        _Repair.USAGE: _repair_usage}
