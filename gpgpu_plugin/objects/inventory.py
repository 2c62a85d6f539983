# SPDX-License-Identifier: Apache-2.0
"""Resource providers of a host's groups, for Placement."""

from __future__ import annotations

import dataclasses


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
