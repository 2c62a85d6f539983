# SPDX-License-Identifier: Apache-2.0
"""vGPU types of groups, as operators see and enable them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import host_states
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import type_sync
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor import video_ram
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.db import vgpu_type as vgpu_type_db
from gpgpu_plugin.domain import event
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import variant as rules
from gpgpu_plugin.objects import admin as objects


def list_all(db: api.Database, host: str | None = None,
             variant: str | None = None, limit: int = objects.PAGE_SIZE,
             marker: str | None = None, *, vgpu_type: str | None = None,
             only_enabled: bool = False, silent_after: float | None = None,
             ) -> tuple[objects.VGPUTypeInfo, ...]:
    """Return a page of types of groups (Conductor.vgpu_type_list).

    Nothing remains on a host that is silent or disabled.

    :param silent_after: see conductor.host_states
    """
    with db.reader() as session:
        if host is not None:
            host_db.get(session, host)
        if variant is not None:
            variant_db.get(session, variant)
        states = host_states.HostStates(session, silent_after)
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
               row: vgpu_type_db.VGPUTypeRow) -> int | None:
    """Return the MiB of memory of a type; None: unknown.

    The variant's count of a whole GPU is exact.
    """
    return video_ram.of_type(
        row.vgpu_type, variant.memory_mib) or row.video_ram


def set_enabled(db: api.Database, variant: str, vgpu_type: str,
                host: str | None, *, enabled: bool,
                caller: variant_sweep.Caller = variant_sweep.PATIENT,
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
                _set_on, name=host, variant=variant, vgpu_type=vgpu_type,
                enabled=enabled, caller=caller)):
            caller.tell(host)
    with db.reader() as session:
        return _infos(session, group_db.types_listed(
            session, objects.PAGE_SIZE, host, variant, vgpu_type=vgpu_type))


def _set_everywhere(session: orm.Session, variant: str, vgpu_type: str, *,
                    enabled: bool, caller: variant_sweep.Caller) -> None:
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


def _set_on(session: orm.Session, name: str, variant: str, vgpu_type: str, *,
            enabled: bool, caller: variant_sweep.Caller) -> bool:
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
    known = vgpu_type_db.of_variant(session, row.id, host)
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
    listed = vgpu_type_db.by_variant(session, only_listed=True)
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
