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
"""The allocator against a brute-force oracle that shares no code with it."""

import itertools
import time

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin.domain.allocation import allocator
from gpgpu_plugin.domain.allocation import request

CLASSES = ('CUSTOM_GPU_A', 'CUSTOM_GPU_B', 'CUSTOM_GPU_C')

PLACES = st.lists(st.tuples(
    st.sampled_from(CLASSES), st.sampled_from([None, 0, 1, 2]),
    st.sampled_from([None, 's1', 's2', 's3'])), max_size=10)
NEEDS = st.dictionaries(
    st.sampled_from(CLASSES), st.integers(1, 5), min_size=1)
TOPOLOGIES = st.sampled_from(list(request.Topology))
POLICIES = st.sampled_from(list(request.AllocationPolicy))


def allowed(cards, topology):
    if topology == 'any' or len(cards) < 2:
        return True
    values = {card.numa_node if topology == 'same_numa' else card.switch
              for card in cards}
    return len(values) == 1 and None not in values


def spread(cards):
    return (len({card.numa_node for card in cards}),
            len({card.switch or card.id for card in cards}))


def oracle(offers, need, topology):
    """(NUMA nodes, switches) of the best set; None if there is none."""
    ways = [itertools.combinations(offers[name], count)
            for name, count in need.items()]
    sets = ([card for part in parts for card in part]
            for parts in itertools.product(*ways))
    return min((spread(cards) for cards in sets
                if allowed(cards, topology)), default=None)


def make(places):
    offers = {name: [] for name in CLASSES}
    for number, (name, numa, switch) in enumerate(places):
        offers[name].append(allocator.Card(
            id=f'c{number}', numa_node=numa, switch=switch))
    return offers


def ask(need, topology=request.Topology.ANY, policy=None,
        numa=request.NumaPolicy.PREFERRED):
    return request.Request(
        demands=tuple(sorted(
            request.Demand(resource_class=name, count=count)
            for name, count in need.items())),
        topology=topology, allocation_policy=policy, numa_policy=numa)


class PropertyTest(base.BaseTestCase):

    @settings(max_examples=1500, derandomize=True, deadline=None)
    @given(PLACES, NEEDS, TOPOLOGIES, POLICIES)
    def test_against_oracle(self, places, need, topology, policy):
        offers = make(places)
        expected = oracle(offers, need, topology)
        try:
            got = allocator.allocate(
                offers, ask(need, topology, policy), {})
        except allocator.Unsatisfiable:
            self.assertIsNone(expected)
            return
        by_id = {card.id: card for name in need for card in offers[name]}
        ids = [each for part in got.values() for each in part]
        self.assertEqual(len(ids), len(set(ids)))
        for name, count in need.items():
            self.assertEqual(count, len(got[name]))
            self.assertLessEqual(
                set(got[name]), {card.id for card in offers[name]})
        cards = [by_id[each] for each in ids]
        self.assertTrue(allowed(cards, topology))
        self.assertEqual(expected, spread(cards))

    @settings(max_examples=1000, derandomize=True, deadline=None)
    @given(PLACES, st.integers(0, 1023), NEEDS, TOPOLOGIES)
    def test_masks_decide_as_the_allocator_does(
            self, places, taken, need, topology):
        everything = make(places)

        def free(card):
            return not taken >> int(card.id[1:]) & 1
        offers = {name: [card for card in cards if free(card)]
                  for name, cards in everything.items()}
        masks = dict(zip(everything, allocator.masks(
            [[(card, free(card)) for card in cards]
             for cards in everything.values()]), strict=True))
        refusal = allocator.refusal(masks, ask(need, topology))
        try:
            allocator.allocate(offers, ask(need, topology), {})
        except allocator.Unsatisfiable as exc:
            self.assertEqual((exc.reason, exc.detail),
                             (refusal.reason, refusal.detail))
        else:
            self.assertIsNone(refusal)


    @settings(max_examples=1000, derandomize=True, deadline=None)
    @given(PLACES, NEEDS, TOPOLOGIES, st.sets(st.integers(0, 2)))
    def test_numa_policies(self, places, need, topology, nodes):
        offers = make(places)
        near = {name: [card for card in cards if card.numa_node in nodes]
                for name, cards in offers.items()}

        def chosen(offered, numa, guest_nodes):
            try:
                return allocator.allocate(
                    offered, ask(need, topology, numa=numa), {},
                    guest_nodes)
            except allocator.Unsatisfiable:
                return None
        policy = request.NumaPolicy
        anywhere = chosen(offers, policy.NONE, None)
        best = chosen(near, policy.NONE, None)
        self.assertEqual(anywhere, chosen(offers, policy.PREFERRED, None))
        self.assertEqual(
            anywhere, chosen(offers, policy.NONE, frozenset(nodes)))
        self.assertEqual(
            best, chosen(offers, policy.REQUIRED, frozenset(nodes)))
        self.assertEqual(
            best or anywhere,
            chosen(offers, policy.PREFERRED, frozenset(nodes)))
        self.assertIsNone(chosen(offers, policy.REQUIRED, None))

    @settings(max_examples=1000, derandomize=True, deadline=None)
    @given(PLACES, NEEDS, TOPOLOGIES, st.integers(1, 3))
    def test_masks_know_whether_some_nodes_would_do(
            self, places, need, topology, count):
        offers = make(places)
        wanted = ask(need, topology, numa=request.NumaPolicy.REQUIRED)
        masks = dict(zip(offers, allocator.masks(
            [[(card, True) for card in cards]
             for cards in offers.values()]), strict=True))
        known = sorted({card.numa_node for cards in offers.values()
                        for card in cards} - {None})
        possible = False
        for nodes in itertools.combinations(known, min(count, len(known))):
            try:
                allocator.allocate(offers, wanted, {}, frozenset(nodes))
                possible = True
            except allocator.Unsatisfiable:
                pass
        self.assertEqual(
            possible, allocator.refusal(masks, wanted, count) is None)


class PolicyTest(base.BaseTestCase):

    # Node 0: three cards below s0 and s1; node 1: four below s2 and s3.
    OFFERS = {'CUSTOM_GPU_A': [
        allocator.Card(id=f'c{number}', numa_node=node, switch=switch)
        for number, (node, switch) in enumerate([
            (0, 's0'), (0, 's0'), (0, 's1'),
            (1, 's2'), (1, 's2'), (1, 's3'), (1, 's3')])]}

    def choose(self, count, **kwargs):
        return set(allocator.allocate(
            self.OFFERS, ask({'CUSTOM_GPU_A': count}, **kwargs),
            {})['CUSTOM_GPU_A'])

    def test_depth_first_keeps_the_largest_island(self):
        self.assertEqual({'c2'}, self.choose(1))
        self.assertEqual({'c0', 'c1'}, self.choose(2))

    def test_breadth_first_takes_from_the_largest_island(self):
        policy = request.AllocationPolicy.BREADTH_FIRST
        self.assertEqual({'c3'}, self.choose(1, policy=policy))
        self.assertEqual({'c3', 'c4'}, self.choose(2, policy=policy))

    def test_policy_of_the_group_counts_where_the_request_names_none(self):
        got = allocator.allocate(
            self.OFFERS, ask({'CUSTOM_GPU_A': 1}),
            {'CUSTOM_GPU_A': request.AllocationPolicy.BREADTH_FIRST})
        self.assertEqual(('c3',), got['CUSTOM_GPU_A'])

    def test_refusals_have_a_name_and_numbers(self):
        for count, topology, reason, detail in (
                (8, 'any', 'not_enough_available', 'asked 8 of '
                 'CUSTOM_GPU_A, 7 available'),
                (5, 'same_numa', 'topology_same_numa',
                 'no NUMA node has 5 of CUSTOM_GPU_A'),
                (3, 'same_switch', 'topology_same_switch',
                 'no PCIe switch has 3 of CUSTOM_GPU_A')):
            exc = self.assertRaises(
                allocator.Unsatisfiable, self.choose, count,
                topology=request.Topology(topology))
            self.assertEqual(reason, exc.reason)
            self.assertIn(detail, exc.detail)

    def test_refusals_for_the_guests_memory(self):
        required = {'numa': request.NumaPolicy.REQUIRED}
        wanted = ask({'CUSTOM_GPU_A': 4}, **required)
        for nodes, words in ((None, 'hw:numa_nodes'),
                             (frozenset({0}), 'no 4 of CUSTOM_GPU_A')):
            exc = self.assertRaises(
                allocator.Unsatisfiable, allocator.allocate, self.OFFERS,
                wanted, {}, nodes)
            self.assertEqual('numa_policy_required', exc.reason)
            self.assertIn(words, exc.detail)
        # None at all is told as such.
        exc = self.assertRaises(
            allocator.Unsatisfiable, allocator.allocate, self.OFFERS,
            ask({'CUSTOM_GPU_A': 8}, **required), {}, frozenset({0}))
        self.assertEqual('not_enough_available', exc.reason)
        [masks] = allocator.masks(
            [[(card, True) for card in self.OFFERS['CUSTOM_GPU_A']]])
        groups = {'CUSTOM_GPU_A': masks}
        self.assertIsNone(allocator.refusal(groups, wanted, 1))
        for count, nodes in ((4, None), (5, 1)):
            self.assertEqual('numa_policy_required', allocator.refusal(
                groups, ask({'CUSTOM_GPU_A': count}, **required),
                nodes).reason)
        self.assertIsNone(allocator.refusal(
            groups, ask({'CUSTOM_GPU_A': 7}, **required), 2))

    def test_many_cards_are_no_explosion(self):
        offers = {'CUSTOM_GPU_A': [
            allocator.Card(id=f'c{number:03}', numa_node=number % 4,
                           switch=f's{number % 40}')
            for number in range(264)]}
        began = time.process_time()
        got = allocator.allocate(offers, ask({'CUSTOM_GPU_A': 24}), {})
        self.assertEqual(24, len(set(got['CUSTOM_GPU_A'])))
        # Trying all sets of switches would take hours.
        self.assertLess(time.process_time() - began, 10)
