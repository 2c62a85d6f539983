# SPDX-License-Identifier: Apache-2.0
"""Drifts in the database, and their repairs (gpgpu-manage doctor).

A repair examines its host once more in the transaction that repairs, after
the host was locked.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import examination as examination_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.doctor import database
from gpgpu_plugin.doctor import drift as drift_mod
from gpgpu_plugin.doctor import view
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import host_state
from gpgpu_plugin.domain import variant as variant_rules
from gpgpu_plugin.rpc import doctor_contract

_Repair = drift_mod.Repair
_DEVICE_EVENTS = {
    _Repair.ADOPT: device_rules.DeviceEvent.ADOPT,
    _Repair.QUARANTINE: device_rules.DeviceEvent.RELEASE}


def page(db: api.Database, host: str | None, limit: int,
         marker: str | None) -> tuple[view.HostRecord, ...]:
    """Return a page of hosts (Conductor.examine_database)."""
    if limit < 1:
        raise exception.Invalid(
            field='limit', value=limit, expected='a number of rows above 0')
    with db.reader() as session:
        hosts = ([host_db.get(session, host)] if host is not None
                 else host_db.listed(session, min(
                    limit, doctor_contract.HOSTS_AT_ONCE), marker))
        return _records(session, hosts)


def cloud(db: api.Database) -> view.CloudRecord:
    """Return what belongs to no host (Conductor.examine_cloud)."""
    with db.reader() as session:
        classes = {variant.class_of(vgpu_type)
                   for variant, vgpu_type
                   in examination_db.resource_classes(session)}
        classes |= {row.resource_class for row in variant_db.values(session)}
        return view.CloudRecord(
            resource_classes=tuple(sorted(classes)), drifts=(
                *_variants(session), *_keys(session),
                *_usages_of_unknown_hosts(session)))


def _variants(session: orm.Session) -> Iterator[drift_mod.Drift]:
    for variant in variant_db.values(session):
        try:
            variant_rules.check(variant)
        except exception.Invalid as exc:
            yield drift_mod.of('rows_unreadable', None, variant.name,
                               database=f'variant {variant.name}: {exc}')


def _keys(session: orm.Session) -> list[drift_mod.Drift]:
    return [
        drift_mod.of('key_of_unknown_host', name, f'key {number}',
                     database=f'{name} is no host and has key {number}')
        for name, number in examination_db.keys_of_unknown_hosts(session)]


def _usages_of_unknown_hosts(session: orm.Session) -> list[drift_mod.Drift]:
    return [drift for host, uuid
            in examination_db.usages_of_unknown_hosts(session)
            for drift in database.usages(host, [uuid], ())]


def _records(session: orm.Session, hosts: Sequence[host_db.HostRow],
             ) -> tuple[view.HostRecord, ...]:
    """Return what the database says; a host that cannot be read is a drift."""
    try:
        return _read(session, hosts)
    except (ValueError, exception.Invalid) as exc:
        if len(hosts) > 1:
            return tuple(record for host in hosts
                         for record in _records(session, [host]))
        [host] = hosts
        return (view.HostRecord(
            host=host.name, node_uuid=host.node_uuid, groups=(),
            assignments=(), drifts=(drift_mod.of(
                'rows_unreadable', host.name, host.name,
                database=str(exc)),)),)


def _read(session: orm.Session, hosts: Sequence[host_db.HostRow],
          ) -> tuple[view.HostRecord, ...]:
    """Return what the database says, in as many statements for all hosts.

    :raises ValueError: a column has a value that is none of its values
    :raises Invalid: the same
    """
    ids = [host.id for host in hosts]
    loaded = host_rows.load(session, hosts)
    busy = examination_db.busy_devices(session, ids)
    usages = examination_db.running_usages(
        session, [host.name for host in hosts])
    # A database that lost its unique keys may have two of one device.
    assigned: dict[int, list[host_rows.Assignment]] = {
        host: [] for host in ids}
    for row, *_ in assignment_db.of_hosts(session, ids):
        assigned[row.host_id].append(row)
    return tuple(_record(
        loaded[host.id], assigned[host.id], busy.get(host.id, ()),
        usages.get(host.name, ())) for host in hosts)


def _record(loaded: host_rows.HostRows,
            assigned: Sequence[host_rows.Assignment],
            busy: Collection[tuple[str, str, str]],
            usages: Sequence[str]) -> view.HostRecord:
    host, groups = loaded.host, capacity.groups(loaded)
    providers = {group.rows.id: group.value.provider_uuid
                 for group in groups}
    rows = tuple(_assigned(row, providers) for row in assigned)
    return view.HostRecord(
        host=host.name, node_uuid=host.node_uuid, assignments=rows,
        groups=inventory.inventory(host, groups).groups,
        drifts=database.compare(view.HostRows(
            host=host.name, assignments=rows, usages=tuple(usages),
            restored_since=(host_state.utc(host.heard_at) if loaded.is_held(
                hold.HostHoldKind.RESTORED) else None),
            busy_devices=tuple(
                view.DeviceRow(uuid=uuid, address=address, state=state)
                for uuid, address, state in busy),
            capacities=tuple(
                _capacity(group, row) for group in groups
                for row in group.rows.types))))


def _assigned(row: host_rows.Assignment,
              providers: Mapping[int, str]) -> view.AssignedRow:
    return view.AssignedRow(
        uuid=row.uuid, instance_uuid=row.instance_uuid,
        device_uuid=row.device.uuid, address=row.device.address,
        device_state=row.device.state,
        provider_uuid=providers.get(row.device.group_id or 0),
        resource_class=row.resource_class, allocated=row.allocated)


def _capacity(group: capacity.LoadedGroup,
              row: inventory.TypeRow) -> view.CapacityRow:
    now = inventory.with_capacity(group, row)
    return view.CapacityRow(
        variant=group.rows.variant.name, vgpu_type=row.vgpu_type,
        stored=_numbers(row), computed=_numbers(now))


def _numbers(row: inventory.TypeRow) -> tuple[int, int, int]:
    return row.max_vgpu_per_pgpu, row.max_capacity, row.remaining_capacity


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
        _REPAIRS[same.repair](session, host, same)
        event_db.add(
            session, 'repair', found.host,
            detail=f'{same.name} of {same.subject} by {actor}: '
                   f'{"; ".join(same.says.values())}')
        return True
    return db.write(work)


def _repair_device(session: orm.Session, host: host_db.HostRow | None,
                   found: drift_mod.Drift) -> None:
    """Put a device into the state that its assignment, or its lack, needs."""
    assert host is not None
    assert found.repair is not None
    before = host_rows.load_one(session, host)
    device = before.device(found.subject)
    rows = before.apply(device, _DEVICE_EVENTS[found.repair])
    if found.repair is _Repair.QUARANTINE:
        rows = holds.add(rows, device, hold.HoldKind.FAILED,
                         'its state had no assignment; see "gpgpu-manage '
                         'doctor"')
    settle.settle(session, before, rows)


def _repair_capacity(session: orm.Session, host: host_db.HostRow | None,
                     found: drift_mod.Drift) -> None:
    assert host is not None
    settle.change(session, host, lambda rows: rows)


def _repair_usage(session: orm.Session, host: host_db.HostRow | None,
                  found: drift_mod.Drift) -> None:
    ended = examination_db.ended_at(session, found.subject)
    usage_db.end(session, [found.subject], ended or clock.utc(session))


_REPAIRS: Mapping[_Repair, Callable[
    [orm.Session, host_db.HostRow | None, drift_mod.Drift], None]] = {
        _Repair.ADOPT: _repair_device,
        _Repair.QUARANTINE: _repair_device,
        _Repair.CAPACITY: _repair_capacity,
        _Repair.USAGE: _repair_usage}
