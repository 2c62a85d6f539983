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

import collections
import dataclasses
import json
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import allocator
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import inventory as rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.objects import inventory as objects


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupState:
    """A group with its devices and the holdings on them."""

    group: models.Group
    devices: Sequence[models.Device]
    held: Sequence[models.Assignment]

    @property
    def type(self) -> models.VGPUType:
        """The whole-card type."""
        return next(each for each in self.group.types
                    if each.vgpu_type == naming.PASSTHROUGH)

    def offered(self) -> list[models.Device]:
        """Devices that a claim may take now."""
        return [device for device in self.devices if is_offered(device)]

    def desired(self) -> rules.Desired | None:
        """The inventory of the whole-card type."""
        backed: collections.Counter[str] = collections.Counter(
            each.instance_uuid for each in self.held if each.allocated)
        return rules.desired(
            cards=len(self.devices), remaining=len(self.offered()),
            backed=backed.total(),
            largest_allocation=max(backed.values(), default=0))

    def states(self) -> dict[str, int]:
        """Devices by shown state."""
        return dict(sorted(collections.Counter(
            shown_state(device) for device in self.devices).items()))


def is_offered(device: models.Device) -> bool:
    """Whether a claim may take the device."""
    return device_rules.offered(
        device.state, enabled=device.enabled, present=device.present,
        managed=device.group_id is not None)


def shown_state(device: models.Device) -> str:
    """The one word an operator reads."""
    return device_rules.shown_state(
        device.state, enabled=device.enabled, present=device.present,
        managed=device.group_id is not None)


def card(device: models.Device) -> allocator.Card:
    """The device as the allocator sees it."""
    facts = device_db.facts(device)
    return allocator.Card(
        id=device.stable_id, numa_node=facts.numa_node,
        switch=facts.switch_path[-1] if facts.switch_path else None)


def groups(session: orm.Session, host_ids: Sequence[int],
           active: Sequence[models.Assignment] | None = None,
           ) -> dict[int, list[GroupState]]:
    """Groups of hosts with all that is known of them, in three queries.

    :param active: all active assignments of the hosts, where the caller has
        them already
    """
    found = session.scalars(
        sa.select(models.Group).where(models.Group.host_id.in_(host_ids))
        .options(orm.joinedload(models.Group.types))
        .order_by(models.Group.id)).unique().all()
    devices: dict[int, list[models.Device]] = collections.defaultdict(list)
    for device in device_db.of_groups(session, [each.id for each in found]):
        assert device.group_id is not None
        devices[device.group_id].append(device)
    held: dict[int, list[models.Assignment]] = collections.defaultdict(list)
    if active is None:
        active = assignment_db.active(
            session, models.Assignment.host_id.in_(host_ids))
    for each in active:
        if each.device.group_id is not None:
            held[each.device.group_id].append(each)
    result: dict[int, list[GroupState]] = collections.defaultdict(list)
    for group in found:
        result[group.host_id].append(GroupState(
            group=group, devices=devices[group.id], held=held[group.id]))
    return result


def refresh(session: orm.Session, host: models.Host,
            states: Sequence[GroupState] | None = None,
            ) -> objects.HostInventory:
    """Recompute the stored capacities of the (locked) host.

    :param states: where the caller has them, as they are now
    :returns: what the host offers after the transaction
    """
    session.flush()
    if states is None:
        states = groups(session, [host.id])[host.id]
    _store_capacity(states)
    return inventory(host, states)


def refresh_all(session: orm.Session, host_ids: Sequence[int]) -> None:
    """Recompute the stored capacities of (locked) hosts."""
    session.flush()
    for states in groups(session, host_ids).values():
        _store_capacity(states)


def _store_capacity(states: Sequence[GroupState]) -> None:
    for state in states:
        state.type.max_capacity = len(state.devices)
        state.type.remaining_capacity = len(state.offered())


def of_host(session: orm.Session,
            host: models.Host) -> objects.HostInventory:
    """What the host offers now."""
    return inventory(host, groups(session, [host.id])[host.id])


def inventory(host: models.Host,
              states: Sequence[GroupState]) -> objects.HostInventory:
    """What a host offers, of rows that were read already."""
    return objects.HostInventory(
        host=host.name, node_uuid=host.node_uuid,
        generation=host.generation,
        groups=tuple(
            _group_inventory(host, state, desired) for state in states
            if (desired := state.desired()) is not None))


def _group_inventory(host: models.Host, state: GroupState,
                     desired: rules.Desired) -> objects.GroupInventory:
    variant = state.group.variant
    return objects.GroupInventory(
        variant=variant.name,
        provider_name=naming.provider_name(host.node, variant.name),
        provider_uuid=state.group.provider_uuid,
        traits=tuple(sorted(naming.traits(
            variant.name, tuple(json.loads(variant.traits))))),
        types=(objects.TypeInventory(
            resource_class=variant.resource_class, total=desired.total,
            reserved=desired.reserved, max_unit=desired.max_unit),))


def view(host: models.Host,
         states: Sequence[GroupState]) -> objects.HostGroups:
    """The host as the scheduler needs it."""
    masks = allocator.masks([
        [(card(device), is_offered(device)) for device in state.devices]
        for state in states])
    return objects.HostGroups(
        host=host.name, node_uuid=host.node_uuid,
        generation=host.generation, deleted=bool(host.deleted),
        groups=tuple(
            objects.GroupView(
                variant=state.group.variant.name,
                provider_uuid=state.group.provider_uuid,
                resource_class=state.group.variant.resource_class,
                free=mask.free, numa=mask.numa, switches=mask.switches,
                states=state.states())
            for state, mask in zip(states, masks, strict=True)))
