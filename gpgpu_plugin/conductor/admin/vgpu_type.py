#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""vGPU types of groups, as operators see and enable them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import type_sync
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.db import vgpu_type as vgpu_type_db
from gpgpu_plugin.domain import naming
from gpgpu_plugin.objects import admin as objects


def list_all(db: api.Database, host: str | None = None,
             variant: str | None = None, limit: int = objects.PAGE_SIZE,
             marker: str | None = None,
             ) -> tuple[objects.VGPUTypeInfo, ...]:
    """Return a page of types of groups (Conductor.vgpu_type_list)."""
    with db.reader() as session:
        if host is not None:
            host_db.get(session, host)
        if variant is not None:
            variant_db.get(session, variant)
        return _infos(session, group_db.types_listed(
            session, pages.size(limit), host, variant, marker))


def _infos(session: orm.Session,
           found: Sequence[tuple[str, models.Group, models.VGPUType]],
           ) -> tuple[objects.VGPUTypeInfo, ...]:
    """Return types with their stored capacities."""
    assigned = assignment_db.counts_by_type(
        session, {group.id for _, group, _ in found})
    return tuple(
        _info(name, group, row, assigned.get((group.id, row.vgpu_type), 0))
        for name, group, row in found)


def _info(host: str, group: models.Group, row: models.VGPUType,
          assigned: int) -> objects.VGPUTypeInfo:
    variant = variant_db.to_domain(group.variant)
    return objects.VGPUTypeInfo(
        host=host, variant=variant.name, vgpu_type=row.vgpu_type,
        resource_class=variant.class_of(row.vgpu_type),
        enabled=row.enabled, max_vgpu_per_pgpu=row.max_vgpu_per_pgpu,
        max_capacity=row.max_capacity,
        remaining_capacity=row.remaining_capacity, assigned=assigned,
        **{name: getattr(row, name) for name in type_sync.PROPERTIES})


def set_enabled(db: api.Database, variant: str, vgpu_type: str,
                host: str | None, *, enabled: bool,
                ) -> tuple[tuple[objects.VGPUTypeInfo, ...], list[str]]:
    """Enable or disable claims of a type (ConductorAPI.vgpu_type_set).

    :param host: None for all hosts, including those that report later
    :returns: the types concerned, and the hosts that changed
    """
    def work(session: orm.Session,
             ) -> tuple[tuple[objects.VGPUTypeInfo, ...], list[str]]:
        host_db.lock_row(session, 'variants')
        hosts = {row.id: row for row in host_db.lock_all(session)}
        row = variant_db.get(session, variant)
        if host is not None:
            host_db.get(session, host)
        groups = [group for _, group in group_db.with_host_names(
            session, host, variant)]
        rows = [(hosts[group.host_id], known) for group in groups
                for known in group.types if known.vgpu_type == vgpu_type]
        if not rows:
            raise _unknown(variant, vgpu_type, host, groups)
        if enabled:
            _check_class(session, row, vgpu_type)
        if host is None:
            _set_for_new_groups(row, vgpu_type, enabled=enabled)
        changed = _set(rows, enabled=enabled)
        event_db.add(
            session, 'type_enable' if enabled else 'type_disable', host,
            detail=f'{vgpu_type} of {variant}')
        inventory.refresh_all(session, [row.id for row in changed])
        return (_infos(session, [
                    (hosts[group.host_id].name, group, known)
                    for group in groups for known in group.types
                    if known.vgpu_type == vgpu_type]),
                sorted(row.name for row in changed))
    return db.write(work)


def _set_for_new_groups(row: models.Variant, vgpu_type: str, *,
                        enabled: bool) -> None:
    names = variant_db.enabled_types(row) - {vgpu_type}
    row.enabled_types = json.dumps(
        sorted(names | {vgpu_type} if enabled else names))


def _set(rows: Iterable[tuple[models.Host, models.VGPUType]], *,
         enabled: bool) -> list[models.Host]:
    """Enable or disable types. :returns: the hosts that changed"""
    changed = []
    for host, row in rows:
        if row.enabled != enabled:
            row.enabled = enabled
            row.listed = row.listed or enabled
            host_db.changed(host)
            changed.append(host)
    return changed


def _unknown(variant: str, vgpu_type: str, host: str | None,
             groups: Iterable[models.Group]) -> exception.NotFound:
    known = sorted({row.vgpu_type for group in groups for row in group.types})
    where = f' on {host}' if host is not None else ''
    return exception.NotFound(
        kind='vGPU type',
        name=f'{vgpu_type} of {variant}{where} (known: '
             f'{", ".join(known) or "none; no host has such a GPU"})')


def _check_class(session: orm.Session, row: models.Variant,
                 vgpu_type: str) -> None:
    """Refuse a type whose resource class belongs to something else.

    :raises Conflict: it names the owner of the class
    """
    if vgpu_type == naming.PASSTHROUGH:
        return
    wanted = naming.resource_class(row.name, vgpu_type)
    owners = {
        naming.resource_class(name, other): f'type {other} of {name}'
        for name, other in vgpu_type_db.listed(session)
        if other != naming.PASSTHROUGH
        and (name, other) != (row.name, vgpu_type)}
    owners |= {variant.resource_class: f'variant {variant.name}'
               for variant in variant_db.all(session)}
    if wanted in owners:
        raise exception.Conflict(
            kind='vGPU type', name=f'{vgpu_type} of {row.name}',
            reason=f'{owners[wanted]} has the resource class {wanted} already')
