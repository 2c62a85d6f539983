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
"""A group with its devices and who holds them: what of it can be given."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.domain import inventory as rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.allocation import offer
from gpgpu_plugin.domain.vgpu import capability as vgpu_capability
from gpgpu_plugin.domain.vgpu import capacity
from gpgpu_plugin.domain.vgpu import driver_capacity
from gpgpu_plugin.domain.vgpu import vgpu_type

_AVAILABLE = device_rules.DeviceState.AVAILABLE


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupCapacity:
    """One group.

    :ivar devices: its cards, and what is carved out of them
    :ivar held: active assignments of all of these
    :ivar foreign_vgpus: VFs of its cards that are not the group's, such as
        those that Nova gives away, and have a vGPU or may have
    """

    group: models.Group
    devices: Sequence[models.Device]
    held: Sequence[models.Assignment]
    foreign_vgpus: Sequence[models.Device] = ()

    @functools.cached_property
    def cards(self) -> list[models.Device]:
        """The cards; a VF whose PF is in no group is one itself."""
        ids = {device.id for device in self.devices}
        return [device for device in self.devices
                if device.parent_id is None or device.parent_id not in ids]

    @functools.cached_property
    def children(self) -> dict[int, list[models.Device]]:
        """VFs and seats for mdevs by the id of their card."""
        cards = {card.id for card in self.cards}
        found: dict[int, list[models.Device]] = collections.defaultdict(list)
        # They take room, whoever has them.
        for device in (*self.devices, *self.foreign_vgpus):
            if device.id not in cards and device.parent_id is not None:
                found[device.parent_id].append(device)
        return found

    def resource_class(self, kind: models.VGPUType) -> str:
        """Of one of the group's types."""
        return resource_class(self.group.variant, kind)

    # -- what of it can be given --------------------------------------------

    def _is_whole(self, card: models.Device) -> bool:
        if not is_offered(card):
            return False
        children = self.children.get(card.id, ())
        if any(child.kind == 'pci' or child.state != _AVAILABLE
               for child in children):
            return False
        function = device_db.pci_function(card)
        vgpus = device_db.vgpu_capability(card)
        # A GPU that has vGPUs, or may have some, is somebody else's.
        return not ((vgpus is not None and vgpus.existing_vgpus)
                    or function.sriov_numvfs
                    or pci.VGPU_TYPES in function.unreadable
                    or gpu_rules.passthrough_refusal(function))

    @functools.cached_property
    def shared(self) -> list[capacity.GPUCapacity]:
        """Capacity of each GPU, in the order of ``cards``."""
        return [self._shared(card) for card in self.cards]

    def _shared(self, card: models.Device) -> capacity.GPUCapacity:
        function = device_db.pci_function(card)
        vgpus = device_db.vgpu_capability(card)
        driver = device_db.driver_capacity(card)
        foreign = vgpus.existing_vgpus if vgpus is not None else ()
        children = self.children.get(card.id, ())
        used = [child for child in children
                if child.state != _AVAILABLE or child.vgpu_type is not None]
        units = [
            capacity.VGPU(
                vgpu_type=child.vgpu_type or capacity.UNKNOWN,
                placement_id=child.placement_id
            )
            for child in used
        ]
        # Of others, who do not say what they are.
        units += [capacity.VGPU(vgpu_type=capacity.UNKNOWN)] * len(foreign)
        return capacity.GPUCapacity(
            id=card.stable_id, offered=is_offered(card),
            passthrough=self._is_whole(card),
            types=driver_capacity.types(vgpus, driver),
            mix_policy=capacity.VGPUMixPolicy(self.group.variant.mix_policy),
            vgpus=tuple(units),
            driver_available=driver_capacity.available(
                driver,
                {child.stable_id: child.vgpu_type for child in used},
                foreign),
            numa_node=function.numa_node,
            switch=(function.switch_path[-1] if function.switch_path
                    else None),
            free_vfs=len(self.free_vfs(card))
            if vgpus is not None
            and vgpus.mechanism == vgpu_capability.VGPUMechanism.VF
            else None)

    def free_vfs(self, card: models.Device) -> list[models.Device]:
        """VFs of a card that a claim may take, by number."""
        plain = any(map(vgpu_type.is_of_plain_vfs, driver_capacity.types(
            device_db.vgpu_capability(card),
            device_db.driver_capacity(card))))
        return sorted(
            (child for child in self.children.get(card.id, ())
             if child.kind == 'pci' and is_offered(child)
             and child.vgpu_type is None
             # Else its vendor's driver, which makes vGPUs, is not there.
             and (plain or child.vgpu_capability is not None)),
            key=lambda child: device_db.pci_function(child).vf_index or 0)

    def offer(self, kind: models.VGPUType) -> offer.TypeOffer:
        """Return what the group offers of one of its types."""
        return offer.TypeOffer(vgpu_type=kind.vgpu_type, gpus=self.shared,
                               enabled=kind.enabled)

    # -- capacity -----------------------------------------------------------

    def available(self, kind: models.VGPUType) -> int:
        """Return how many of a type the GPUs can take now."""
        return self.offer(kind).available()

    def max_instances(self, kind: models.VGPUType) -> list[int]:
        """How many of a type each card takes if it has nothing else."""
        return [gpu.max_instances(kind.vgpu_type) for gpu in self.shared]

    def desired(self, kind: models.VGPUType) -> rules.Desired | None:
        """The inventory of one of the types."""
        backed: collections.Counter[str] = collections.Counter(
            each.instance_uuid for each in self.held
            if each.allocated and each.vgpu_type == kind.vgpu_type)
        return rules.desired(
            max_instances=sum(self.max_instances(kind)),
            available=self.available(kind),
            allocated=backed.total(),
            largest_allocation=max(backed.values(), default=0),
        )

    def held_of(self, kind: models.VGPUType) -> int:
        """How many of a type are held."""
        return sum(each.vgpu_type == kind.vgpu_type for each in self.held)

    def states(self) -> dict[str, int]:
        """Cards by shown state."""
        return dict(sorted(collections.Counter(
            shown_state(card, self.children.get(card.id, ()))
            for card in self.cards).items()))


def resource_class(variant: models.Variant, kind: models.VGPUType) -> str:
    """Of a type of a variant's groups."""
    if kind.vgpu_type == naming.PASSTHROUGH:
        return variant.resource_class
    return naming.resource_class(variant.name, kind.vgpu_type)


def is_offered(device: models.Device) -> bool:
    """Whether a claim may take the device, as far as its row says."""
    return device_rules.is_claimable(
        device.state, enabled=device.enabled, present=device.present,
        managed=device.group_id is not None)


def shown_state(device: models.Device,
                children: Sequence[models.Device] = ()) -> str:
    """The one word an operator reads.

    :param children: what is carved out of it
    """
    return device_rules.shown_state(
        device.state, enabled=device.enabled, present=device.present,
        managed=device.group_id is not None,
        children=[child.state for child in children])


def load(session: orm.Session, host_ids: Sequence[int],
         active: Sequence[models.Assignment] | None = None,
         ) -> dict[int, list[GroupCapacity]]:
    """Groups of hosts with all that is known of them, in three queries.

    :param active: all active assignments of the hosts, where the caller has
        them already
    """
    found = session.scalars(
        sa.select(models.Group).where(models.Group.host_id.in_(host_ids))
        .options(orm.joinedload(models.Group.types))
        .order_by(models.Group.id)).unique().all()
    devices: dict[int, list[models.Device]] = collections.defaultdict(list)
    foreign_vgpus: dict[int, list[models.Device]] = collections.defaultdict(
        list
    )
    rows = device_db.managed_or_carved(session, host_ids)
    groups = {device.id: device.group_id for device in rows}
    for device in rows:
        if device.group_id is not None:
            devices[device.group_id].append(device)
        of_card = groups.get(device.parent_id or 0)
        if (of_card not in (None, device.group_id)
                and device.vgpu_type is not None):
            foreign_vgpus[of_card].append(device)
    held: dict[int, list[models.Assignment]] = collections.defaultdict(list)
    if active is None:
        active = assignment_db.active(
            session, models.Assignment.host_id.in_(host_ids))
    for each in active:
        if each.device.group_id is not None:
            held[each.device.group_id].append(each)
    result: dict[int, list[GroupCapacity]] = collections.defaultdict(list)
    for group in found:
        result[group.host_id].append(GroupCapacity(
            group=group, devices=devices[group.id], held=held[group.id],
            foreign_vgpus=foreign_vgpus[group.id]))
    return result
