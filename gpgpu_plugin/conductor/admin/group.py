# SPDX-License-Identifier: Apache-2.0
"""GPU groups and their vGPU types, as operators set them."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import type_sync
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor.admin import host as host_mod
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import event
from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import variant as rules
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import admin as objects


def list_all(db: api.Database, host: str | None = None,
             variant: str | None = None, limit: int = objects.PAGE_SIZE,
             marker: str | None = None, *,
             silent_after: float | None = None,
             ) -> tuple[objects.GroupInfo, ...]:
    """Return a page of groups (Conductor.group_list).

    Nothing remains on a host that is silent.

    :param silent_after: see conductor.admin.host
    """
    with db.reader() as session:
        if host is not None:
            host_db.get(session, host)
        if variant is not None:
            variant_db.get(session, variant)
        found = group_db.listed(
            session, pages.size(limit), host, variant, marker)
        loaded = {
            group.rows.id: group
            for groups in capacity.load(session, host_db.by_ids(
                session, {host_id for _, host_id, _ in found})).values()
            for group in groups}
        states = host_mod.HostStates(session, silent_after)
        infos = [info(name, loaded[group_id])
                 for name, _, group_id in found]
        return tuple(dataclasses.replace(
            group, host_state=states.of(group.host),
            remaining=0 if states.is_closed(group.host) else group.remaining,
            **_closed(group, states.of(group.host))
            if states.is_closed(group.host) else {})
            for group in infos)


def _closed(group: objects.GroupInfo,
            state: host_rules.HostState | None) -> dict[str, typing.Any]:
    """Return the fields of a group whose host gets no instances."""
    states = dict(group.states)
    if state is host_rules.HostState.RESTORED and 'available' in states:
        states[device_rules.UNKNOWN] = states.pop('available')
    return {'states': states, 'free_partitions': (), 'partition_states': {
        name: str(fabric.PartitionState.UNAVAILABLE)
        if state == fabric.PartitionState.FREE else state
        for name, state in group.partition_states.items()}}


def info(host: str, loaded: capacity.LoadedGroup) -> objects.GroupInfo:
    """Return a group as operators see it."""
    group = loaded.value
    whole = group.by_name[naming.PASSTHROUGH]
    desired = group.desired(whole)
    return objects.GroupInfo(
        host=host, variant=group.variant.name,
        resource_class=group.variant.resource_class,
        provider_uuid=group.provider_uuid,
        allocation_policy=group.allocation_policy,
        policy_source='group' if loaded.rows.own_policy else 'variant',
        cleaning_policy=group.variant.cleaning_policy,
        total=desired.total if desired else 0,
        reserved=desired.reserved if desired else 0,
        remaining=group.available(whole),
        assigned=group.assigned(whole), states=group.shown_states(),
        **_links(loaded))


def _links(loaded: capacity.LoadedGroup) -> dict[str, typing.Any]:
    """Return the fields of GroupInfo about link partitions."""
    group = loaded.value
    if group.links is None:
        return {}
    offer = group.offer(group.by_name[naming.PASSTHROUGH])
    addresses = {gpu.id: gpu.function.address for gpu in group.gpus
                 if gpu.function is not None}
    named = dict(zip(group.links.names, group.links.partitions, strict=True))
    return {
        'links_source': group.links_source,
        'fabric': group.links.fabric,
        'link_partitions': {
            name: ' '.join(sorted(addresses[gpu_id] for gpu_id in part))
            for name, part in named.items()},
        'free_partitions': tuple(name for name, part in named.items()
                                 if part in offer.free_partitions),
        'partition_states': {
            name: str(state) for name, state in fabric.partition_states(
                named, [gpu_id for gpu_id, available
                        in offer.available_by_gpu.items() if available],
                _uses(loaded)).items()},
        'links_problem': group.links.problem or None}


def _uses(loaded: capacity.LoadedGroup) -> list[fabric.PartitionUse]:
    """Return which GPUs each instance has."""
    gpus = {child.id: gpu_id for gpu_id, children
            in loaded.value.children.items() for child in children}
    found: dict[tuple[str, str, str, bool], set[str]] = {}
    for row in loaded.rows.assignments:
        key = (row.instance_uuid, row.role, row.migration_uuid,
               row.vgpu_type == naming.PASSTHROUGH)
        found.setdefault(key, set()).add(gpus.get(
            row.device.stable_id, row.device.stable_id))
    return [fabric.PartitionUse(gpus=frozenset(ids), is_whole=key[-1])
            for key, ids in found.items()]


def set_(db: api.Database, host: str, variant: str,
         allocation_policy: str | None,
         caller: variant_sweep.SweepCaller = variant_sweep.PATIENT,
         ) -> tuple[objects.GroupInfo, ...]:
    """Set the allocation policy of a group (Conductor.group_set)."""
    if allocation_policy is not None:
        request.check_allocation_policy(allocation_policy)
    db.write(functools.partial(
        _set_on, host_name=host, variant=variant,
        allocation_policy=allocation_policy, caller=caller))
    return list_all(db, host, variant)


def _set_on(session: orm.Session, host_name: str, variant: str,
            allocation_policy: str | None,
            caller: variant_sweep.SweepCaller) -> None:
    """Set the policy of one group; None: that of its variant."""
    before, rows, group = _lock(session, host_name, variant)
    row = variant_db.get(session, variant)
    # Schedulers predict by it what a claim takes.
    group = dataclasses.replace(
        group, own_policy=allocation_policy is not None,
        allocation_policy=allocation_policy or row.value.allocation_policy)
    settle.settle(session, before, _with(rows, group).note_host(
        'group_set',
        f'{variant}: allocation policy {group.allocation_policy}, of the '
        f'{"group" if group.own_policy else "variant"}'))
    caller.check_wanted()


def _with(rows: host_rows.HostRows,
          changed: host_rows.GroupRows) -> host_rows.HostRows:
    """Return the rows with a group that changed."""
    return rows.put_groups([
        changed if group.id == changed.id else group
        for group in rows.bare_groups])


def _lock(session: orm.Session, host_name: str, variant: str,
          ) -> tuple[host_rows.HostRows, host_rows.HostRows,
                     host_rows.GroupRows]:
    """Return the rows of a host, as read and up to date, and its group.

    The host is locked.

    :raises NotFound: there is no such host or group
    """
    before = host_rows.load_one(
        session, host_db.lock_known(session, host_name))
    rows = variant_matching.up_to_date(session, before)
    groups = {group.variant.name: group for group in rows.bare_groups}
    if variant not in groups:
        raise exception.NotFound(
            kind='group',
            name=f'{variant} on {host_name} (known there: '
                 f'{", ".join(groups) or "none"})')
    return before, rows, groups[variant]


def set_links(db: api.Database, host_name: str, variant: str,
              table: str | None, check_wanted: Callable[[], None],
              ) -> tuple[objects.GroupInfo, ...]:
    """Set the link partitions of one group (Conductor.group_links_set)."""
    stated = None if table is None else fabric.normalize_link_table(table)

    def work(session: orm.Session) -> None:
        before, rows, group = _lock(session, host_name, variant)
        after = _with(rows, dataclasses.replace(group, own_links=stated))
        if stated is not None:
            _check_table(after, group.id, stated)
        settle.settle(session, before, after.note_host(
            'group_set',
            f'{variant}: link partitions {stated or "of the variant"}'))
        check_wanted()
    db.write(work)
    return list_all(db, host_name, variant)


def _check_table(rows: host_rows.HostRows, group_id: int,
                 stated: str) -> None:
    """Refuse a table that names GPUs which the group does not have.

    :raises Invalid: it names them
    """
    [group] = [group.value for group in capacity.groups(rows)
               if group.rows.id == group_id]
    if group.links is not None and group.links.problem:
        raise exception.Invalid(
            field='link partitions', value=stated,
            expected=f'the GPUs of {group.variant.name} on {rows.host.name}: '
                     f'{group.links.problem}')


# -- vGPU types of groups, as operators see and enable them.


def list_types(db: api.Database, host: str | None = None,
               variant: str | None = None, limit: int = objects.PAGE_SIZE,
               marker: str | None = None, *, vgpu_type: str | None = None,
               only_enabled: bool = False, silent_after: float | None = None,
               ) -> tuple[objects.VGPUTypeInfo, ...]:
    """Return a page of types of groups (Conductor.vgpu_type_list).

    Nothing remains on a host that is silent or disabled.

    :param silent_after: see conductor.admin.host
    """
    with db.reader() as session:
        if host is not None:
            host_db.get(session, host)
        if variant is not None:
            variant_db.get(session, variant)
        states = host_mod.HostStates(session, silent_after)
        return tuple(dataclasses.replace(
            found, host_state=states.of(found.host),
            remaining_capacity=0 if states.is_closed(found.host)
            else found.remaining_capacity)
            for found in _infos(session, group_db.types_listed(
                session, pages.size(limit), host, variant, marker,
                vgpu_type=vgpu_type, only_enabled=only_enabled)))


def _infos(session: orm.Session, found: Sequence[group_db.TypeOfGroup],
           ) -> tuple[objects.VGPUTypeInfo, ...]:
    """Return types with their stored capacities."""
    assigned = assignment_db.counts_by_type(
        session, {of_group.group_id for of_group in found})
    return tuple(_info(of_group, assigned.get(
        (of_group.group_id, of_group.type.vgpu_type), 0))
        for of_group in found)


def _info(of_group: group_db.TypeOfGroup,
          assigned: int) -> objects.VGPUTypeInfo:
    variant, row = of_group.variant, of_group.type
    return objects.VGPUTypeInfo(
        host=of_group.host, variant=variant.name, vgpu_type=row.vgpu_type,
        resource_class=variant.class_of(row.vgpu_type),
        enabled=row.enabled, max_vgpu_per_pgpu=row.max_vgpu_per_pgpu,
        max_capacity=row.max_capacity,
        remaining_capacity=row.remaining_capacity, assigned=assigned,
        **{name: getattr(row, name) for name in type_sync.PROPERTIES}
        | {'video_ram': _video_ram(variant, row)})


def _video_ram(variant: rules.Variant,
               row: group_db.VGPUTypeRow) -> int | None:
    """Return the MiB of memory of a type; None: unknown.

    The variant's count of a whole GPU is exact.
    """
    return type_sync.video_ram_of_type(
        row.vgpu_type, variant.memory_mib) or row.video_ram


def set_type_enabled(db: api.Database, variant: str, vgpu_type: str,
                     host: str | None, *, enabled: bool,
                     caller: variant_sweep.SweepCaller = variant_sweep.PATIENT,
                     ) -> tuple[objects.VGPUTypeInfo, ...]:
    """Enable or disable claims of a type (ConductorAPI.vgpu_type_set).

    On all hosts this is a change of the variant (``variant_sweep``).

    :param host: None for all hosts, including those that report later
    :returns: the type on the first hosts, those without the change too
    """
    if host is None:
        db.write(functools.partial(
            _set_everywhere, variant=variant, vgpu_type=vgpu_type,
            enabled=enabled, caller=caller))
        variant_sweep.run(db, caller)
    else:
        if db.write(functools.partial(
                _vgpu_type_set_on, name=host, variant=variant,
                vgpu_type=vgpu_type, enabled=enabled, caller=caller)):
            caller.tell(host)
    with db.reader() as session:
        return _infos(session, group_db.types_listed(
            session, objects.PAGE_SIZE, host, variant, vgpu_type=vgpu_type))


def _set_everywhere(session: orm.Session, variant: str, vgpu_type: str, *,
                    enabled: bool, caller: variant_sweep.SweepCaller) -> None:
    """Enable or disable a type on all hosts, and on those that come later."""
    version = variant_db.lock(session)
    row = _settable(session, variant, vgpu_type, None, enabled=enabled)
    others = row.enabled_types - {vgpu_type}
    variant_db.store(session, dataclasses.replace(
        row, version=version,
        enabled_types=others | {vgpu_type} if enabled else others))
    variant_db.add_change(session, variant_db.Change(
        version=version, variant_id=row.id, vgpu_type=vgpu_type,
        enabled=enabled))
    event_db.add(session, _kind(enabled=enabled),
                 detail=f'{vgpu_type} of {variant}')
    caller.check_wanted()


def _vgpu_type_set_on(session: orm.Session, name: str, variant: str,
                      vgpu_type: str, *,
                      enabled: bool,
                      caller: variant_sweep.SweepCaller) -> bool:
    """Enable or disable a type on one host.

    :returns: whether the host changed
    """
    host = host_db.lock_known(session, name)
    # After the host, in the order of reports. Two types with one class must
    # not be enabled at the same time.
    host_db.lock_row(session, 'variants')
    row = _settable(session, variant, vgpu_type, name, enabled=enabled)
    change = variant_db.Change(
        version=0, variant_id=row.id, vgpu_type=vgpu_type, enabled=enabled)
    after = settle.change(session, host, lambda rows: (
        variant_matching.changed(rows, [change]).note_host(
            _kind(enabled=enabled), f'{vgpu_type} of {variant}')))
    caller.check_wanted()
    return after.generation != host.generation


def _settable(session: orm.Session, variant: str, vgpu_type: str,
              host: str | None, *, enabled: bool) -> variant_db.VariantRow:
    """Return the variant if its type can be enabled or disabled.

    :raises NotFound: no GPU of the variant (on the host) has such a type
    :raises Conflict: another type has the resource class
    """
    row = variant_db.get(session, variant)
    known = group_db.types_of_variant(session, row.id, host)
    if vgpu_type not in known:
        where = f' on {host}' if host is not None else ''
        raise exception.NotFound(
            kind='vGPU type',
            name=f'{vgpu_type} of {variant}{where} (known: '
                 f'{", ".join(known) or "none; no host has such a GPU"})')
    if enabled:
        _check_class(session, row, vgpu_type)
    return row


def _kind(*, enabled: bool) -> event.Kind:
    return 'type_enable' if enabled else 'type_disable'


def _check_class(session: orm.Session, row: variant_db.VariantRow,
                 vgpu_type: str) -> None:
    """Refuse a type whose resource class belongs to something else.

    :raises Conflict: it names the owner of the class
    """
    if vgpu_type == naming.PASSTHROUGH:
        return
    wanted = naming.resource_class(row.value.name, vgpu_type)
    listed = group_db.types_by_variant(session, only_listed=True)
    owners = {
        naming.resource_class(name, other): f'type {other} of {name}'
        # What is being enabled on all hosts may not be listed on one yet.
        for name, other in (*listed, *(
            (variant.value.name, name) for variant in variant_db.all(session)
            for name in variant.enabled_types))
        if other != naming.PASSTHROUGH
        and (name, other) != (row.value.name, vgpu_type)}
    owners |= {variant.resource_class: f'variant {variant.name}'
               for variant in variant_db.values(session)}
    if wanted in owners:
        raise exception.Conflict(
            kind='vGPU type', name=f'{vgpu_type} of {row.value.name}',
            reason=f'{owners[wanted]} has the resource class {wanted} already')
