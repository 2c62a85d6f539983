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
"""Which cards vGPUs are carved out of."""

import dataclasses
import itertools
import typing

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin.domain.allocation import allocator
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.allocation import share_allocator
from gpgpu_plugin.domain.vgpu import capacity
from gpgpu_plugin.domain.vgpu import vgpu_type

TYPES = {name: vgpu_type.VGPUType(
    name=name, type_id=name, video_ram=size * 1024,
    max_instances=16 // size) for name, size in (
        ('16', 16), ('8', 8), ('8A', 8), ('4', 4))}


def card(name: str, *units: str, **fields: typing.Any,
         ) -> capacity.GPUCapacity:
    """A card of 16 GB."""
    return capacity.GPUCapacity(**{
        'id': name, 'offered': True, 'types': TYPES, 'vgpus': tuple(
            capacity.VGPU(vgpu_type=unit) for unit in units),
        'mix_policy': capacity.VGPUMixPolicy.ANY_MIX, **fields})


def request(spec: dict[str, int],
            **fields: typing.Any) -> request_mod.Request:
    """Units by resource class."""
    return request_mod.Request(demands=tuple(
        request_mod.Demand(resource_class=name, count=count)
        for name, count in sorted(spec.items())), **fields)


def shares(
    *cards: capacity.GPUCapacity,
) -> dict[str, share_allocator.TypeOffer]:
    """All types of the cards; V8 is the class of type 8."""
    return {f'V{name}': share_allocator.TypeOffer(vgpu_type=name, cards=cards)
            for name in TYPES}


def allocate(asked: request_mod.Request, *cards: capacity.GPUCapacity,
             whole: typing.Sequence[str] = (), **kwargs: typing.Any,
             ) -> dict[str, list[str]]:
    """Ids of the chosen cards by resource class."""
    chosen = share_allocator.allocate(
        {'WHOLE': [allocator.Card(id=each) for each in whole]},
        shares(*cards), asked, {}, **kwargs)
    return {name: [each.card for each in found]
            for name, found in chosen.items()}


DEPTH = request_mod.AllocationPolicy.DEPTH_FIRST
BREADTH = request_mod.AllocationPolicy.BREADTH_FIRST


class PolicyTest(base.BaseTestCase):
    """depth_first and breadth_first within a group."""

    def test_depth_first_is_the_default_and_fills_what_is_used(self) -> None:
        self.assertEqual({'V4': ['b', 'b']}, allocate(
            request({'V4': 2}), card('a'), card('b', '4')))

    def test_breadth_first_takes_the_emptiest(self) -> None:
        self.assertEqual({'V4': ['a', 'a']}, allocate(
            request({'V4': 2}, allocation_policy=BREADTH),
            card('a'), card('b', '8')))
        self.assertEqual({'V4': ['a', 'b']}, allocate(
            request({'V4': 2}, allocation_policy=BREADTH),
            card('a', '4'), card('b', '4')))

    def test_larger_types_keep_fitting(self) -> None:
        # On a one more 4 costs no 8; on b it does.
        self.assertEqual({'V4': ['a']}, allocate(
            request({'V4': 1}), card('a', '4'), card('b', '8')))

    def test_the_groups_own_policy(self) -> None:
        chosen = share_allocator.allocate(
            {}, shares(card('a', '4'), card('b')), request({'V4': 1}),
            {'V4': BREADTH})
        self.assertEqual('b', chosen['V4'][0].card)


class TopologyTest(base.BaseTestCase):
    """NUMA nodes and switches."""

    CARDS = (card('a', '16', numa_node=0, switch='s'),
             card('b', '8', numa_node=0, switch='s'),
             card('c', '4', '8', numa_node=1, switch='t'),
             card('d', '4', '8', numa_node=1, switch='u'))

    def test_one_node_where_one_will_do(self) -> None:
        self.assertEqual({'V4': ['b', 'b']}, allocate(
            request({'V4': 2}), *self.CARDS[1:3]))

    def test_near_the_guests_memory(self) -> None:
        self.assertEqual({'V4': ['c']}, allocate(
            request({'V4': 1}), *self.CARDS, guest_nodes=frozenset({1})))

    def test_required(self) -> None:
        asked = request(
            {'V4': 3}, numa_policy=request_mod.NumaPolicy.REQUIRED)
        exc = self.assertRaises(
            allocator.Unsatisfiable, allocate, asked, *self.CARDS,
            guest_nodes=frozenset({1}))
        self.assertEqual('numa_policy_required', exc.reason)
        exc = self.assertRaises(
            allocator.Unsatisfiable, allocate, asked, *self.CARDS)
        self.assertEqual('numa_policy_required', exc.reason)

    def test_same_switch(self) -> None:
        topology = request_mod.Topology.SAME_SWITCH
        self.assertEqual({'V4': ['b', 'b']}, allocate(
            request({'V4': 2}, topology=topology), *self.CARDS))
        exc = self.assertRaises(
            allocator.Unsatisfiable, allocate,
            request({'V4': 3}, topology=topology), *self.CARDS)
        self.assertEqual('topology_same_switch', exc.reason)

    def test_one_card_is_an_island_of_its_own(self) -> None:
        for topology in (request_mod.Topology.SAME_SWITCH,
                         request_mod.Topology.SAME_NUMA):
            self.assertEqual({'V4': ['b', 'b', 'b']}, allocate(
                request({'V4': 3}, topology=topology),
                card('a', '8'), card('b')))
            # Two that are nowhere are not at the same place.
            exc = self.assertRaises(
                allocator.Unsatisfiable, allocate,
                request({'V8': 3}, topology=topology), card('a'), card('b'))
            self.assertEqual(f'topology_{topology}', exc.reason)
            exc = self.assertRaises(
                allocator.Unsatisfiable, allocate,
                request({'V4': 1, 'WHOLE': 1}, topology=topology),
                card('a'), card('b'), whole=['b'])

    def test_one_card_that_is_not_near_the_guests_memory(self) -> None:
        fields: dict[str, typing.Any] = {
            'topology': request_mod.Topology.SAME_NUMA,
            'numa_policy': request_mod.NumaPolicy.REQUIRED}
        exc = self.assertRaises(
            allocator.Unsatisfiable, allocate, request({'V4': 2}, **fields),
            card('a'), guest_nodes=frozenset({0}))
        self.assertEqual('numa_policy_required', exc.reason)

    def test_masks_know_cards_that_are_nowhere(self) -> None:
        nowhere = [(allocator.Card(id=each), 4) for each in 'ab']
        known = allocator.Card(id='c', numa_node=0, switch='s'), 4
        masks = dict(zip('XY', allocator.masks(
            [nowhere, [*nowhere, known]]), strict=True))
        self.assertEqual(((1, 2), (1, 2)), (
            masks['X'].alone, masks['Y'].alone))
        for topology in (request_mod.Topology.SAME_SWITCH,
                         request_mod.Topology.SAME_NUMA):
            self.assertIsNone(allocator.refusal(
                masks, request({'X': 4, 'Y': 4}, topology=topology)))
            self.assertIsNotNone(allocator.refusal(
                masks, request({'X': 5}, topology=topology)))
        # One unit of one card needs no island.
        [alone] = allocator.masks([[(allocator.Card(id='a'), 1)]])
        self.assertEqual((), alone.alone)


class BesideTest(base.BaseTestCase):
    """Several kinds in one request."""

    def test_a_whole_card_beside_a_vgpu(self) -> None:
        self.assertEqual({'WHOLE': ['b'], 'V4': ['a']}, allocate(
            request({'WHOLE': 1, 'V4': 1}), card('a'), card('b'),
            whole=['a', 'b']))

    def test_spreading_leaves_the_whole_card_alone(self) -> None:
        self.assertEqual({'WHOLE': ['b'], 'V4': ['a']}, allocate(
            request({'WHOLE': 1, 'V4': 1}, allocation_policy=BREADTH),
            card('a', '4'), card('b'), whole=['b']))

    def test_the_only_card_that_can_be_whole_is_kept(self) -> None:
        for only, other in itertools.permutations('ab'):
            for policy in (DEPTH, BREADTH):
                self.assertEqual({'WHOLE': [only], 'V4': [other]}, allocate(
                    request({'WHOLE': 1, 'V4': 1}, allocation_policy=policy),
                    card('a'), card('b'), whole=[only]))

    def test_a_card_is_kept_that_can_be_carved_into_the_least(self) -> None:
        # Its driver makes less of the largest type than b's.
        small = card('a', driver_available={'4': 4, '8': 1, '16': 0})
        self.assertEqual({'WHOLE': ['a'], 'V16': ['b']}, allocate(
            request({'WHOLE': 1, 'V16': 1}), small, card('b'),
            whole=['a', 'b']))
        self.assertEqual({'WHOLE': ['a'], 'V8': ['b', 'b']}, allocate(
            request({'WHOLE': 1, 'V8': 2}), small, card('b'),
            whole=['a', 'b']))

    def test_many_cards_to_keep_are_no_explosion(self) -> None:
        cards = [
            card(f'c{number:02}', driver_available={'4': number % 7, '8': 1})
            for number in range(40)
        ]
        exc = self.assertRaises(
            allocator.Unsatisfiable, allocate,
            request({'WHOLE': 20, 'V8': 21}), *cards,
            whole=[each.id for each in cards])
        self.assertEqual('type_conflict', exc.reason)

    def test_not_together(self) -> None:
        exc = self.assertRaises(
            allocator.Unsatisfiable, allocate,
            request({'WHOLE': 1, 'V4': 1}), card('a'), whole=['a'])
        self.assertEqual('type_conflict', exc.reason)
        self.assertIn('together', exc.detail)

    def test_none_left(self) -> None:
        exc = self.assertRaises(
            allocator.Unsatisfiable, allocate, request({'V8': 2}),
            card('a', '8'))
        self.assertEqual('asked 2 of V8, 1 available', exc.detail)

    def test_another_type_is_in_the_way(self) -> None:
        exc = self.assertRaises(
            allocator.Unsatisfiable, allocate, request({'V8': 1}),
            card('a', '4', mix_policy=capacity.VGPUMixPolicy.SAME_TYPE))
        self.assertEqual('type_conflict', exc.reason)
        self.assertEqual(
            'asked 1 of V8, 0 available: cards have 4, and their rule is '
            'same_type', exc.detail)


@st.composite
def _hosts(draw: st.DrawFn) -> list[capacity.GPUCapacity]:
    how = draw(st.sampled_from(capacity.VGPUMixPolicy))
    cards = []
    for name in 'abc'[:draw(st.integers(min_value=1, max_value=3))]:
        new = card(name, mix_policy=how, numa_node=draw(st.integers(0, 1)))
        for unit in draw(st.lists(st.sampled_from(sorted(TYPES)),
                                  max_size=3)):
            if capacity.available(new, unit):
                new = new.with_unit(unit)
        cards.append(new)
    return cards


def _can(cards: list[capacity.GPUCapacity], units: list[str],
         whole: typing.Collection[str] = (), count: int = 0) -> bool:
    """Whether there is any way at all.

    :param whole: ids of the cards that may be taken whole
    :param count: so many of them are
    """
    if not units:
        carved = {each.id for each in cards if each.vgpus}
        return len(set(whole) - carved) >= count
    return any(
        _can(
            [*cards[:index], each.with_unit(units[0]), *cards[index + 1 :]],
            units[1:],
            whole,
            count,
        )
        for index, each in enumerate(cards)
        if capacity.available(each, units[0])
    )


def _islands(cards: list[capacity.GPUCapacity], topology: request_mod.Topology,
             ) -> list[list[capacity.GPUCapacity]]:
    """Cards at one place each."""
    if topology is request_mod.Topology.ANY:
        return [cards]
    place = ('switch' if topology is request_mod.Topology.SAME_SWITCH
             else 'numa_node')
    return [*([each for each in cards if getattr(each, place) == value]
              for value in {getattr(each, place) for each in cards} - {None}),
            *([each] for each in cards)]


# The same each time, however busy the machine is.
_SETTINGS = settings(derandomize=True, deadline=None)


class PropertyTest(base.BaseTestCase):
    """Any host, any policy."""

    @_SETTINGS
    @given(_hosts(), st.sampled_from(sorted(TYPES)),
           st.sampled_from([DEPTH, BREADTH]))
    def test_what_a_share_promises_can_be_claimed_and_no_more(
            self, cards: list[capacity.GPUCapacity], name: str,
            policy: request_mod.AllocationPolicy) -> None:
        promised = shares(*cards)[f'V{name}'].available()
        if promised:
            found = allocate(request(
                {f'V{name}': promised}, allocation_policy=policy), *cards)
            self.assertEqual(promised, len(found[f'V{name}']))
        self.assertRaises(
            allocator.Unsatisfiable, allocate,
            request({f'V{name}': promised + 1}, allocation_policy=policy),
            *cards)

    @_SETTINGS
    @given(_hosts(), st.lists(st.sampled_from(sorted(TYPES)), min_size=1,
                              max_size=4),
           st.sampled_from([DEPTH, BREADTH]))
    def test_types_together_are_refused_only_if_there_is_no_way(
            self, cards: list[capacity.GPUCapacity], units: list[str],
            policy: request_mod.AllocationPolicy) -> None:
        asked = request({f'V{name}': len(list(each)) for name, each in
                         itertools.groupby(sorted(units))},
                        allocation_policy=policy)
        try:
            found = allocate(asked, *cards)
        except allocator.Unsatisfiable:
            self.assertFalse(_can(cards, units))
        else:
            state = {each.id: each for each in cards}
            for name, ids in found.items():
                for each in ids:
                    state[each] = state[each].with_unit(name[1:])

    @settings(_SETTINGS, max_examples=300)
    @given(st.data(), st.sampled_from(list(request_mod.Topology)),
           st.sampled_from([DEPTH, BREADTH]))
    def test_whole_cards_beside_are_refused_only_if_there_is_no_way(
            self, data: st.DataObject, topology: request_mod.Topology,
            policy: request_mod.AllocationPolicy) -> None:
        cards = [dataclasses.replace(
            each, switch=data.draw(st.sampled_from(['s', 't', None])),
            numa_node=data.draw(st.sampled_from([0, 1, None])),
            driver_available=data.draw(st.none() | st.fixed_dictionaries(
                {name: st.integers(0, 4) for name in TYPES})))
            for each in data.draw(_hosts())]
        # One can be whole, but not be carved.
        cards.append(card('x', types={}, switch='s', numa_node=0))
        whole = {each.id for each in cards if not each.vgpus
                 and data.draw(st.booleans())}
        count = data.draw(st.integers(1, 2))
        units = data.draw(st.lists(
            st.sampled_from(sorted(TYPES)), min_size=1, max_size=4))
        asked = request({'WHOLE': count} | {
            f'V{name}': units.count(name) for name in units},
            topology=topology, allocation_policy=policy)
        can = any(_can(island, units, whole & {each.id for each in island},
                       count) for island in _islands(cards, topology))
        try:
            found = share_allocator.allocate(
                {'WHOLE': [allocator.Card(
                    id=each.id, switch=each.switch, numa_node=each.numa_node)
                    for each in cards if each.id in whole]},
                shares(*cards), asked, {})
        except allocator.Unsatisfiable:
            self.assertFalse(can)
            return
        self.assertTrue(can)
        taken = {each.card for each in found.pop('WHOLE')}
        self.assertEqual((count, True), (len(taken), taken <= whole))
        state = {each.id: each for each in cards if each.id not in taken}
        for chosen in itertools.chain.from_iterable(found.values()):
            assert chosen.vgpu_type is not None
            state[chosen.card] = state[chosen.card].with_unit(
                chosen.vgpu_type)
