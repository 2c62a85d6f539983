# SPDX-License-Identifier: Apache-2.0
"""Tests of the plan by which instances leave hosts."""

import itertools

import hypothesis
from hypothesis import strategies as st
from oslotest import base as oslotest_base

from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.what_if import claim
from gpgpu_plugin.domain.what_if import plan as plan_mod
from tests.unit.domain.why_not import base

FREE, USED = base.State.AVAILABLE, base.State.ASSIGNED
SAME_NUMA = request_mod.Topology.SAME_NUMA


def world(*hosts, vcpus=100):
    """Return hosts h0, h1 ... with T4s in some states, and free vCPUs."""
    return ({f'h{number}': base.t4s(*states)
             for number, states in enumerate(hosts)},
            {f'root{number}': {'VCPU': vcpus}
             for number in range(len(hosts))})


def kind(count, hosts, vcpus=1, **fields):
    """Return a kind that Placement offers all hosts."""
    return plan_mod.Kind(
        request=base.request(count, **fields), options={
            name: [{f'root{name[1:]}': {'VCPU': vcpus}}] for name in hosts})


def planned(hosts, free, kinds, leaving, **kwargs):
    return plan_mod.Planner(hosts, free, kinds).plan(leaving, **kwargs)


class PlanTest(oslotest_base.BaseTestCase):

    def test_two_instances_do_not_get_the_same_gpu(self):
        hosts, free = world([FREE, USED], [FREE])
        found = planned(hosts, free, [kind(1, hosts)], [0, 0])
        self.assertEqual({'h0', 'h1'}, set(found.targets.values()))
        found = planned(hosts, free, [kind(1, hosts)], [0, 0, 0])
        self.assertEqual((2, False), (len(found.targets), found.is_complete))
        self.assertEqual(2, len(found.order) - 1)

    def test_two_instances_do_not_get_the_same_vcpus(self):
        hosts, free = world([FREE, FREE], vcpus=3)
        self.assertFalse(planned(
            hosts, free, [kind(1, hosts, vcpus=2)], [0, 0]).is_complete)
        self.assertTrue(planned(
            hosts, free, [kind(1, hosts, vcpus=1)], [0, 0]).is_complete)

    def test_host_without_a_candidate_in_placement_takes_nothing(self):
        hosts, free = world([FREE], [FREE])
        found = planned(hosts, free, [kind(1, ['h1'])], [0])
        self.assertEqual({0: 'h1'}, found.targets)

    def test_fullest_host_is_filled_first(self):
        hosts, free = world([FREE, FREE, FREE], [FREE, USED, USED])
        self.assertEqual({0: 'h1'}, planned(
            hosts, free, [kind(1, hosts)], [0]).targets)

    def test_hardest_instance_comes_first(self):
        hosts, free = world([FREE, FREE], [FREE, USED, FREE])
        kinds = [kind(1, hosts), kind(2, hosts, topology=SAME_NUMA)]
        found = planned(hosts, free, kinds, [0, 0, 1])
        self.assertEqual((True, 2, 'h0'), (
            found.is_complete, found.order[0], found.targets[2]))
        self.assertEqual(1, found.orders)

    def test_other_orders_are_tried_before_an_instance_is_left_over(self):
        # A pair on h0 leaves nothing for the one that h1 cannot take.
        hosts, free = world([FREE, FREE], [FREE, FREE, FREE])
        kinds = [kind(3, hosts), kind(2, hosts), kind(1, ['h0'])]
        found = planned(hosts, free, kinds, [1, 2])
        self.assertTrue(found.is_complete)
        self.assertEqual('h1', found.targets[0])
        kinds[2] = kind(1, ['h1'])
        found = planned(hosts, free, kinds, [0, 1, 2])
        self.assertEqual(2, len(found.targets))
        self.assertGreater(found.orders, 3)

    def test_no_order_is_tried_for_those_that_fit_nowhere_alone(self):
        hosts, free = world([FREE, FREE])
        kinds = [kind(3, hosts), kind(1, hosts, vcpus=101), kind(1, hosts)]
        found = planned(hosts, free, kinds, [0, 1, 2])
        self.assertEqual(({2: 'h0'}, 1), (found.targets, found.orders))

    def test_search_ends_when_its_time_is_over(self):
        hosts, free = world([FREE], [FREE])
        found = planned(hosts, free, [kind(1, hosts)], [0] * 9,
                        has_time=lambda: False)
        self.assertEqual((1, 2), (found.orders, len(found.targets)))

    def test_nobody_leaves(self):
        hosts, free = world([FREE])
        found = planned(hosts, free, [], [])
        self.assertEqual((True, []), (found.is_complete, list(found.order)))


STATES = st.lists(st.sampled_from([FREE, FREE, USED]), min_size=1, max_size=4)


class SearchTest(oslotest_base.BaseTestCase):

    @hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
    @hypothesis.given(
        states=st.lists(STATES, min_size=1, max_size=3),
        wanted=st.lists(st.tuples(
            st.integers(1, 3),
            st.sampled_from([request_mod.Topology.ANY, SAME_NUMA]),
            st.integers(1, 3)), min_size=1, max_size=4))
    def test_plan_is_possible_and_found_if_there_is_one(
            self, states, wanted):
        hosts, free = world(*states, vcpus=4)
        kinds = [kind(count, hosts, vcpus=vcpus, topology=topology)
                 for count, topology, vcpus in wanted]
        leaving = range(len(kinds))
        found = planned(hosts, free, kinds, leaving)
        self.assertEqual(sorted(found.order), list(leaving))
        # Made again, one after the other.
        now, left = dict(hosts), dict.fromkeys(hosts, 4)
        for one in found.order[:len(found.targets)]:
            target = found.targets[one]
            now[target] = claim.after(now[target], kinds[one].request)
            left[target] -= wanted[one][2]
            self.assertIsNotNone(now[target])
            self.assertGreaterEqual(left[target], 0)
        self.assertEqual(now, found.hosts)
        self.assertEqual(
            any(_fits(hosts, kinds, wanted, order) for order
                in itertools.permutations(leaving)), found.is_complete)


def _fits(hosts, kinds, wanted, order):
    """Return whether an order has some choice of hosts, by brute force."""
    for targets in itertools.product(hosts, repeat=len(order)):
        now, left = dict(hosts), dict.fromkeys(hosts, 4)
        for one, target in zip(order, targets, strict=True):
            left[target] -= wanted[one][2]
            now[target] = left[target] >= 0 and now[target] and claim.after(
                now[target], kinds[one].request)
            if not now[target]:
                break
        else:
            return True
    return False
