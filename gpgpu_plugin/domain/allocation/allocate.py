# SPDX-License-Identifier: Apache-2.0
"""Selection of GPUs and vGPUs for a request.

Order of preferences:

1. the request's demands: all on one NUMA node, all below one switch, all near
   the guest's memory; whole GPUs that must be linked, or are on a board with a
   fabric, are exactly one link partition (domain.fabric);
2. all near the guest's memory, if that is preferred and possible;
3. one NUMA node, if vGPUs are requested;
4. vGPUs by policy: depth_first takes GPUs that have vGPUs already and leaves
   GPUs empty, breadth_first takes the emptiest;
5. whole GPUs: the link partition that breaks the least of the other ones;
   then the fewest NUMA nodes over the whole request, then the fewest PCIe
   switches, then the GPUs whose links others need the least, then by policy:
   depth_first leaves the fewest free GPUs on the nodes and switches that are
   used, so that the largest island stays whole, breadth_first the most;
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
import fractions
import itertools
import math
import operator
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import MutableMapping
from collections.abc import Sequence

from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import vgpu as vgpu_rules
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod

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
             sockets: offer_mod.Sockets = ()) -> Selections:
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
    for tier in offer_mod.preference_tiers(
            _gpus(offers), request, guest_nodes, sockets,
            one_node_first=bool(search.vgpu_demands)):
        outcomes = [outcome for region in tier
                    if (outcome := search.within(region)) is not None]
        if outcomes:
            return min(outcomes, key=lambda outcome: outcome.cost).selections
    raise request_mod.Unsatisfiable(_refusal(
        search, request, offer_mod.base_region(
            request, guest_nodes, sockets)))


def _gpus(offers: _Offers) -> list[vgpu_rules.GPUCapacity]:
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

    def offers_within(self, region: offer_mod.HostRegion) -> _Offers | None:
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

    def within(self, region: offer_mod.HostRegion) -> _Outcome | None:
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
        for reserved in reserved_gpus(
                [offers[demand.resource_class]
                 for demand in self.vgpu_demands],
                [(offers[name], count, self._by_cost(name, offers[name])
                  if name in self.confined else None)
                 for name, count in self.gpu_counts.items()]):
            yield self.policy, self.vgpu_demands, reserved
            for policy, demands in closest:
                yield policy, demands, reserved

    def _by_cost(self, name: str, part: offer_mod.TypeOffer,
                   ) -> list[fabric.Partition]:
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
        selections = pack_vgpus(gpus, offers, demands, policy)
        if selections is None:
            return None
        whole = choose_whole_gpus({
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
    refusal = fabric.link_kinds_refusal(request)
    if refusal is not None:
        raise request_mod.Unsatisfiable(refusal)
    for demand in request.demands:
        offer = offers[demand.resource_class]
        if offer.is_confined(request) and not offer.partitions_of(
                demand.count):
            known = offer.links or fabric.NOTHING_KNOWN
            raise request_mod.Unsatisfiable(fabric.link_refusal(
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
               gpus: Iterable[vgpu_rules.GPUCapacity]) -> int:
    """Return how many would fit without the drivers' limits."""
    return sum(
        dataclasses.replace(gpu, driver_available=None).available(
            offer.vgpu_type) for gpu in gpus)


def _refusal(search: _Search, request: request_mod.Request,
             base: offer_mod.HostRegion) -> request_mod.Refusal:
    """Return why no region suffices although the host has enough units.

    :param base: the largest region that is allowed
    """
    gpus = _gpus(search.offers)
    if search.offers_within(base) is None:
        return request_mod.far_refusal(request)
    if request.restricts_topology and all(
            search.offers_within(region) is None for region
            in offer_mod.topology_regions(gpus, request.topology, base)):
        return request_mod.topology_refusal(request)
    return request_mod.Refusal(
        reason=request_mod.Reason.TYPE_CONFLICT,
        detail='each type fits alone, but not all of them together: '
               + request_mod.describe(request))


# -- Choice of whole GPUs: the fewest NUMA nodes, then the fewest switches.
#
# Where exactly one link partition must be taken, the first criterion is which
# other partitions that breaks.


MAX_PLACE_COMBINATIONS = 500
"""Number of sets of nodes (of switches) that are tried for the optimum.

Beyond it the largest are taken first, which is optimal for one resource class
and close to the optimum for several.
"""

_Pools = Mapping[str, Sequence[vgpu_rules.GPUCapacity]]
_Counts = Mapping[str, int]
_Key = int | str
_KeyOf = Callable[[vgpu_rules.GPUCapacity], _Key]
_Totals = Mapping[_Key, Sequence[int]]
_Partitions = Mapping[str, fabric.FreePartitions]


@dataclasses.dataclass(frozen=True)
class GPUChoice:
    """Chosen GPUs, by resource class.

    :ivar cost: of two choices the one with the lower cost is better
    """

    cost: tuple[object, ...]
    gpus: Mapping[str, Sequence[vgpu_rules.GPUCapacity]]


def choose_whole_gpus(pools: _Pools, counts: _Counts,
                      policy: request_mod.AllocationPolicy,
                      partitions: _Partitions | None = None,
                      confined: Collection[str] = ()) -> GPUChoice | None:
    """Return the best choice; None if there are too few GPUs.

    :param pools: GPUs that can be taken, by resource class
    :param counts: how many are demanded, by resource class
    :param partitions: free link partitions by resource class, of the whole
        host
    :param confined: classes of which exactly one partition must be chosen
    """
    if any(len(pools[name]) < count for name, count in counts.items()):
        return None
    pools = {name: sorted(pool, key=operator.attrgetter('id'))
             for name, pool in pools.items()}
    search = _WholeGPUSearch(counts=counts, partitions=partitions or {},
                             # depth_first leaves the fewest GPUs where some
                             # are used.
                             sign=1 if policy is _Policy.DEPTH_FIRST else -1)
    choices = [choice for allowed in search.confine(pools, confined)
               for choice in search.choices(allowed, confined)]
    return min(choices, key=lambda choice: choice.cost, default=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WholeGPUSearch:
    """Search for the best choice, see ``choose_whole_gpus``."""

    counts: _Counts
    partitions: _Partitions
    sign: int

    def confine(self, pools: _Pools,
                confined: Collection[str]) -> Iterator[_Pools]:
        """Return the pools, once for each partition that may be taken.

        With several confined classes, it is once for each combination, of
        which the first are returned.
        """
        allowed = []
        for name in confined:
            by_id = {gpu.id: gpu for gpu in pools[name]}
            allowed.append([
                (name, [by_id[gpu_id] for gpu_id in sorted(part)])
                for part in self.partitions[name].partitions
                if len(part) == self.counts[name] and part <= by_id.keys()])
        for chosen in itertools.islice(
                itertools.product(*allowed), MAX_PLACE_COMBINATIONS):
            yield {**pools, **dict(chosen)}

    def choices(self, pools: _Pools,
                confined: Collection[str]) -> Iterator[GPUChoice]:
        """Return the best choice on each smallest set of places."""
        fragmentation = sum(self._cost(name, pools[name]) for name in confined)
        for nodes, on_nodes in _smallest(pools, self.counts, _numa_key):
            for switches, on_switches in _smallest(
                    on_nodes, self.counts, _switch_key):
                gpus = {name: self._least_cost(name, on_switches[name])
                        for name in self.counts}
                yield GPUChoice(gpus=gpus, cost=(
                    fragmentation, nodes, switches,
                    sum(self._cost(name, chosen)
                        for name, chosen in gpus.items()),
                    self.sign * _total(on_nodes),
                    self.sign * _total(on_switches),
                    sorted((name, [gpu.id for gpu in chosen])
                           for name, chosen in gpus.items())))

    def _cost(self, name: str, gpus: Iterable[vgpu_rules.GPUCapacity]) -> int:
        """Return what GPUs of a class cost in link partitions."""
        free = self.partitions.get(name)
        return free.cost(gpu.id for gpu in gpus) if free else 0

    def _least_cost(self, name: str, pool: Sequence[vgpu_rules.GPUCapacity],
                    ) -> Sequence[vgpu_rules.GPUCapacity]:
        """Return those GPUs of a pool that break the least partitions."""
        free, count = self.partitions.get(name), self.counts[name]
        if free is None or len(pool) == count:
            return pool[:count]
        by_id = {gpu.id: gpu for gpu in pool}
        return [by_id[gpu_id] for gpu_id in free.least_cost(by_id, count)]


def _numa_key(gpu: vgpu_rules.GPUCapacity) -> int:
    # Unknown nodes are together no better than one node of their own.
    return -1 if gpu.numa_node is None else gpu.numa_node


def _switch_key(gpu: vgpu_rules.GPUCapacity) -> str:
    return gpu.switch if gpu.switch is not None else f'\0{gpu.id}'


def _total(pools: _Pools) -> int:
    return sum(map(len, pools.values()))


def _smallest(pools: _Pools, counts: _Counts,
              key_of: _KeyOf) -> list[tuple[int, _Pools]]:
    """Return the pools on each smallest set of nodes (switches) that has
    enough, with the size of the set."""
    totals = _totals(pools, counts, key_of)
    if len(totals) < 2:
        return [(len(totals), pools)]
    return [(len(keys), {
        name: [gpu for gpu in pool if key_of(gpu) in keys]
        for name, pool in pools.items()}) for keys in _covers(totals, counts)]


def _covers(totals: _Totals, counts: _Counts) -> list[frozenset[_Key]]:
    """Return the smallest sets of nodes (switches) that have enough."""
    demanded = list(enumerate(counts.values()))

    def is_enough(keys: Sequence[_Key]) -> bool:
        return all(sum([totals[key][index] for key in keys]) >= count
                   for index, count in demanded)

    keys = sorted(totals)
    for size in range(1, len(keys) + 1):
        if math.comb(len(keys), size) > MAX_PLACE_COMBINATIONS:
            break
        found = [frozenset(combination)
                 for combination in itertools.combinations(keys, size)
                 if is_enough(combination)]
        if found:
            return found
    return [_largest_first(totals, is_enough)]


def _totals(pools: _Pools, counts: _Counts,
            key_of: _KeyOf) -> _Totals:
    """Return how many GPUs of each class each node (switch) has."""
    totals: dict[_Key, list[int]] = {}
    for index, name in enumerate(counts):
        for gpu in pools[name]:
            totals.setdefault(key_of(gpu), [0] * len(counts))[index] += 1
    return totals


def _largest_first(totals: _Totals,
                   is_enough: Callable[[Sequence[_Key]], bool],
                   ) -> frozenset[_Key]:
    ordered = sorted(totals, key=lambda key: (-sum(totals[key]), key))
    for size in range(1, len(ordered) + 1):
        if is_enough(ordered[:size]):
            return frozenset(ordered[:size])
    return frozenset(ordered)


# -- Packing of vGPUs onto GPUs, and reservation of GPUs for passthrough.


_GPUs = MutableMapping[str, vgpu_rules.GPUCapacity]

# Sets of GPUs that are reserved to stay whole, in turn.
_MAX_RESERVED = 24


def pack_vgpus(gpus: _GPUs, offers: _Offers,
               demands: Iterable[request_mod.Demand],
               policy: request_mod.AllocationPolicy,
               ) -> dict[str, tuple[offer_mod.Selection, ...]] | None:
    """Place vGPUs one after the other.

    depth_first takes GPUs that have vGPUs already, and among them the one on
    which the larger types lose least. breadth_first takes the emptiest ones,
    and chooses among them in the same way. Remaining ties are decided by id.

    :param gpus: GPUs that may be used, by id; updated in place with the new
        vGPUs
    :returns: selections by resource class; None if they do not all fit
    """
    selected = {}
    for demand in demands:
        selections = _place(gpus, offers[demand.resource_class],
                            demand.count, policy)
        if selections is None:
            return None
        selected[demand.resource_class] = selections
    return selected


def _place(gpus: _GPUs, offer: offer_mod.TypeOffer, count: int,
           policy: request_mod.AllocationPolicy,
           ) -> tuple[offer_mod.Selection, ...] | None:
    """Place vGPUs of one type."""
    name = offer.vgpu_type
    costs = {gpu.id: _cost(gpus[gpu.id], name, policy) for gpu in offer.gpus
             if gpu.id in gpus and gpus[gpu.id].available(name)}
    selections = []
    for _ in range(count):
        if not costs:
            return None
        gpu_id = min(costs, key=costs.__getitem__)
        gpus[gpu_id] = gpu = gpus[gpu_id].with_vgpu(name)
        selections.append(offer_mod.Selection(
            gpu_id=gpu_id, vgpu_type=name,
            placement_id=gpu.vgpus[-1].placement_id))
        if gpu.available(name):
            costs[gpu_id] = _cost(gpu, name, policy)
        else:
            del costs[gpu_id]
    return tuple(selections)


def _cost(gpu: vgpu_rules.GPUCapacity, name: str,
          policy: request_mod.AllocationPolicy) -> tuple[object, ...]:
    """Return the cost of one more vGPU on a GPU; a lower cost is better."""
    used = 1 - fractions.Fraction(
        gpu.available(name), gpu.max_instances(name))
    cost = gpu.fragmentation_cost(name)
    if policy is _Policy.DEPTH_FIRST:
        return (not gpu.vgpus, cost, -used, gpu.id)
    return (used, cost, gpu.id)


def reserved_gpus(offers: Sequence[offer_mod.TypeOffer],
                  whole: Iterable[tuple[
                      offer_mod.TypeOffer, int,
                      Sequence[frozenset[str]] | None]],
                  ) -> Iterator[frozenset[str]]:
    """Return sets of GPUs to reserve for passthrough, the best first.

    The best GPUs to reserve are those that could take the fewest vGPUs. Of
    equivalent GPUs only the first ones are tried.

    :param offers: offers of the demanded vGPU types
    :param whole: offers of passthrough, each with the count demanded, and
        with the only sets of GPUs that are allowed, the best first; None: any
    """
    subsets: list[Iterable[Iterable[str]]] = []
    for offer, count, allowed in whole:
        if allowed is not None:
            subsets.append(allowed[:_MAX_RESERVED])
            continue
        gpus = sorted(
            (gpu for gpu in offer.gpus if gpu.available(naming.PASSTHROUGH)),
            key=lambda gpu: (_available(gpu, offers), gpu.id))
        subsets.append(itertools.islice(
            _subsets(_equivalence_classes(gpus, offers), count),
            _MAX_RESERVED))
    for combination in itertools.islice(
            itertools.product(*subsets), _MAX_RESERVED):
        yield frozenset(itertools.chain.from_iterable(combination))


def _available(gpu: vgpu_rules.GPUCapacity,
               offers: Iterable[offer_mod.TypeOffer]) -> int:
    return sum(offer.available_by_gpu.get(gpu.id, 0) for offer in offers)


def _equivalence_classes(gpus: Iterable[vgpu_rules.GPUCapacity],
                         offers: Collection[offer_mod.TypeOffer],
                         ) -> list[list[str]]:
    """Return the ids of GPUs, grouped by which vGPUs they can take."""
    classes: list[tuple[object, list[str]]] = []
    for gpu in gpus:
        demanded = {offer.vgpu_type for offer in offers
                    if gpu.id in offer.available_by_gpu}
        kind = (demanded, dataclasses.replace(
            gpu, id='', numa_node=None, switch=None)) if demanded else None
        members = next(
            (members for other, members in classes if other == kind), None)
        if members is None:
            classes.append((kind, [gpu.id]))
        else:
            members.append(gpu.id)
    return [members for _, members in classes]


def _subsets(classes: Sequence[Sequence[str]],
             count: int) -> Iterator[tuple[str, ...]]:
    """Return every distinct way to take a number of GPUs."""
    if not count:
        yield ()
    elif sum(map(len, classes)) >= count:
        first, *rest = classes
        for taken in range(min(count, len(first)), -1, -1):
            for others in _subsets(rest, count - taken):
                yield (*first[:taken], *others)


# -- Choice of the NUMA nodes of a guest, together with its GPUs.


Choices = Sequence[frozenset[int]]
"""Sets of the host's NUMA nodes that can take the guest, the best first."""


def allocate_near(
        offers: Mapping[str, offer_mod.TypeOffer],
        request: request_mod.Request,
        policies: Mapping[str, request_mod.AllocationPolicy],
        choices: Choices,
        sockets: offer_mod.Sockets = ()) -> Selections:
    """Select GPUs for the first choice that has enough on its own nodes.

    If none has, they are for the first choice for which the NUMA policies
    allow other GPUs.

    :param choices: at least one
    :param sockets: as of ``allocate``
    :raises Unsatisfiable: with the reason for the first choice
    """
    refusals: list[request_mod.Unsatisfiable] = []
    for wanted in _tiers(request):
        refusals.clear()
        for choice in choices:
            try:
                return allocate(
                    offers, wanted, policies, choice, sockets)
            except request_mod.Unsatisfiable as exc:
                refusals.append(exc)
    raise refusals[0]


def nearest(gpu_nodes: frozenset[int | None], request: request_mod.Request,
            choices: Choices,
            sockets: offer_mod.Sockets = ()) -> frozenset[int]:
    """Return the choice for which ``allocate_near`` selected some GPUs.

    :param gpu_nodes: their NUMA nodes
    """
    for wanted in _tiers(request):
        for choice in choices:
            allowed = offer_mod.base_region(wanted, choice, sockets).numa_nodes
            if allowed is None or gpu_nodes <= allowed:
                return choice
    return choices[0]


def _tiers(request: request_mod.Request) -> list[request_mod.Request]:
    """Return the request with the strictest policy, then as it is."""
    if request.numa_affinity is None:
        return [request]
    return [dataclasses.replace(
        request, pci_numa_policy=request_mod.PCINUMAPolicy.REQUIRED), request]
