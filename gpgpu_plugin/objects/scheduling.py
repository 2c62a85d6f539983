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
"""Availability of a host's groups, for schedulers."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypeMasks:
    """Availability of one resource class of a group, by GPU.

    :ivar free: mask of the GPUs with at least one available unit
    :ivar available: available units by GPU; empty if each free GPU has one
    """

    resource_class: str
    free: int
    available: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupMasks:
    """Masks of one group, for schedulers. Bit i of a mask is GPU i.

    :ivar types: one entry per resource class
    :ivar numa: one mask of GPUs per known NUMA node; a GPU whose node is
        unknown is in none of them
    :ivar numa_nodes: the ids of these nodes
    :ivar switches: one mask of GPUs per PCIe switch
    :ivar alone: as in domain.allocation.feasibility.Masks
    :ivar states: number of GPUs by state, ``missing`` and ``disabled`` first
    """

    variant: str
    provider_uuid: str
    types: tuple[TypeMasks, ...]
    numa: tuple[int, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    switches: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()
    states: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostMasks:
    """Masks of one host, for schedulers."""

    host: str
    node_uuid: str
    generation: int
    groups: tuple[GroupMasks, ...] = ()
    deleted: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changes:
    """Hosts that changed after a generation.

    Masks of the groups of one host have the same order: entry i of ``numa``
    (``switches``, ``alone``) is the same node (switch, GPU) in every group.

    :ivar generation: to be sent with the next call
    """

    generation: int
    hosts: tuple[HostMasks, ...] = ()
