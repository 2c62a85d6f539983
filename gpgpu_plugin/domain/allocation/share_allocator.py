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
"""Which cards an instance's vGPUs are carved out of: a pure function.

Order of wishes: what the request demands of topology and NUMA, then all near
the guest's memory where that is preferred, then one NUMA node, then the
policy. depth_first takes cards that have vGPUs already, and among them the
one on which the larger types lose least; breadth_first the emptiest, and
among them likewise. What is still equal is decided by id.

Whole cards of the same request are chosen beside them; a card of which
something is carved is never whole. Where vGPUs by these wishes leave too few,
cards are kept for it first.
"""

from __future__ import annotations

import dataclasses
import fractions
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain.allocation import allocator
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.vgpu import capacity

_Policy = request_mod.AllocationPolicy
_Policies = Mapping[str, request_mod.AllocationPolicy]

# Orders of the demands that are tried when the first one leaves no room, and
# sets of cards that are kept whole.
_MAX_ORDERS = 24
_MAX_KEPT = 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypeOffer:
    """What one resource class is: a type of some cards.

    Cards of one id are the same card in every share.
    """

    vgpu_type: str
    cards: Sequence[capacity.GPUCapacity]

    def available(self) -> int:
        """So many can be claimed, if nothing else is."""
        return sum(
            capacity.available(card, self.vgpu_type) for card in self.cards
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """A whole card, or a vGPU on it.

    :ivar vgpu_type: None: the whole card
    :ivar placement_id: as in capacity.VGPU
    """

    card: str
    vgpu_type: str | None = None
    placement_id: int | None = None


_Result = dict[str, tuple[Selection, ...]]


def allocate(offers: Mapping[str, Sequence[allocator.Card]],
             shares: Mapping[str, TypeOffer], request: request_mod.Request,
             policies: _Policies, guest_nodes: frozenset[int] | None = None,
             ) -> _Result:
    """Choose for every demand.

    :param offers: whole cards by resource class, as for allocator.allocate
    :param shares: what vGPUs are carved out of, by resource class
    :param policies: the groups' own policies by resource class
    :returns: by resource class
    :raises Unsatisfiable: with the reason's name and the numbers
    """
    demanded = [each.resource_class for each in request.demands
                if each.resource_class in shares]
    if not demanded:
        return _whole(allocator.allocate(
            offers, request, policies, guest_nodes))
    _check(offers, shares, request, guest_nodes)
    policy = request.allocation_policy or policies.get(
        request.demands[0].resource_class, _Policy.DEPTH_FIRST)
    for regions in _wishes(offers, shares, request, guest_nodes):
        found = [outcome for region in regions if (
            outcome := _fill(region.of(offers), region.shares(shares),
                             request, policy)) is not None]
        if found:
            return min(found, key=lambda outcome: outcome.cost).chosen
    raise allocator.Unsatisfiable(_refusal(
        offers, shares, request, guest_nodes))


def _whole(chosen: Mapping[str, Iterable[str]]) -> _Result:
    return {name: tuple(Selection(card=card) for card in cards)
            for name, cards in chosen.items()}


def _check(offers: Mapping[str, Sequence[allocator.Card]],
           shares: Mapping[str, TypeOffer], request: request_mod.Request,
           guest_nodes: frozenset[int] | None) -> None:
    refusal = allocator.refusal(
        _masks(offers, shares, request), dataclasses.replace(
            request, topology=request_mod.Topology.ANY),
        None if guest_nodes is None else len(guest_nodes))
    if refusal is None:
        return
    for demand in request.demands:
        share = shares.get(demand.resource_class)
        if share is not None and share.available() < demand.count:
            raise allocator.Unsatisfiable(
                _full(demand, share) or _conflict(demand, share) or refusal)
    raise allocator.Unsatisfiable(refusal)


def _reckoned(share: TypeOffer, stays: Callable[[capacity.VGPU], bool]) -> int:
    """Room by the rule of the cards alone, beside those units that stay."""
    return sum(capacity.available(dataclasses.replace(
        card, driver_available=None, vgpus=tuple(filter(stays, card.vgpus))),
        share.vgpu_type) for card in share.cards)


def _full(demand: request_mod.Demand,
          share: TypeOffer) -> allocator.Refusal | None:
    """That the drivers alone are against it; None: it is not so."""
    room = _reckoned(share, lambda unit: True)
    if room < demand.count:
        return None
    return allocator.Refusal(
        reason=request_mod.Reason.DRIVER_HAS_NO_ROOM,
        detail=f'asked {demand.count} of {demand.resource_class}, '
               f'{share.available()} available: the cards would have room for '
               f'{room}, but their drivers make no more')


def _conflict(demand: request_mod.Demand,
              share: TypeOffer) -> allocator.Refusal | None:
    """That other types are where these could be; None: it is not so."""
    name = share.vgpu_type
    others = sorted({
        unit.vgpu_type or 'something unknown' for card in share.cards
        for unit in card.vgpus if unit.vgpu_type != name})
    if _reckoned(share, lambda unit: unit.vgpu_type == name) < demand.count:
        return None
    return allocator.Refusal(
        reason=request_mod.Reason.TYPE_CONFLICT,
        detail=f'asked {demand.count} of {demand.resource_class}, '
        f'{share.available()} available: cards have {", ".join(others)}, '
        f'and their rule is {share.cards[0].mix_policy}',
    )


def _masks(offers: Mapping[str, Sequence[allocator.Card]],
           shares: Mapping[str, TypeOffer], request: request_mod.Request,
           ) -> dict[str, allocator.Masks]:
    names = [each.resource_class for each in request.demands]
    groups = [
        [(card, 1) for card in offers.get(name, ())]
        if name not in shares
        else [
            (_as_card(card), capacity.available(card, shares[name].vgpu_type))
            for card in shares[name].cards
        ]
        for name in names
    ]
    return dict(zip(names, allocator.masks(groups), strict=True))


def _as_card(card: capacity.GPUCapacity) -> allocator.Card:
    return allocator.Card(id=card.id, numa_node=card.numa_node,
                          switch=card.switch)


def _refusal(offers: Mapping[str, Sequence[allocator.Card]],
             shares: Mapping[str, TypeOffer], request: request_mod.Request,
             guest_nodes: frozenset[int] | None) -> allocator.Refusal:
    """Why no region will do, though the host as a whole has the units."""
    anywhere = dataclasses.replace(
        request, numa_policy=request_mod.NumaPolicy.NONE)
    if request.numa_policy is request_mod.NumaPolicy.REQUIRED:
        near = _Region(frozenset(guest_nodes or ()))
        offers, shares = near.of(offers), near.shares(shares)
        if allocator.refusal(_masks(offers, shares, request),
                             dataclasses.replace(
                anywhere, topology=request_mod.Topology.ANY)) is not None:
            return allocator.far_refusal(request)
    return allocator.refusal(
        _masks(offers, shares, request), anywhere) or allocator.Refusal(
        reason=request_mod.Reason.TYPE_CONFLICT,
        detail='each kind has room, but not all of them together: '
               + allocator.asked(request))


@dataclasses.dataclass(frozen=True)
class _Region:
    """Part of the host; None: anywhere."""

    nodes: frozenset[int | None] | None = None
    switch: str | None = None
    card: str | None = None

    def _has(self, card: allocator.Card | capacity.GPUCapacity) -> bool:
        return ((self.nodes is None or card.numa_node in self.nodes)
                and self.switch in (None, card.switch)
                and self.card in (None, card.id))

    def of(self, offers: Mapping[str, Sequence[allocator.Card]],
           ) -> dict[str, list[allocator.Card]]:
        return {name: [card for card in cards if self._has(card)]
                for name, cards in offers.items()}

    def shares(self, shares: Mapping[str, TypeOffer]) -> dict[str, TypeOffer]:
        return {name: dataclasses.replace(share, cards=[
            card for card in share.cards if self._has(card)])
            for name, share in shares.items()}


def _wishes(offers: Mapping[str, Sequence[allocator.Card]],
            shares: Mapping[str, TypeOffer], request: request_mod.Request,
            guest_nodes: frozenset[int] | None,
            ) -> Iterator[list[_Region]]:
    """Regions that are equally good, the best first."""
    cards: list[allocator.Card | capacity.GPUCapacity] = [
        *itertools.chain.from_iterable(offers.values()),
        *(card for share in shares.values() for card in share.cards)]
    near = (frozenset(guest_nodes) if guest_nodes is not None
            and request.numa_policy is not request_mod.NumaPolicy.NONE
            else None)
    bases: list[frozenset[int | None] | None] = (
        [None] if near is None else [near] if request.numa_policy
        is request_mod.NumaPolicy.REQUIRED else [near, None])
    several = sum(each.count for each in request.demands) > 1
    for base in bases:
        nodes = sorted({card.numa_node for card in cards
                        if card.numa_node is not None
                        and (base is None or card.numa_node in base)})
        on_one = [_Region(frozenset({node})) for node in nodes]
        if not several or request.topology is request_mod.Topology.ANY:
            if several and len(nodes) > 1:
                yield on_one
            yield [_Region(base)]
        elif request.topology is request_mod.Topology.SAME_NUMA:
            yield [*on_one, *_alone(
                base, (card.id for card in cards if card.numa_node is None))]
        else:
            yield [*(_Region(base, switch) for switch in sorted(
                {card.switch for card in cards if card.switch is not None})),
                *_alone(base, (card.id for card in cards
                               if card.switch is None))]


def _alone(nodes: frozenset[int | None] | None,
           cards: Iterable[str]) -> list[_Region]:
    """What is on one card is at one place, wherever that is."""
    return [_Region(nodes, card=card) for card in sorted(set(cards))]


@dataclasses.dataclass(frozen=True)
class _Outcome:
    cost: tuple[object, ...]
    chosen: _Result


def _fill(offers: Mapping[str, Sequence[allocator.Card]],
          shares: Mapping[str, TypeOffer], request: request_mod.Request,
          policy: request_mod.AllocationPolicy) -> _Outcome | None:
    """The request out of one region; None if it does not fit.

    The order of the policy first; where that leaves no room for all, the
    closest packing, in every order of the demands; then the same without
    cards that are kept whole.
    """
    wanted = [each for each in request.demands
              if each.resource_class in shares]
    plain = dataclasses.replace(
        request, topology=request_mod.Topology.ANY,
        numa_policy=request_mod.NumaPolicy.NONE, allocation_policy=policy,
        demands=tuple(each for each in request.demands
                      if each.resource_class not in shares))
    orders = itertools.islice(itertools.permutations(wanted), _MAX_ORDERS)
    attempts = [(policy, tuple(wanted)), *(
        (_Policy.DEPTH_FIRST, order) for order in orders)]
    kept = itertools.chain([frozenset[str]()], _kept(
        offers, [shares[each.resource_class] for each in wanted],
        plain.demands) if plain else ())
    for keep, how, order in (
            (keep, *attempt) for keep in kept for attempt in attempts):
        cards = {card.id: card for share in shares.values()
                 for card in share.cards if card.id not in keep}
        chosen = _carve(cards, shares, order, how)
        if chosen is None:
            continue
        carved = {card for each in chosen.values() for card in each}
        free = {name: [card for card in pool if card.id not in {
            each.card for each in carved}] for name, pool in offers.items()}
        if plain:
            try:
                chosen.update(_whole(allocator.allocate(free, plain, {})))
            except allocator.Unsatisfiable:
                continue
        return _Outcome(_cost(shares, carved, policy), chosen)
    return None


def _kept(offers: Mapping[str, Sequence[allocator.Card]],
          shares: Sequence[TypeOffer], whole: Sequence[request_mod.Demand],
          ) -> Iterator[frozenset[str]]:
    """Cards to keep whole, those first that can be carved into the least;
    of cards that are alike the first ones alone."""
    cards = {card.id: card for share in shares for card in share.cards}
    rooms = {name: sum(capacity.available(card, share.vgpu_type)
                       for share in shares) for name, card in cards.items()}
    picks = []
    for demand in whole:
        names = sorted(
            (card.id for card in offers.get(demand.resource_class, ())),
            key=lambda name: (rooms.get(name, 0), name))
        picks.append(itertools.islice(
            _picks(_alike(cards, names), demand.count), _MAX_KEPT))
    for each in itertools.islice(itertools.product(*picks), _MAX_KEPT):
        yield frozenset(itertools.chain.from_iterable(each))


def _alike(cards: Mapping[str, capacity.GPUCapacity],
           names: Iterable[str]) -> list[list[str]]:
    """The names in groups of which the first can be carved as the others;
    those of no card not at all."""
    found: list[tuple[capacity.GPUCapacity | None, list[str]]] = []
    for name in names:
        kind = dataclasses.replace(
            cards[name], id='', numa_node=None, switch=None,
            ) if name in cards else None
        group = next((each for other, each in found if other == kind), None)
        if group is None:
            found.append((kind, [name]))
        else:
            group.append(name)
    return [group for _, group in found]


def _picks(alike: Sequence[Sequence[str]],
           count: int) -> Iterator[tuple[str, ...]]:
    """So many of them all, in every way that makes a difference."""
    if not count:
        yield ()
    elif sum(map(len, alike)) >= count:
        first, *rest = alike
        for taken in range(min(count, len(first)), -1, -1):
            for others in _picks(rest, count - taken):
                yield (*first[:taken], *others)


def _cost(shares: Mapping[str, TypeOffer], carved: Iterable[Selection],
          policy: request_mod.AllocationPolicy) -> tuple[object, ...]:
    sign = 1 if policy is _Policy.DEPTH_FIRST else -1
    used = {each.card for each in carved}
    whole = {card.id for share in shares.values() for card in share.cards
             if card.offered and not card.vgpus}
    return (sign * len(used & whole), sign * len(whole), sorted(used))


def _carve(cards: dict[str, capacity.GPUCapacity],
           shares: Mapping[str, TypeOffer],
           demands: Sequence[request_mod.Demand],
           policy: request_mod.AllocationPolicy) -> _Result | None:
    """Carve one vGPU after the other; changes ``cards``."""
    chosen: dict[str, list[Selection]] = {}
    for demand in demands:
        share = shares[demand.resource_class]
        for _ in range(demand.count):
            able = [cards[each.id] for each in share.cards
                    if each.id in cards
                    and capacity.available(cards[each.id], share.vgpu_type)]
            if not able:
                return None
            card = min(able, key=lambda card, name=share.vgpu_type:  # type: ignore[misc]
                       _order(card, name, policy))
            cards[card.id] = after = card.with_unit(share.vgpu_type)
            chosen.setdefault(demand.resource_class, []).append(Selection(
                card=card.id, vgpu_type=share.vgpu_type,
                placement_id=after.vgpus[-1].placement_id))
    return {name: tuple(each) for name, each in chosen.items()}


def _order(card: capacity.GPUCapacity, name: str,
           policy: request_mod.AllocationPolicy) -> tuple[object, ...]:
    full = 1 - fractions.Fraction(
        capacity.available(card, name), capacity.max_instances(card, name))
    fragmentation_cost = capacity.fragmentation_cost(card, name)
    if policy is _Policy.DEPTH_FIRST:
        return (not card.vgpus, fragmentation_cost, -full, card.id)
    return (full, fragmentation_cost, card.id)
