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
"""Which cards an instance gets: a pure function of what is offered.

Order of wishes: what the request demands (all on one NUMA node, all below
one switch, all near the guest's memory), then all near the guest's memory
where that is preferred and can be, then the fewest NUMA nodes over the whole
request, then the fewest PCIe switches, then the policy: depth_first leaves
the fewest free cards on the nodes and switches that are used (the largest
island stays whole), breadth_first the most. What is still equal is decided by
id.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain.allocation import request as request_mod

_Policy = request_mod.AllocationPolicy
_Reason = request_mod.Reason
_Topology = request_mod.Topology
_Numa = request_mod.NumaPolicy

# Sets of islands tried for the optimum; beyond it the largest islands are
# taken first, which is optimal for one kind of card and close to it for more.
MAX_COMBINATIONS = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """A card that may be given away.

    :ivar switch: nearest PCIe switch above it; None directly below a root
        port, where it shares no switch with any other card
    """

    id: str
    numa_node: int | None = None
    switch: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a request cannot be met, by name and in numbers."""

    reason: request_mod.Reason
    detail: str


_NO_GUEST_NODES = Refusal(
    reason=_Reason.NUMA_POLICY_REQUIRED,
    detail="the guest's memory is on no NUMA node of its own; "
           "hw:numa_nodes in the flavor gives it some")


class Unsatisfiable(Exception):
    """No set of the offered cards meets the request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f'{refusal.reason}: {refusal.detail}')
        self.reason = refusal.reason
        self.detail = refusal.detail


_Offers = Mapping[str, Sequence[Card]]
_Pools = dict[str, list[Card]]
_Need = Mapping[str, int]
_Place = Callable[[Card], str]


def allocate(offers: _Offers, request: request_mod.Request,
             policies: Mapping[str, request_mod.AllocationPolicy],
             guest_nodes: frozenset[int] | None = None,
             ) -> dict[str, tuple[str, ...]]:
    """Choose cards for every demand.

    :param guest_nodes: the host's NUMA nodes on which the guest's memory is;
        None: anywhere

    :param offers: offered cards by resource class
    :param policies: the groups' own policies by resource class, used where
        the request names none
    :returns: ids of the chosen cards by resource class
    :raises Unsatisfiable: with the reason's name and the numbers
    """
    if request.numa_policy is _Numa.NONE:
        return _allocate(offers, request, policies)
    required = request.numa_policy is _Numa.REQUIRED
    if guest_nodes is None:
        if required:
            raise Unsatisfiable(_NO_GUEST_NODES)
        return _allocate(offers, request, policies)
    need = _need(request)
    _check_counts({name: len(offers.get(name, ())) for name in need}, need)
    near = {name: [card for card in cards if card.numa_node in guest_nodes]
            for name, cards in offers.items()}
    if required and any(len(near[name]) < count
                        for name, count in need.items()):
        raise Unsatisfiable(far_refusal(request))
    try:
        return _allocate(near, request, policies)
    except Unsatisfiable:
        if required:
            raise
    return _allocate(offers, request, policies)


def _need(request: request_mod.Request) -> dict[str, int]:
    return {demand.resource_class: demand.count
            for demand in request.demands}


def _allocate(offers: _Offers, request: request_mod.Request,
              policies: Mapping[str, request_mod.AllocationPolicy],
              ) -> dict[str, tuple[str, ...]]:
    need = _need(request)
    pools = {name: sorted(offers.get(name, ()), key=lambda card: card.id)
             for name in need}
    _check_counts(
        {name: len(pool) for name, pool in pools.items()}, need)
    policy = request.allocation_policy or policies.get(
        next(iter(need), ''), _Policy.DEPTH_FIRST)
    choices = [
        chosen for island in _islands(pools, need, request.topology)
        if (chosen := _choose(island, need, policy)) is not None]
    if not choices:
        raise Unsatisfiable(_topology_refusal(request))
    return min(choices, key=lambda chosen: chosen.cost).cards


@dataclasses.dataclass(frozen=True)
class _Choice:
    cost: tuple[object, ...]
    cards: dict[str, tuple[str, ...]]


def _check_counts(free: Mapping[str, int], need: _Need) -> None:
    for name, count in need.items():
        if free[name] < count:
            raise Unsatisfiable(_count_refusal(name, count, free[name]))


def _count_refusal(name: str, count: int, free: int) -> Refusal:
    return Refusal(
        reason=_Reason.NOT_ENOUGH_AVAILABLE,
        detail=f'asked {count} of {name}, {free} available')


def far_refusal(request: request_mod.Request) -> Refusal:
    """What is asked is not where the guest's memory is."""
    return Refusal(
        reason=_Reason.NUMA_POLICY_REQUIRED,
        detail=f"no {asked(request)} available on the NUMA nodes of the "
               f"guest's memory")


def asked(request: request_mod.Request) -> str:
    """The demands in words."""
    return ', '.join(f'{each.count} of {each.resource_class}'
                     for each in request.demands)


def _topology_refusal(request: request_mod.Request) -> Refusal:
    if request.topology is _Topology.SAME_SWITCH:
        return Refusal(reason=_Reason.TOPOLOGY_SAME_SWITCH,
                       detail=f'no PCIe switch has {asked(request)} available')
    return Refusal(reason=_Reason.TOPOLOGY_SAME_NUMA,
                   detail=f'no NUMA node has {asked(request)} available')


def _islands(pools: _Pools, need: _Need,
             topology: request_mod.Topology,
             ) -> list[dict[str, list[Card]]]:
    """The parts of the offer out of which the topology allows to choose."""
    if topology is _Topology.ANY or sum(need.values()) <= 1:
        return [dict(pools)]
    attribute = ('switch' if topology is _Topology.SAME_SWITCH
                 else 'numa_node')
    values = {getattr(card, attribute)
              for pool in pools.values() for card in pool} - {None}
    return [{name: [card for card in pool
                    if getattr(card, attribute) == value]
             for name, pool in pools.items()}
            for value in sorted(values)]


def _choose(pools: _Pools, need: _Need,
            policy: request_mod.AllocationPolicy) -> _Choice | None:
    """The best choice out of one island; None if it has too few cards."""
    if any(len(pools[name]) < count for name, count in need.items()):
        return None
    sign = 1 if policy is _Policy.DEPTH_FIRST else -1
    choices = []
    for nodes in _covers(pools, need, _node):
        on_nodes = _restrict(pools, _node, nodes)
        for switches in _covers(on_nodes, need, _switch):
            on_switches = _restrict(on_nodes, _switch, switches)
            cards = {name: tuple(card.id for card in
                                 on_switches[name][:count])
                     for name, count in need.items()}
            choices.append(_Choice(cost=(
                len(nodes), len(switches), sign * _count(on_nodes),
                sign * _count(on_switches), sorted(cards.items())),
                cards=cards))
    return min(choices, key=lambda choice: choice.cost)


def _node(card: Card) -> str:
    # Unknown nodes are together no better than one node of their own.
    return '' if card.numa_node is None else f'{card.numa_node:08d}'


def _switch(card: Card) -> str:
    return card.switch if card.switch is not None else f'\0{card.id}'


def _count(pools: _Pools) -> int:
    return sum(len(pool) for pool in pools.values())


def _restrict(pools: _Pools, place: _Place,
              places: frozenset[str]) -> _Pools:
    return {name: [card for card in pool if place(card) in places]
            for name, pool in pools.items()}


def _covers(pools: _Pools, need: _Need,
            place: _Place) -> list[frozenset[str]]:
    """The smallest sets of places that together hold what is needed."""
    counts: dict[str, collections.Counter[str]] = (
        collections.defaultdict(collections.Counter))
    for name, pool in pools.items():
        for card in pool:
            counts[place(card)][name] += 1

    def enough(chosen: Iterable[str]) -> bool:
        held: collections.Counter[str] = collections.Counter()
        for each in chosen:
            held.update(counts[each])
        return all(held[name] >= count for name, count in need.items())

    places = sorted(counts)
    for size in range(1, len(places) + 1):
        if math.comb(len(places), size) > MAX_COMBINATIONS:
            break
        found = [frozenset(chosen)
                 for chosen in itertools.combinations(places, size)
                 if enough(chosen)]
        if found:
            return found
    return [_largest_first(counts, enough)]


def _largest_first(counts: Mapping[str, collections.Counter[str]],
                   enough: Callable[[Iterable[str]], bool]) -> frozenset[str]:
    ordered = sorted(
        counts, key=lambda place: (-counts[place].total(), place))
    for size in range(1, len(ordered) + 1):
        if enough(ordered[:size]):
            return frozenset(ordered[:size])
    return frozenset(ordered)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masks:
    """Free cards of one class on one host; bit i is card i.

    Entry i of ``numa`` (of ``switches``) is the same node (switch) in every
    Masks of a host.

    :ivar available: units that each card can take; empty: one each
    :ivar alone: each card that can take several and whose node or switch is
        unknown; by itself it is at one place all the same. Entry i is the
        same card in every Masks of a host
    """

    free: int
    numa: tuple[int, ...] = ()
    switches: tuple[int, ...] = ()
    available: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()

    def units(self, part: int = -1) -> int:
        """Units that some of the cards can take.

        :param part: mask of these cards; default all
        """
        free = self.free & part
        if not self.available:
            return free.bit_count()
        return sum(units for index, units in enumerate(self.available)
                   if free >> index & 1)


def masks(groups: Sequence[Sequence[tuple[Card, int]]]) -> list[Masks]:
    """Masks of a host's groups, each a sequence of (card, units that it can
    take)."""
    nodes = sorted({card.numa_node for group in groups
                    for card, _ in group if card.numa_node is not None})
    switches = sorted({card.switch for group in groups
                       for card, _ in group if card.switch is not None})
    total: collections.Counter[str] = collections.Counter()
    for card, units in itertools.chain.from_iterable(groups):
        if card.numa_node is None or card.switch is None:
            total[card.id] += units
    alone = sorted(name for name, units in total.items() if units > 1)

    def mask(group: Sequence[tuple[Card, int]], field: str,
             value: object) -> int:
        return sum(1 << index for index, (card, _) in enumerate(group)
                   if getattr(card, field) == value)

    return [Masks(
        free=sum(1 << index for index, (_, units) in enumerate(group)
                 if units > 0),
        numa=tuple(mask(group, 'numa_node', node) for node in nodes),
        switches=tuple(mask(group, 'switch', switch) for switch in switches),
        available=tuple(units for _, units in group)
        if any(units > 1 for _, units in group) else (),
        alone=tuple(mask(group, 'id', name) for name in alone))
        for group in groups]


def refusal(groups: Mapping[str, Masks], request: request_mod.Request,
            guest_nodes: int | None = None) -> Refusal | None:
    """Whether ``allocate`` would refuse, decided on masks alone.

    :param groups: the host's masks by resource class
    :param guest_nodes: on how many of the host's NUMA nodes the guest's
        memory will be; None: anywhere
    :returns: with guest_nodes and the policy ``required``: None if there are
        nodes for which it would not refuse; Nova has yet to choose
    """
    need = _need(request)
    required = request.numa_policy is _Numa.REQUIRED
    if required and guest_nodes is None:
        return _NO_GUEST_NODES
    none = Masks(free=0)
    for name, count in need.items():
        free = groups.get(name, none).units()
        if free < count:
            return _count_refusal(name, count, free)
    masks = [groups[name] for name in need]
    counts = list(need.values())
    if not required:
        return None if _fits(masks, counts, request.topology) else (
            _topology_refusal(request))
    nodes = list(zip(*(mask.numa for mask in masks), strict=True))
    near = [
        [functools.reduce(operator.or_, parts)
         for parts in zip(*chosen, strict=True)]
        for chosen in itertools.combinations(
            nodes, min(guest_nodes or 1, len(nodes))) if chosen]
    on_them = [
        [dataclasses.replace(mask, free=mask.free & part)
         for mask, part in zip(masks, parts, strict=True)]
        for parts in near]
    if any(_fits(each, counts, request.topology) for each in on_them):
        return None
    if any(_fits(each, counts, _Topology.ANY) for each in on_them):
        return _topology_refusal(request)
    return far_refusal(request)


def _fits(masks: Sequence[Masks], counts: Sequence[int],
          topology: request_mod.Topology) -> bool:
    """Whether one island has enough free cards of each class."""
    islands: Iterable[Sequence[int]] = [[mask.free for mask in masks]]
    if topology is not _Topology.ANY and sum(counts) > 1:
        islands = zip(*(
            (mask.switches if topology is _Topology.SAME_SWITCH
             else mask.numa) + mask.alone for mask in masks), strict=True)
    return any(
        all(mask.units(part) >= count for part, mask, count
            in zip(island, masks, counts, strict=True))
        for island in islands)
