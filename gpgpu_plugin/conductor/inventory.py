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
"""What a host offers, derived from its rows: for Placement and schedulers."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import feasibility
from gpgpu_plugin.objects import inventory as objects


def refresh(session: orm.Session, host: models.Host,
            states: Sequence[capacity.GroupCapacity] | None = None,
            ) -> objects.HostInventory:
    """Recompute the stored capacities of the (locked) host.

    :param states: where the caller has them, as they are now
    :returns: what the host offers after the transaction
    """
    session.flush()
    if states is None:
        states = capacity.load(session, [host.id])[host.id]
    _store_capacity(states)
    return inventory(host, states)


def refresh_all(session: orm.Session, host_ids: Sequence[int]) -> None:
    """Recompute the stored capacities of (locked) hosts."""
    session.flush()
    for states in capacity.load(session, host_ids).values():
        _store_capacity(states)


def _store_capacity(states: Sequence[capacity.GroupCapacity]) -> None:
    for state in states:
        for kind in state.group.types:
            limits = state.max_instances(kind)
            kind.max_vgpu_per_pgpu = max(limits, default=0)
            kind.max_capacity = sum(limits)
            kind.remaining_capacity = state.available(kind)


def of_host(session: orm.Session,
            host: models.Host) -> objects.HostInventory:
    """What the host offers now."""
    return inventory(host, capacity.load(session, [host.id])[host.id])


def inventory(host: models.Host, states: Sequence[capacity.GroupCapacity],
              ) -> objects.HostInventory:
    """What a host offers, of rows that were read already."""
    return objects.HostInventory(
        host=host.name, node_uuid=host.node_uuid,
        generation=host.generation,
        groups=tuple(
            _group_inventory(host, state, types) for state in states
            if (types := _types(state))))


def _types(state: capacity.GroupCapacity,
           ) -> tuple[objects.TypeInventory, ...]:
    return tuple(
        objects.TypeInventory(
            resource_class=state.resource_class(kind), total=desired.total,
            reserved=desired.reserved, max_unit=desired.max_unit)
        for kind in state.group.types if kind.listed
        and (desired := state.desired(kind)) is not None)


def _group_inventory(host: models.Host, state: capacity.GroupCapacity,
                     types: tuple[objects.TypeInventory, ...],
                     ) -> objects.GroupInventory:
    variant = state.group.variant
    return objects.GroupInventory(
        variant=variant.name,
        provider_name=naming.provider_name(host.node, variant.name),
        provider_uuid=state.group.provider_uuid,
        traits=tuple(sorted(naming.traits(
            variant.name, tuple(json.loads(variant.traits))))),
        types=types)


def view(host: models.Host, states: Sequence[capacity.GroupCapacity],
         ) -> objects.HostMasks:
    """The host as the scheduler needs it."""
    kinds = [(state, kind) for state in states
             for kind in state.group.types if kind.listed]
    masks = feasibility.masks(
        [state.offer(kind) for state, kind in kinds])
    of_group: dict[int, list[tuple[models.VGPUType, feasibility.Masks]]] = {}
    for (state, kind), mask in zip(kinds, masks, strict=True):
        of_group.setdefault(state.group.id, []).append((kind, mask))
    return objects.HostMasks(
        host=host.name, node_uuid=host.node_uuid,
        generation=host.generation, deleted=bool(host.deleted),
        groups=tuple(_group_view(state, of_group[state.group.id])
                     for state in states if state.group.id in of_group))


def _group_view(state: capacity.GroupCapacity,
                types: Sequence[tuple[models.VGPUType, feasibility.Masks]],
                ) -> objects.GroupMasks:
    _, first = types[0]
    return objects.GroupMasks(
        variant=state.group.variant.name,
        provider_uuid=state.group.provider_uuid, numa=first.numa,
        switches=first.switches, alone=first.alone, states=state.states(),
        types=tuple(objects.TypeMasks(
            resource_class=state.resource_class(kind), free=mask.free,
            available=mask.available) for kind, mask in types))
