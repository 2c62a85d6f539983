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
"""What a host's groups offer: for Placement, and for the scheduler."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypeInventory:
    """Inventory record of one resource class, as Placement takes it."""

    resource_class: str
    total: int
    reserved: int
    max_unit: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupInventory:
    """One provider: a group, its traits and its inventories."""

    variant: str
    provider_name: str
    provider_uuid: str
    traits: tuple[str, ...]
    types: tuple[TypeInventory, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostInventory:
    """All groups of a host at one generation of it.

    The higher generation is the newer one; an answer that arrives late is
    recognised by it.
    """

    host: str
    node_uuid: str
    generation: int
    groups: tuple[GroupInventory, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypeMasks:
    """One resource class of a group.

    :ivar free: mask of the cards of which a claim could take some now
    :ivar available: how many of each card; empty: one of each
    """

    resource_class: str
    free: int
    available: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupMasks:
    """One group as the scheduler needs it. Bit i of a mask is card i.

    :ivar types: what it offers
    :ivar numa: mask of the cards of each known NUMA node (unknown: in none)
    :ivar switches: mask of the cards below each PCIe switch
    :ivar alone: as in domain.allocation.feasibility.Masks
    :ivar states: cards by state, ``missing`` and ``disabled`` first
    """

    variant: str
    provider_uuid: str
    types: tuple[TypeMasks, ...]
    numa: tuple[int, ...] = ()
    switches: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()
    states: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostMasks:
    """One host as the scheduler needs it."""

    host: str
    node_uuid: str
    generation: int
    groups: tuple[GroupMasks, ...] = ()
    deleted: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changes:
    """Hosts that changed after a generation, and the one to ask with next.

    Masks of the groups of one host share their order: entry i of ``numa``
    (of ``switches``, of ``alone``) is the same node (switch, card) in every
    group.
    """

    generation: int
    hosts: tuple[HostMasks, ...] = ()
