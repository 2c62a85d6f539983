# SPDX-License-Identifier: Apache-2.0
"""GPU groups, as operators see and set them."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import host_states
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import host_state
from gpgpu_plugin.domain import link_table
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import partition_state
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import admin as objects


def list_all(db: api.Database, host: str | None = None,
             variant: str | None = None, limit: int = objects.PAGE_SIZE,
             marker: str | None = None, *,
             silent_after: float | None = None,
             ) -> tuple[objects.GroupInfo, ...]:
    """Return a page of groups (Conductor.group_list).

    Nothing remains on a host that is silent.

    :param silent_after: see conductor.host_states
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
        states = host_states.HostStates(session, silent_after)
        infos = [info(name, loaded[group_id])
                 for name, _, group_id in found]
        return tuple(dataclasses.replace(
            group, host_state=states.of(group.host),
            remaining=0 if states.is_closed(group.host) else group.remaining,
            **_closed(group, states.of(group.host))
            if states.is_closed(group.host) else {})
            for group in infos)


def _closed(group: objects.GroupInfo,
            state: host_state.HostState | None) -> dict[str, typing.Any]:
    """Return the fields of a group whose host gets no instances."""
    states = dict(group.states)
    if state is host_state.HostState.RESTORED and 'available' in states:
        states[device_rules.UNKNOWN] = states.pop('available')
    return {'states': states, 'free_partitions': (), 'partition_states': {
        name: str(partition_state.PartitionState.UNAVAILABLE)
        if state == partition_state.PartitionState.FREE else state
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
            name: str(state) for name, state in partition_state.states(
                named, [gpu_id for gpu_id, available
                        in offer.available_by_gpu.items() if available],
                _uses(loaded)).items()},
        'links_problem': group.links.problem or None}


def _uses(loaded: capacity.LoadedGroup) -> list[partition_state.Use]:
    """Return which GPUs each instance has."""
    gpus = {child.id: gpu_id for gpu_id, children
            in loaded.value.children.items() for child in children}
    found: dict[tuple[str, str, str, bool], set[str]] = {}
    for row in loaded.rows.assignments:
        key = (row.instance_uuid, row.role, row.migration_uuid,
               row.vgpu_type == naming.PASSTHROUGH)
        found.setdefault(key, set()).add(gpus.get(
            row.device.stable_id, row.device.stable_id))
    return [partition_state.Use(gpus=frozenset(ids), is_whole=key[-1])
            for key, ids in found.items()]


def set_(db: api.Database, host: str, variant: str,
         allocation_policy: str | None,
         caller: variant_sweep.Caller = variant_sweep.PATIENT,
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
            caller: variant_sweep.Caller) -> None:
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
    stated = None if table is None else link_table.normalize(table)

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
