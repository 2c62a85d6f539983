# SPDX-License-Identifier: Apache-2.0
"""Selection of GPUs and vGPUs for a request, a pure function of the offers.

Order of preferences:

1. the request's demands: all on one NUMA node, all below one switch, all near
   the guest's memory; whole GPUs that must be linked, or are on a board with a
   fabric, are exactly one link partition (``links``);
2. all near the guest's memory, if that is preferred and possible;
3. one NUMA node, if vGPUs are requested;
4. vGPUs by policy: depth_first takes GPUs that have vGPUs already and leaves
   GPUs empty, breadth_first takes the emptiest (``packing``);
5. whole GPUs: the link partition that breaks the least of the other ones;
   then the fewest NUMA nodes over the whole request, then the fewest PCIe
   switches, then the GPUs whose links others need the least, then by policy:
   depth_first leaves the fewest free GPUs on the nodes and switches that are
   used, so that the largest island stays whole, breadth_first the most
   (``whole_gpus``);
6. ids.

A whole GPU is a unit of the type ``passthrough``: each GPU has one, which
excludes everything else on it. If vGPUs placed by these preferences would
leave too few whole GPUs, GPUs are reserved for passthrough first.

The search is exact for requests of one resource class and for requests of
whole GPUs alone. Requests of several types that include vGPUs are packed
greedily in a bounded number of ways. They could be refused although a packing
exists; for small numbers of GPUs, a brute-force oracle in the tests finds no
such case.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import links as links_mod
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import packing
from gpgpu_plugin.domain.allocation import region as region_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.allocation import whole_gpus
from gpgpu_plugin.domain.vgpu import capacity

_Policy = request_mod.AllocationPolicy
_Demands = tuple[request_mod.Demand, ...]
_Offers = Mapping[str, offer_mod.TypeOffer]
Selections = dict[str, tuple[offer_mod.Selection, ...]]

# Orders of the demands that are tried where the first one leaves no room.
_MAX_ORDERS = 24

_NOTHING = offer_mod.TypeOffer(vgpu_type=naming.PASSTHROUGH, gpus=())


def allocate(offers: _Offers, request: request_mod.Request,
             policies: Mapping[str, request_mod.AllocationPolicy],
             guest_nodes: frozenset[int] | None = None,
             sockets: region_mod.Sockets = ()) -> Selections:
    """Select GPUs and vGPUs for every demand.

    :param offers: what the host offers, by resource class
    :param policies: the groups' own policies by resource class, used where
        the request names none
    :param guest_nodes: the host's NUMA nodes of the guest's memory; None:
        anywhere
    :param sockets: the NUMA nodes of each of the host's sockets; empty:
        unknown
    :returns: by resource class
    :raises Unsatisfiable: with the reason's name and the numbers
    """
    if not request:
        return {}
    offers = {demand.resource_class: offers.get(
        demand.resource_class, _NOTHING) for demand in request.demands}
    _check_counts(offers, request, guest_nodes)
    _check_links(offers, request)
    policy = request.allocation_policy or policies.get(
        request.demands[0].resource_class, _Policy.DEPTH_FIRST)
    search = _search(offers, request, policy)
    for tier in region_mod.preference_tiers(
            _gpus(offers), request, guest_nodes, sockets,
            one_node_first=bool(search.vgpu_demands)):
        outcomes = [outcome for region in tier
                    if (outcome := search.within(region)) is not None]
        if outcomes:
            return min(outcomes, key=lambda outcome: outcome.cost).selections
    raise request_mod.Unsatisfiable(_refusal(
        search, request, region_mod.base_region(
            request, guest_nodes, sockets)))


def _gpus(offers: _Offers) -> list[capacity.GPUCapacity]:
    """Return the GPUs of all offers."""
    return list({gpu.id: gpu for offer in offers.values()
                 for gpu in offer.gpus}.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Outcome:
    """Selections in one region; a lower cost is better."""

    cost: tuple[object, ...]
    selections: Selections


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Search:
    """Search for selections that meet one request, region by region.

    :ivar offers: offers that are demanded, by resource class
    :ivar demands: all demands
    :ivar vgpu_demands: demands for vGPUs
    :ivar gpu_counts: number of whole GPUs demanded, by resource class
    :ivar confined: resource classes of which exactly one link partition must
        be selected
    """

    offers: _Offers
    demands: _Demands
    vgpu_demands: _Demands
    gpu_counts: Mapping[str, int]
    confined: frozenset[str]
    policy: request_mod.AllocationPolicy

    def offers_within(self, region: region_mod.Region) -> _Offers | None:
        """Return the offers of a region; None if it has too few units of one
        of them."""
        offers = {}
        for demand in self.demands:
            offer = self.offers[demand.resource_class]
            offers[demand.resource_class] = part = offer.within(region)
            if demand.resource_class in self.confined:
                if not part.partitions_of(demand.count):
                    return None
            elif sum(offer.available_by_gpu[gpu.id]
                     for gpu in part.gpus) < demand.count:
                return None
        return offers

    def within(self, region: region_mod.Region) -> _Outcome | None:
        """Return the best outcome in one region; None if nothing fits."""
        offers = self.offers_within(region)
        if offers is None:
            return None
        for policy, demands, reserved in self._attempts(offers):
            outcome = self._attempt(offers, policy, demands, reserved)
            if outcome is not None:
                return outcome
        return None

    def _attempts(self, offers: _Offers) -> Iterator[tuple[
            request_mod.AllocationPolicy, _Demands, frozenset[str]]]:
        """Return the attempts: policy, order of vGPU demands, reserved GPUs.

        The first attempt uses the order of the policy. The next ones use the
        closest packing, in every order of the demands. The last ones do the
        same without reserved GPUs.
        """
        nothing = frozenset[str]()
        yield self.policy, self.vgpu_demands, nothing
        if not self.vgpu_demands:
            return
        closest = [(_Policy.DEPTH_FIRST, order) for order in itertools.islice(
            itertools.permutations(self.vgpu_demands), _MAX_ORDERS)]
        for policy, demands in closest:
            yield policy, demands, nothing
        if not self.gpu_counts:
            return
        for reserved in packing.reserved_gpus(
                [offers[demand.resource_class]
                 for demand in self.vgpu_demands],
                [(offers[name], count, self._by_cost(name, offers[name])
                  if name in self.confined else None)
                 for name, count in self.gpu_counts.items()]):
            yield self.policy, self.vgpu_demands, reserved
            for policy, demands in closest:
                yield policy, demands, reserved

    def _by_cost(self, name: str, part: offer_mod.TypeOffer,
                   ) -> list[links_mod.Partition]:
        """Return the link partitions in a region, the best to take first."""
        cost = self.offers[name].fragmentation.cost
        return sorted(part.partitions_of(self.gpu_counts[name]),
                      key=lambda taken: (cost(taken), sorted(taken)))

    def _attempt(self, offers: _Offers, policy: request_mod.AllocationPolicy,
                 demands: _Demands,
                 reserved: frozenset[str]) -> _Outcome | None:
        """Place vGPUs, then select whole GPUs from the rest."""
        gpus = {gpu.id: gpu for demand in demands
                for gpu in offers[demand.resource_class].gpus
                if gpu.id not in reserved}
        selections = packing.pack(gpus, offers, demands, policy)
        if selections is None:
            return None
        whole = whole_gpus.choose({
            name: [gpu for gpu in offers[name].gpus if gpus.get(
                gpu.id, gpu).available(naming.PASSTHROUGH)]
            for name in self.gpu_counts}, self.gpu_counts, self.policy,
            {name: self.offers[name].fragmentation
             for name in self.gpu_counts}, self.confined)
        if whole is None:
            return None
        cost = (self._packing_cost(offers, selections), whole.cost)
        for name, chosen in whole.gpus.items():
            selections[name] = tuple(
                offer_mod.Selection(gpu_id=gpu.id,
                                    vgpu_type=naming.PASSTHROUGH)
                for gpu in chosen)
        return _Outcome(cost=cost, selections=selections)

    def _packing_cost(self, offers: _Offers,
                      selections: Selections) -> tuple[object, ...]:
        """Return the cost of vGPUs.

        It is the number of empty GPUs that they begin to use, and how many
        there were that they could use.
        """
        if not selections:
            return ()
        sign = 1 if self.policy is _Policy.DEPTH_FIRST else -1
        used = {selection.gpu_id for selection
                in itertools.chain.from_iterable(selections.values())}
        empty = {gpu.id for demand in self.vgpu_demands
                 for gpu in offers[demand.resource_class].gpus
                 if not gpu.vgpus and self.offers[
                     demand.resource_class].available_by_gpu[gpu.id]}
        return (sign * len(used & empty), sign * len(empty), sorted(used))


def _search(offers: _Offers, request: request_mod.Request,
            policy: request_mod.AllocationPolicy) -> _Search:
    demands = request.demands
    return _Search(
        confined=frozenset(
            name for name, offer in offers.items()
            if offer.is_confined(request)),
        offers=offers, demands=demands, policy=policy,
        vgpu_demands=tuple(
            demand for demand in demands
            if not offers[demand.resource_class].is_passthrough),
        gpu_counts={
            demand.resource_class: demand.count for demand in demands
            if offers[demand.resource_class].is_passthrough})


# -- refusals ---------------------------------------------------------------

def _check_counts(offers: _Offers, request: request_mod.Request,
                  guest_nodes: frozenset[int] | None) -> None:
    """Refuse demands that exceed what the whole host has."""
    if (guest_nodes is None
            and request.numa_policy is request_mod.NUMAPolicy.REQUIRED):
        raise request_mod.Unsatisfiable(request_mod.NO_GUEST_NODES)
    for demand in request.demands:
        offer = offers[demand.resource_class]
        if offer.available() < demand.count:
            raise request_mod.Unsatisfiable(_shortage(demand, offer))


def _check_links(offers: _Offers, request: request_mod.Request) -> None:
    """Refuse demands for which the host has no free link partition."""
    refusal = links_mod.kinds_refusal(request)
    if refusal is not None:
        raise request_mod.Unsatisfiable(refusal)
    for demand in request.demands:
        offer = offers[demand.resource_class]
        if offer.is_confined(request) and not offer.partitions_of(
                demand.count):
            known = offer.links or links_mod.NOTHING_KNOWN
            raise request_mod.Unsatisfiable(links_mod.refusal(
                demand, request, map(len, known.partitions), known.problem))


def _shortage(demand: request_mod.Demand,
              offer: offer_mod.TypeOffer) -> request_mod.Refusal:
    """Return why the whole host has too few units of one type."""
    refusal = request_mod.count_refusal(demand, offer.available())
    if offer.is_passthrough:
        return refusal
    by_policy = _by_policy(offer, offer.gpus)
    if by_policy >= demand.count:
        return request_mod.Refusal(
            reason=request_mod.Reason.DRIVER_HAS_NO_ROOM,
            detail=f'{refusal.detail}: {by_policy} would fit by size, but the '
                   f'drivers of the GPUs report no more free instances')
    alone = [dataclasses.replace(gpu, vgpus=tuple(
        vgpu for vgpu in gpu.vgpus if vgpu.vgpu_type == offer.vgpu_type))
        for gpu in offer.gpus]
    if _by_policy(offer, alone) < demand.count:
        return refusal
    others = sorted({vgpu.vgpu_type for gpu in offer.gpus
                     for vgpu in gpu.vgpus} - {offer.vgpu_type})
    return request_mod.Refusal(
        reason=request_mod.Reason.TYPE_CONFLICT,
        detail=f'{refusal.detail}: the GPUs have vGPUs of type '
               f'{", ".join(others)}, and their mix policy is '
               f'{offer.gpus[0].mix_policy}')


def _by_policy(offer: offer_mod.TypeOffer,
               gpus: Iterable[capacity.GPUCapacity]) -> int:
    """Return how many would fit without the drivers' limits."""
    return sum(
        dataclasses.replace(gpu, driver_available=None).available(
            offer.vgpu_type) for gpu in gpus)


def _refusal(search: _Search, request: request_mod.Request,
             base: region_mod.Region) -> request_mod.Refusal:
    """Return why no region suffices although the host has enough units.

    :param base: the largest region that is allowed
    """
    gpus = _gpus(search.offers)
    if search.offers_within(base) is None:
        return request_mod.far_refusal(request)
    if request.restricts_topology and all(
            search.offers_within(region) is None for region
            in region_mod.topology_regions(gpus, request.topology, base)):
        return request_mod.topology_refusal(request)
    return request_mod.Refusal(
        reason=request_mod.Reason.TYPE_CONFLICT,
        detail='each type fits alone, but not all of them together: '
               + request_mod.describe(request))
