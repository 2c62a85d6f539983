# SPDX-License-Identifier: Apache-2.0
"""Parts of a host that a request may be confined to, in order of
preference."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator

from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.vgpu import capacity

_Policy = request_mod.PCINUMAPolicy
_Topology = request_mod.Topology

Sockets = Collection[frozenset[int]]
"""NUMA nodes of each socket of a host; empty: unknown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Region:
    """A part of a host: the GPUs that meet all conditions; None: any GPU.

    :ivar numa_nodes: with None among them, also GPUs of unknown NUMA node
    """

    numa_nodes: frozenset[int | None] | None = None
    switch: str | None = None
    gpu_id: str | None = None

    @property
    def is_whole_host(self) -> bool:
        """Return whether every GPU is in the region."""
        return (self.numa_nodes is None and self.switch is None
                and self.gpu_id is None)

    def __contains__(self, gpu: capacity.GPUCapacity) -> bool:
        return ((self.numa_nodes is None or gpu.numa_node in self.numa_nodes)
                and self.switch in (None, gpu.switch)
                and self.gpu_id in (None, gpu.id))


def preference_tiers(gpus: Collection[capacity.GPUCapacity],
                     request: request_mod.Request,
                     guest_nodes: frozenset[int] | None,
                     sockets: Sockets = (), *,
                     one_node_first: bool) -> Iterator[list[Region]]:
    """Return the regions in which the request may be met, the best first.

    The regions of one tier are equally good.

    :param gpus: GPUs of all offers that are demanded
    :param guest_nodes: the host's NUMA nodes of the guest's memory; None:
        anywhere
    :param sockets: the NUMA nodes of each of the host's sockets; empty:
        unknown
    :param one_node_first: whether one NUMA node is preferred to several if no
        topology is demanded
    """
    for base in _bases(request, guest_nodes, sockets):
        if request.restricts_topology:
            yield topology_regions(gpus, request.topology, base)
            continue
        if one_node_first and not request.is_single:
            nodes = _numa_nodes(gpus, base)
            if len(nodes) > 1:
                yield [Region(numa_nodes=frozenset({node})) for node in nodes]
        yield [base]


def base_region(request: request_mod.Request,
                guest_nodes: frozenset[int] | None,
                sockets: Sockets = ()) -> Region:
    """Return the largest region that the NUMA policies allow."""
    *_, last = _bases(request, guest_nodes, sockets)
    return last


def _bases(request: request_mod.Request, guest_nodes: frozenset[int] | None,
           sockets: Sockets) -> list[Region]:
    affinity = request.numa_affinity
    if guest_nodes is None or affinity is None:
        return [Region()]
    near = Region(numa_nodes=guest_nodes)
    match affinity:
        case _Policy.REQUIRED:
            return [near]
        case _Policy.LEGACY:
            return [near, Region(numa_nodes=guest_nodes | {None})]
        case _Policy.SOCKET:
            return [near, Region(numa_nodes=guest_nodes.union(*(
                socket for socket in sockets if socket & guest_nodes)))]
        case _:
            return [near, Region()]


def topology_regions(gpus: Iterable[capacity.GPUCapacity],
                     topology: request_mod.Topology,
                     base: Region) -> list[Region]:
    """Return the parts of a region that each meet a topology.

    A GPU whose node (switch) is unknown is a part of its own: all vGPUs on it
    are on the same node (switch), whichever that is. Link partitions are no
    regions: they confine whole GPUs alone, with any topology (``links``).
    """
    if topology is _Topology.LINKED:
        return [base]
    if topology is _Topology.SAME_NUMA:
        lone = {gpu.id for gpu in gpus if gpu.numa_node is None}
        places = [Region(numa_nodes=frozenset({node}))
                  for node in _numa_nodes(gpus, base)]
    else:
        lone = {gpu.id for gpu in gpus if gpu.switch is None}
        places = [
            dataclasses.replace(base, switch=switch) for switch in sorted(
                {gpu.switch for gpu in gpus if gpu.switch is not None})]
    return places + [dataclasses.replace(base, gpu_id=gpu_id)
                     for gpu_id in sorted(lone)]


def _numa_nodes(gpus: Iterable[capacity.GPUCapacity],
                region: Region) -> list[int]:
    """Return the known NUMA nodes of a region's GPUs."""
    return sorted({gpu.numa_node for gpu in gpus
                   if gpu.numa_node is not None and gpu in region})
