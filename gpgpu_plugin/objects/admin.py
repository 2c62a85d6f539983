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
"""What operators see: hosts, groups, devices and variants."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariantInfo:
    """A variant and how many devices it matches now."""

    name: str
    vendor: str
    device: str
    subsystem_vendor: str | None = None
    subsystem: str | None = None
    revision: str | None = None
    type: str = 'gpu'
    resource_class: str = ''
    traits: tuple[str, ...] = ()
    mix_policy: str = 'same_type'
    devices: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostInfo:
    """A host, its devices counted by shown state."""

    host: str
    node: str
    node_uuid: str
    generation: int
    reported_at: str | None
    devices: dict[str, int]
    problems: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupInfo:
    """A group with its capacity."""

    host: str
    variant: str
    resource_class: str
    provider_uuid: str
    allocation_policy: str
    total: int
    reserved: int
    remaining: int
    assigned: int
    states: dict[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VGPUTypeInfo:
    """A type of one group; ``None`` is unknown.

    :ivar video_ram: MiB
    :ivar max_vgpu_per_pgpu: so many fit on a card that has nothing else
    :ivar max_capacity: so many fit on all cards that have nothing else
    :ivar remaining_capacity: so many can be claimed now
    :ivar assigned: so many are held
    """

    host: str
    variant: str
    vgpu_type: str
    resource_class: str
    enabled: bool
    video_ram: int | None
    max_heads: int | None
    max_resolution_x: int | None
    max_resolution_y: int | None
    max_vgpu_per_pgpu: int
    max_capacity: int
    remaining_capacity: int
    assigned: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """A device.

    :ivar shown_state: what an operator reads: ``unmanaged``, ``missing`` or
        ``disabled`` where they apply to a device nobody holds, else the
        state; ``assigned`` and others keep their name with ``present`` False
    :ivar used_by: UUID of the instance that holds it
    :ivar kind: ``pci``, or ``mdev`` for a seat on a card
    :ivar parent: UUID of the card
    :ivar vgpu_type: what is carved there, or may be
    """

    uuid: str
    host: str
    stable_id: str
    address: str
    variant: str | None
    state: str
    shown_state: str
    enabled: bool
    present: bool
    used_by: str | None = None
    vendor: str | None = None
    device: str | None = None
    subsystem_vendor: str | None = None
    subsystem: str | None = None
    revision: str | None = None
    class_code: str | None = None
    driver: str | None = None
    numa_node: int | None = None
    iommu_group: int | None = None
    slot: str | None = None
    serial: str | None = None
    dsn: str | None = None
    reason: str | None = None
    generation: int = 0
    kind: str = 'pci'
    parent: str | None = None
    vgpu_type: str | None = None
