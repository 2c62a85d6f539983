# SPDX-License-Identifier: Apache-2.0
"""NUMA nodes of a host, as Nova knows them."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Collection
from collections.abc import Iterator

from nova import objects

from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.domain.allocation import request as request_mod


def image_policy(image: nova_types.ImageMeta | None) -> str | None:
    """Return an image's NUMA policy for PCI devices; None: it has none."""
    policy: str | None = None if image is None else image.properties.get(
        request_mod.PCI_NUMA_POLICY_PROPERTY)
    return policy


def _with_cpus(topology: nova_types.HostNUMATopology,
               ) -> list[nova_types.HostNUMACell]:
    """Return the nodes that have CPUs for guests.

    Others are memory alone. There are many of them on hosts whose GPUs have
    memory in the host's address space (NVIDIA Grace: eight for each GPU).
    """
    return [cell for cell in topology.cells if cell.cpuset or cell.pcpuset]


def sockets(topology: nova_types.HostNUMATopology) -> list[frozenset[int]]:
    """Return the nodes of each socket; empty if one is unknown, as in Nova.

    Only nodes that have CPUs for guests count.
    """
    found = collections.defaultdict(set)
    for cell in _with_cpus(topology):
        if cell.socket is None:
            return []
        found[cell.socket].add(cell.id)
    return [frozenset(nodes) for _, nodes in sorted(found.items())]


def choices(topology: nova_types.HostNUMATopology,
            guest: nova_types.NUMATopology) -> Iterator[frozenset[int]]:
    """Return all sets of as many nodes with CPUs as the guest has."""
    return map(frozenset, itertools.combinations(
        [cell.id for cell in _with_cpus(topology)], len(guest.cells)))


def confined(topology: nova_types.HostNUMATopology,
             nodes: Collection[int]) -> nova_types.HostNUMATopology:
    """Return a topology in which a guest fits on some nodes alone.

    The others stay, without memory: Nova refuses a guest whose networks are
    near to a node that it does not use.
    """
    cells = [cell.obj_clone() for cell in topology.cells]
    for cell in cells:
        if cell.id not in nodes:
            cell.memory, cell.mempages = 0, []
    confined_topology: nova_types.HostNUMATopology = objects.NUMATopology(
        cells=cells)
    return confined_topology
