# SPDX-License-Identifier: Apache-2.0
"""Offers of resource classes on one host, and its regions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.domain.allocation import request as request_mod


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypeOffer:
    """Offer of one resource class on one host: one type of a group's GPUs.

    A GPU with one id is the same GPU, with an equal value, in each offer of a
    host. A GPU is in at most one offer of the type ``passthrough``.

    :ivar vgpu_type: name of the type, ``passthrough`` for whole GPUs
    :ivar enabled: whether operators allow claims of it
    :ivar links: of whole GPUs; None: not known
    """

    vgpu_type: str
    gpus: Sequence[vgpu.GPUCapacity]
    enabled: bool = True
    links: fabric.Links | None = None

    @property
    def is_passthrough(self) -> bool:
        """Return whether the offer is of whole GPUs."""
        return self.vgpu_type == naming.PASSTHROUGH

    @functools.cached_property
    def available_by_gpu(self) -> Mapping[str, int]:
        """Return how many units each GPU can take now, by the GPU's id.

        It assumes that nothing else is claimed.
        """
        return {gpu.id: gpu.available(self.vgpu_type) if self.enabled else 0
                for gpu in self.gpus}

    @functools.cached_property
    def free_partitions(self) -> tuple[fabric.Partition, ...]:
        """Return the link partitions that can be taken now."""
        if self.links is None:
            return ()
        return self.links.free([
            gpu.id for gpu in self.gpus if self.available_by_gpu[gpu.id]])

    @functools.cached_property
    def fragmentation(self) -> fabric.FreePartitions:
        """Return the link partitions that can be taken, with their cost."""
        return fabric.FreePartitions(
            partitions=self.free_partitions,
            gpus=tuple(gpu.id for gpu in self.gpus))

    def partitions_of(self, count: int) -> list[fabric.Partition]:
        """Return the link partitions of some size that can be taken now."""
        return [part for part in self.free_partitions if len(part) == count]

    def is_confined(self, request: request_mod.Request) -> bool:
        """Return whether a request gets exactly one link partition of it."""
        # A vGPU has no links.
        return request.is_linked or (
            self.is_passthrough and fabric.is_confined(
                self.links, request))

    def available(self) -> int:
        """Return how many units could be claimed now."""
        return sum(self.available_by_gpu.values())

    def within(self, region: HostRegion) -> TypeOffer:
        """Return the offer of a region's GPUs alone."""
        if region.is_whole_host:
            return self
        return TypeOffer(
            vgpu_type=self.vgpu_type, enabled=self.enabled,
            links=self.links,
            gpus=[gpu for gpu in self.gpus if gpu in region])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """One selected unit: a whole GPU or a vGPU on it.

    :ivar gpu_id: id of the GPU
    :ivar vgpu_type: ``passthrough`` for the whole GPU
    :ivar placement_id: as in ``vgpu.VGPU``
    """

    gpu_id: str
    vgpu_type: str
    placement_id: int | None = None


# -- Parts of a host to which a request may be confined, the best first.


_Policy = request_mod.PCINUMAPolicy
_Topology = request_mod.GPUTopology

Sockets = Collection[frozenset[int]]
"""NUMA nodes of each socket of a host; empty: unknown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostRegion:
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

    def __contains__(self, gpu: vgpu.GPUCapacity) -> bool:
        return ((self.numa_nodes is None or gpu.numa_node in self.numa_nodes)
                and self.switch in (None, gpu.switch)
                and self.gpu_id in (None, gpu.id))


def preference_tiers(gpus: Collection[vgpu.GPUCapacity],
                     request: request_mod.Request,
                     guest_nodes: frozenset[int] | None,
                     sockets: Sockets = (), *,
                     one_node_first: bool) -> Iterator[list[HostRegion]]:
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
                yield [HostRegion(numa_nodes=frozenset({node}))
                       for node in nodes]
        yield [base]


def base_region(request: request_mod.Request,
                guest_nodes: frozenset[int] | None,
                sockets: Sockets = ()) -> HostRegion:
    """Return the largest region that the NUMA policies allow."""
    *_, last = _bases(request, guest_nodes, sockets)
    return last


def _bases(request: request_mod.Request, guest_nodes: frozenset[int] | None,
           sockets: Sockets) -> list[HostRegion]:
    affinity = request.numa_affinity
    if guest_nodes is None or affinity is None:
        return [HostRegion()]
    near = HostRegion(numa_nodes=guest_nodes)
    match affinity:
        case _Policy.REQUIRED:
            return [near]
        case _Policy.LEGACY:
            return [near, HostRegion(numa_nodes=guest_nodes | {None})]
        case _Policy.SOCKET:
            return [near, HostRegion(numa_nodes=guest_nodes.union(*(
                socket for socket in sockets if socket & guest_nodes)))]
        case _:
            return [near, HostRegion()]


def topology_regions(gpus: Iterable[vgpu.GPUCapacity],
                     topology: request_mod.GPUTopology,
                     base: HostRegion) -> list[HostRegion]:
    """Return the parts of a region that each meet a topology.

    A GPU whose node (switch) is unknown is a part of its own: all vGPUs on it
    are on the same node (switch), whichever that is. Link partitions are no
    regions: they confine whole GPUs alone, with any topology (domain.fabric).
    """
    if topology is _Topology.LINKED:
        return [base]
    if topology is _Topology.SAME_NUMA:
        lone = {gpu.id for gpu in gpus if gpu.numa_node is None}
        places = [HostRegion(numa_nodes=frozenset({node}))
                  for node in _numa_nodes(gpus, base)]
    else:
        lone = {gpu.id for gpu in gpus if gpu.switch is None}
        places = [
            dataclasses.replace(base, switch=switch) for switch in sorted(
                {gpu.switch for gpu in gpus if gpu.switch is not None})]
    return places + [dataclasses.replace(base, gpu_id=gpu_id)
                     for gpu_id in sorted(lone)]


def _numa_nodes(gpus: Iterable[vgpu.GPUCapacity],
                region: HostRegion) -> list[int]:
    """Return the known NUMA nodes of a region's GPUs."""
    return sorted({gpu.numa_node for gpu in gpus
                   if gpu.numa_node is not None and gpu in region})
