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
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import region as region_mod
from gpgpu_plugin.domain.allocation import request as request_mod

_Policy = request_mod.PCINUMAPolicy
_Topology = request_mod.Topology
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
    """

    free: int
    numa: tuple[int, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    switches: tuple[int, ...] = ()
    available: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()

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
_ANYWHERE = (region_mod.Region(),)


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
        alone=tuple(gpu_id.get(name, 0) for name in alone))


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
    return _refusal(groups, request, [
        region_mod.base_region(request, frozenset(chosen))
        for chosen in itertools.combinations(
            nodes, min(guest_nodes, len(nodes)))])


def refusal_on(groups: Mapping[str, Masks], request: request_mod.Request,
               guest_nodes: frozenset[int], sockets: region_mod.Sockets,
               ) -> request_mod.Refusal | None:
    """Return why ``allocate`` would refuse for a guest on these nodes.

    :param sockets: the NUMA nodes of each of the host's sockets; empty:
        unknown
    """
    return _refusal(groups, request, [
        region_mod.base_region(request, guest_nodes, sockets)])


def _refusal(groups: Mapping[str, Masks], request: request_mod.Request,
             regions: Iterable[region_mod.Region],
             ) -> request_mod.Refusal | None:
    """Return why none of some regions suffices."""
    for demand in request.demands:
        available = groups.get(demand.resource_class, _NONE).units()
        if available < demand.count:
            return request_mod.count_refusal(demand, available)
    if regions is _ANYWHERE and not request.restricts_topology:
        return None
    masks = [groups[demand.resource_class] for demand in request.demands]
    counts = [demand.count for demand in request.demands]
    topology = request.topology if request.restricts_topology else (
        _Topology.ANY)
    parts = [[_within(mask, region) for mask in masks] for region in regions]
    if any(_fits(part, counts, topology) for part in parts):
        return None
    if any(_fits(part, counts, _Topology.ANY) for part in parts):
        return request_mod.topology_refusal(request)
    return request_mod.far_refusal(request)


def _within(mask: Masks, region: region_mod.Region) -> Masks:
    """Return the masks of the GPUs on the NUMA nodes of a region."""
    if region.numa_nodes is None:
        return mask
    part = functools.reduce(operator.or_, (
        gpus for node, gpus in zip(mask.numa_nodes, mask.numa, strict=True)
        if node in region.numa_nodes), 0)
    if None in region.numa_nodes:
        part |= ~functools.reduce(operator.or_, mask.numa, 0)
    return dataclasses.replace(mask, free=mask.free & part)


def _fits(masks: Sequence[Masks], counts: Sequence[int],
          topology: request_mod.Topology) -> bool:
    """Return whether one node or switch has enough of each class."""
    if topology is _Topology.ANY:
        return _has_enough(masks, counts, [-1] * len(masks))
    places = zip(*(
        (mask.switches if topology is _Topology.SAME_SWITCH
         else mask.numa) + mask.alone for mask in masks), strict=True)
    return any(_has_enough(masks, counts, place) for place in places)


def _has_enough(masks: Iterable[Masks], counts: Iterable[int],
                place: Iterable[int]) -> bool:
    return all(mask.units(part) >= count for mask, count, part
               in zip(masks, counts, place, strict=True))
