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
