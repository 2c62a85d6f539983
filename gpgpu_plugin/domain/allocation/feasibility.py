# SPDX-License-Identifier: Apache-2.0
"""Feasibility of a request on a host, computed on bit masks for schedulers.

``refusal`` decides on masks what ``allocate`` decides on offers:

* It refuses a request of one resource class, or for whole GPUs alone, exactly
  if ``allocate`` does, whatever the topology and the NUMA policy.
* It refuses other requests only if ``allocate`` does. It may pass one that
  ``allocate`` refuses with ``type_conflict``: masks have how many units of
  each type a GPU can take, but not how many beside units of other types.
* With the NUMA policies ``required`` and ``legacy``, the guest's nodes may not
  be chosen yet. ``refusal`` refuses if ``allocate`` would refuse for every
  choice of that many nodes; ``refusal_on`` decides for one choice. Only the
  latter knows the host's sockets and enforces the policy ``socket``.
* A host with more than ``MAX_CHOICES`` such choices is passed if the GPUs
  suffice anywhere on it. The claim decides.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import operator
import typing
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import fabric as fabric_rules
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod

MAX_CHOICES = 2000
"""Choices of NUMA nodes that are tried, in 30 ms. Nodes are what a host
reports, and 8 of 22 nodes are 320,000 choices. Machines of today have 70 at
most, 4 of 8 nodes."""

_Policy = request_mod.PCINUMAPolicy
_Topology = request_mod.GPUTopology
_MaskByKey = dict[int | str | None, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masks:
    """GPUs of one resource class on one host; bit i is GPU i of its group.

    Entry i of ``numa`` (of ``switches``) is the same node (switch) in every
    Masks of a host.

    :ivar free: GPUs that can take a unit
    :ivar numa: GPUs of each known NUMA node
    :ivar numa_nodes: the ids of these nodes
    :ivar switches: GPUs below each PCIe switch
    :ivar available: how many units each GPU can take; empty: one per GPU
    :ivar alone: each GPU that can take several units and whose node or switch
        is unknown: its units share one node and switch anyway. Entry i is the
        same GPU in every Masks of a host
    :ivar partitions: GPUs of each link partition; only of whole GPUs
    :ivar fabric: as of ``fabric.Links``
    :ivar problem: as of ``fabric.Links``
    """

    free: int
    numa: tuple[int, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    switches: tuple[int, ...] = ()
    available: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()
    partitions: tuple[int, ...] = ()
    fabric: bool = False
    problem: str = fabric_rules.NOTHING_KNOWN.problem

    def has_partition(self, count: int, part: int = -1) -> bool:
        """Return whether a link partition with so many GPUs can be taken.

        :param part: mask of the GPUs that it must be among
        """
        free = self.free & part
        return any(partition & free == partition
                   for partition in self.partitions
                   if partition.bit_count() == count)

    def units(self, part: int = -1) -> int:
        """Return how many units some of the GPUs can take.

        :param part: mask of these GPUs; all of them by default
        """
        free = self.free & part
        if not self.available:
            return free.bit_count()
        return sum(units for index, units in enumerate(self.available)
                   if free >> index & 1)


_NONE = Masks(free=0)
_ANYWHERE = (offer_mod.HostRegion(),)


def masks(offers: Sequence[offer_mod.TypeOffer]) -> list[Masks]:
    """Return the masks of all offers of a host, in the same order."""
    gpus = {gpu.id: gpu for offer in offers for gpu in offer.gpus}.values()
    nodes = sorted({gpu.numa_node for gpu in gpus
                    if gpu.numa_node is not None})
    switches = sorted({gpu.switch for gpu in gpus if gpu.switch is not None})
    alone = _alone(offers)
    return [_masks(offer, nodes, switches, alone) for offer in offers]


def _alone(offers: Iterable[offer_mod.TypeOffer]) -> list[str]:
    units: collections.Counter[str] = collections.Counter()
    for offer in offers:
        for gpu in offer.gpus:
            if gpu.numa_node is None or gpu.switch is None:
                units[gpu.id] += offer.available_by_gpu[gpu.id]
    return sorted(gpu_id for gpu_id, count in units.items() if count > 1)


def _masks(offer: offer_mod.TypeOffer, nodes: Sequence[int],
           switches: Iterable[str], alone: Iterable[str]) -> Masks:
    numa: _MaskByKey = collections.defaultdict(int)
    switch: _MaskByKey = collections.defaultdict(int)
    gpu_id: _MaskByKey = collections.defaultdict(int)
    free = 0
    available = tuple(offer.available_by_gpu[gpu.id] for gpu in offer.gpus)
    for index, gpu in enumerate(offer.gpus):
        bit = 1 << index
        numa[gpu.numa_node] |= bit
        switch[gpu.switch] |= bit
        gpu_id[gpu.id] |= bit
        free |= bit if available[index] > 0 else 0
    return Masks(
        free=free, numa=tuple(numa.get(node, 0) for node in nodes),
        numa_nodes=tuple(nodes),
        switches=tuple(switch.get(name, 0) for name in switches),
        available=available if max(available, default=0) > 1 else (),
        alone=tuple(gpu_id.get(name, 0) for name in alone),
        **_links(offer))


def _links(offer: offer_mod.TypeOffer) -> dict[str, typing.Any]:
    """Return the fields of masks about the links of whole GPUs."""
    if offer.links is None:
        return {}
    bits = {gpu.id: 1 << index for index, gpu in enumerate(offer.gpus)}
    return {
        'partitions': tuple(sum(bits[gpu_id] for gpu_id in part)
                            for part in offer.links.partitions),
        'fabric': offer.links.fabric, 'problem': offer.links.problem}


def refusal(groups: Mapping[str, Masks], request: request_mod.Request,
            guest_nodes: int | None = None) -> request_mod.Refusal | None:
    """Return why ``allocate`` would refuse; None if it would not.

    :param groups: the host's masks by resource class
    :param guest_nodes: on how many of the host's NUMA nodes the guest's
        memory will be; None: anywhere
    """
    required = request.numa_policy is request_mod.NUMAPolicy.REQUIRED
    if required and guest_nodes is None:
        return request_mod.NO_GUEST_NODES
    if guest_nodes is None or request.numa_affinity not in (
            _Policy.REQUIRED, _Policy.LEGACY):
        return _refusal(groups, request, _ANYWHERE)
    nodes = max((mask.numa_nodes for mask in groups.values()),
                key=len, default=())
    count = min(guest_nodes, len(nodes))
    if math.comb(len(nodes), count) > MAX_CHOICES:
        return _refusal(groups, request, _ANYWHERE)
    return _refusal(groups, request, [
        offer_mod.base_region(request, frozenset(chosen))
        for chosen in itertools.combinations(nodes, count)])


def refusal_on(groups: Mapping[str, Masks], request: request_mod.Request,
               guest_nodes: frozenset[int], sockets: offer_mod.Sockets,
               ) -> request_mod.Refusal | None:
    """Return why ``allocate`` would refuse for a guest on these nodes.

    :param sockets: the NUMA nodes of each of the host's sockets; empty:
        unknown
    """
    return _refusal(groups, request, [
        offer_mod.base_region(request, guest_nodes, sockets)])


def _refusal(groups: Mapping[str, Masks], request: request_mod.Request,
             regions: Iterable[offer_mod.HostRegion],
             ) -> request_mod.Refusal | None:
    """Return why none of some regions suffices."""
    confined = request.is_linked
    for demand in request.demands:
        mask = groups.get(demand.resource_class, _NONE)
        available = mask.units()
        if available < demand.count:
            return request_mod.count_refusal(demand, available)
        confined = confined or mask.fabric
    if not confined and regions is _ANYWHERE and (
            not request.restricts_topology):
        # Almost all requests on almost all hosts end here.
        return None
    masks = [groups[demand.resource_class] for demand in request.demands]
    refused = _links_refusal(masks, request) if confined else None
    if refused is not None:
        return refused
    counts = [_Count(demand.count, request.is_linked or mask.fabric)
              for demand, mask in zip(request.demands, masks, strict=True)]
    topology = request.topology if request.restricts_topology else (
        _Topology.ANY)
    parts = [[_within(mask, region) for mask in masks] for region in regions]
    if any(_fits(part, counts, topology) for part in parts):
        return None
    if any(_fits(part, counts, _Topology.ANY) for part in parts):
        return request_mod.topology_refusal(request)
    return request_mod.far_refusal(request)


def _links_refusal(masks: Iterable[Masks], request: request_mod.Request,
                   ) -> request_mod.Refusal | None:
    """Return the refusal if the host has no link partition for a demand."""
    refused = fabric_rules.link_kinds_refusal(request)
    if refused is not None:
        return refused
    for mask, demand in zip(masks, request.demands, strict=True):
        if (request.is_linked or mask.fabric) and not mask.has_partition(
                demand.count):
            return fabric_rules.link_refusal(
                demand, request, map(int.bit_count, mask.partitions),
                mask.problem)
    return None


class _Count(typing.NamedTuple):
    """Number of units that are demanded.

    :ivar confined: they must be exactly one link partition
    """

    units: int
    confined: bool

    def is_met(self, mask: Masks, part: int) -> bool:
        """Return whether some of the GPUs have enough."""
        if self.confined:
            return mask.has_partition(self.units, part)
        return mask.units(part) >= self.units


def _within(mask: Masks, region: offer_mod.HostRegion) -> Masks:
    """Return the masks of the GPUs on the NUMA nodes of a region."""
    if region.numa_nodes is None:
        return mask
    part = functools.reduce(operator.or_, (
        gpus for node, gpus in zip(mask.numa_nodes, mask.numa, strict=True)
        if node in region.numa_nodes), 0)
    if None in region.numa_nodes:
        part |= ~functools.reduce(operator.or_, mask.numa, 0)
    return dataclasses.replace(mask, free=mask.free & part)


def _fits(masks: Sequence[Masks], counts: Sequence[_Count],
          topology: request_mod.GPUTopology) -> bool:
    """Return whether one node or switch has enough of each class."""
    if topology in (_Topology.ANY, _Topology.LINKED):
        return _has_enough(masks, counts, [-1] * len(masks))
    places = zip(*(
        (mask.switches if topology is _Topology.SAME_SWITCH
         else mask.numa) + mask.alone for mask in masks), strict=True)
    return any(_has_enough(masks, counts, place) for place in places)


def _has_enough(masks: Iterable[Masks], counts: Iterable[_Count],
                place: Iterable[int]) -> bool:
    return all(count.is_met(mask, part) for mask, count, part
               in zip(masks, counts, place, strict=True))
