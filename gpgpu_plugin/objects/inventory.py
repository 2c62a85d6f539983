# SPDX-License-Identifier: Apache-2.0
"""Inventories of hosts, and capacities of the cloud."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

from gpgpu_plugin.objects import admin


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypeInventory:
    """Inventory of one resource class, with Placement's fields."""

    resource_class: str
    total: int
    reserved: int
    max_unit: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupInventory:
    """Resource provider of one group, with its traits and inventories."""

    variant: str
    provider_name: str
    provider_uuid: str
    traits: tuple[str, ...]
    types: tuple[TypeInventory, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostInventory:
    """All groups of a host at one generation.

    A higher generation is newer, so that a late answer can be recognised.
    """

    host: str
    node_uuid: str
    generation: int
    groups: tuple[GroupInventory, ...] = ()

    def resource_classes(self) -> set[str]:
        """Return the resource classes of the groups."""
        return {offer.resource_class for group in self.groups
                for offer in group.types}

    def provider_uuids(self) -> set[str]:
        """Return the UUIDs of the groups' resource providers."""
        return {group.provider_uuid for group in self.groups}


# -- Capacity of a vGPU type on all hosts together.


SUMMED = ('max_capacity', 'remaining_capacity', 'assigned')
"""Fields that are added up."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CloudCapacity:
    """A type on all hosts together.

    :ivar hosts: number of hosts on which it is enabled
    """

    variant: str
    vgpu_type: str
    hosts: int
    max_capacity: int
    remaining_capacity: int
    assigned: int


def summed_capacity(
        types: Iterable[admin.VGPUTypeInfo]) -> list[CloudCapacity]:
    """Return the capacity on all hosts, by variant and type."""
    found: dict[tuple[str, str], list[admin.VGPUTypeInfo]] = (
        collections.defaultdict(list))
    for info in types:
        found[info.variant, info.vgpu_type].append(info)
    return [CloudCapacity(
        variant=variant, vgpu_type=vgpu_type,
        hosts=sum(info.enabled for info in infos),
        **{name: sum(getattr(info, name) for info in infos)
           for name in SUMMED})
        for (variant, vgpu_type), infos in sorted(found.items())]
