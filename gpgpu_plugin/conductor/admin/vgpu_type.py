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
"""The types that groups offer: found on their cards, enabled by operators."""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.db import api
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.vgpu import vgpu_type as rules
from gpgpu_plugin.objects import admin as objects

_FACTS = ('video_ram', 'max_heads', 'max_resolution_x', 'max_resolution_y')


def sync(session: orm.Session, host_ids: Sequence[int]) -> None:
    """Bring the types of (locked) hosts' groups to what their cards have.

    One that no card has any more stays while Placement may know it.
    """
    for states in capacity.load(session, host_ids).values():
        for state in states:
            _sync(session, state)
    session.flush()


def _sync(session: orm.Session, state: capacity.GroupCapacity) -> None:
    found: dict[str, rules.VGPUType] = {}
    for card in state.shared:
        for name, kind in card.types.items():
            found.setdefault(name, kind)
    rows = {row.vgpu_type: row for row in state.group.types}
    enabled = variant_db.enabled_types(state.group.variant) if (
        found.keys() - rows.keys()) else set()
    for name in sorted(found):
        if name not in rows:
            rows[name] = models.VGPUType(
                vgpu_type=name, enabled=name in enabled,
                listed=name in enabled)
            state.group.types.append(rows[name])
        for fact in _FACTS:
            setattr(rows[name], fact, getattr(found[name], fact))
    for name, row in rows.items():
        if name not in found and name != naming.PASSTHROUGH and (
                not row.listed):
            state.group.types.remove(row)


def list_all(db: api.Database, host: str | None = None,
             variant: str | None = None,
             ) -> tuple[objects.VGPUTypeInfo, ...]:
    """Types of groups with their capacity (ConductorAPI.vgpu_type_list)."""
    with db.reader() as session:
        if host is not None:
            host_db.get(session, host)
        if variant is not None:
            variant_db.get(session, variant)
        return _views(session, host, variant)


def _groups(session: orm.Session, host: str | None, variant: str | None,
            ) -> list[tuple[str, models.Group]]:
    """Groups with the names of their hosts, by these and by variant."""
    query = (sa.select(models.Host.name, models.Group)
             .join(models.Host, models.Group.host_id == models.Host.id)
             .options(orm.selectinload(models.Group.types))
             .where(models.Host.deleted == 0)
             .order_by(models.Host.name, models.Group.id))
    if host is not None:
        query = query.where(models.Host.name == host)
    return [(name, group) for name, group in session.execute(query)
            if variant in (None, group.variant.name)]


def _views(session: orm.Session, host: str | None, variant: str | None,
           vgpu_type: str | None = None) -> tuple[objects.VGPUTypeInfo, ...]:
    """As stored; what is held is counted, of all hosts at once."""
    held = {(group_id, name): count for group_id, name, count
            in session.execute(
                sa.select(models.Device.group_id,
                          models.Assignment.vgpu_type, sa.func.count())
                .join(models.Device).where(models.Assignment.active == 1)
                .group_by(models.Device.group_id,
                          models.Assignment.vgpu_type))}
    return tuple(
        _view(name, group, kind, held.get((group.id, kind.vgpu_type), 0))
        for name, group in _groups(session, host, variant)
        for kind in group.types if vgpu_type in (None, kind.vgpu_type))


def _view(host: str, group: models.Group, kind: models.VGPUType,
          held: int) -> objects.VGPUTypeInfo:
    return objects.VGPUTypeInfo(
        host=host, variant=group.variant.name, vgpu_type=kind.vgpu_type,
        resource_class=capacity.resource_class(group.variant, kind),
        enabled=kind.enabled, max_vgpu_per_pgpu=kind.max_vgpu_per_pgpu,
        max_capacity=kind.max_capacity,
        remaining_capacity=kind.remaining_capacity, assigned=held,
        **{name: getattr(kind, name) for name in _FACTS})


def set_enabled(db: api.Database, variant: str, vgpu_type: str,
                host: str | None, *, enabled: bool,
                ) -> tuple[tuple[objects.VGPUTypeInfo, ...], list[str]]:
    """Offer a type, or offer it no more (ConductorAPI.vgpu_type_set).

    :param host: None: on all hosts, those to come as well
    :returns: the types that it is about, and the hosts that changed
    """
    def work(session: orm.Session,
             ) -> tuple[tuple[objects.VGPUTypeInfo, ...], list[str]]:
        host_db.lock_row(session, 'variants')
        hosts = {each.id: each for each in host_db.lock_all(session)}
        row = variant_db.get(session, variant)
        if host is not None:
            host_db.get(session, host)
        groups = [group for _, group in _groups(session, host, variant)]
        kinds = [(hosts[group.host_id], kind) for group in groups
                 for kind in group.types if kind.vgpu_type == vgpu_type]
        if not kinds:
            raise _unknown(variant, vgpu_type, host, groups)
        if enabled:
            _check_class(session, row, vgpu_type)
        if host is None:
            names = variant_db.enabled_types(row)
            (names.add if enabled else names.discard)(vgpu_type)
            row.enabled_types = json.dumps(sorted(names))
        changed = []
        for each, kind in kinds:
            if kind.enabled != enabled:
                kind.enabled = enabled
                kind.listed = kind.listed or enabled
                host_db.changed(each)
                changed.append(each)
        event_db.add(
            session, 'type_enable' if enabled else 'type_disable', host,
            detail=f'{vgpu_type} of {variant}')
        inventory.refresh_all(session, [each.id for each in changed])
        return (_views(session, host, variant, vgpu_type),
                sorted(each.name for each in changed))
    return db.write(work)


def _unknown(variant: str, vgpu_type: str, host: str | None,
             groups: Iterable[models.Group]) -> exception.NotFound:
    known = sorted({kind.vgpu_type for group in groups
                    for kind in group.types})
    where = f' on {host}' if host is not None else ''
    return exception.NotFound(
        kind='vGPU type',
        name=f'{vgpu_type} of {variant}{where} (there are: '
             f'{", ".join(known) or "none, no host has such a card"})')


def _check_class(session: orm.Session, row: models.Variant,
                 vgpu_type: str) -> None:
    """Refuse a type whose resource class is another one's.

    :raises Conflict: naming the other
    """
    if vgpu_type == naming.PASSTHROUGH:
        return
    wanted = naming.resource_class(row.name, vgpu_type)
    others = session.execute(
        sa.select(models.Variant.name, models.VGPUType.vgpu_type)
        .join(models.Group, models.Group.variant_id == models.Variant.id)
        .join(models.VGPUType,
              models.VGPUType.gpu_group_id == models.Group.id)
        .where(models.VGPUType.listed).distinct())
    taken = {naming.resource_class(name, kind): f'type {kind} of {name}'
             for name, kind in others
             if kind != naming.PASSTHROUGH and (name, kind) != (
                 row.name, vgpu_type)}
    taken |= {each.resource_class: f'variant {each.name}'
              for each in variant_db.all(session)}
    if wanted in taken:
        raise exception.Conflict(
            kind='vGPU type', name=f'{vgpu_type} of {row.name}',
            reason=f'{taken[wanted]} has the resource class {wanted} already')
