# SPDX-License-Identifier: Apache-2.0
"""Tests of the smallest changes, also against all sets of changes."""

import itertools

import hypothesis
from hypothesis import strategies as st
from oslotest import base as oslotest_base

from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.why_not import change
from gpgpu_plugin.domain.why_not import host as host_mod
from gpgpu_plugin.domain.why_not import smallest
from tests.unit.domain.why_not import base

_S = base.State
_K = change.ChangeKind
FREE, USED = _S.AVAILABLE, _S.ASSIGNED
SAME_NUMA = request_mod.Topology.SAME_NUMA


def proposals(host, request):
    return [[f'{one.kind} {one.subject}' for one in proposal]
            for proposal in smallest.proposals(host, request)]


class ProposalsTest(oslotest_base.BaseTestCase):

    def test_cheapest_kind_comes_first(self):
        host = base.t4s(_S.CLEANING, base.HELD, USED, FREE)
        self.assertEqual(
            [['wait /gpu0'], ['repair /gpu1'], ['move i2'], ['fewer 1']],
            proposals(host, base.request(2)))

    def test_no_more_is_named_than_needed(self):
        host = base.t4s(_S.CLEANING, _S.CLEANING, _S.DIRTY, FREE)
        self.assertEqual(
            2, len(smallest.proposals(host, base.request(3))[0]))

    def test_kinds_are_combined_if_none_alone_helps(self):
        host = base.t4s(_S.CLEANING, base.HELD, USED, draining=True)
        self.assertEqual(
            [['wait /gpu0', 'undrain h1', 'repair /gpu1']],
            proposals(host, base.request(2)))

    def test_fewest_instances_move(self):
        host = base.t4s(USED, USED, USED, USED,
                        users={1: 'two', 2: 'two', 0: 'a', 3: 'b'})
        self.assertEqual([['move two']], proposals(host, base.request(2)))

    def test_instances_that_move_leave_gpus_that_meet_the_topology(self):
        host = base.t4s(USED, FREE, USED, USED,
                        users={0: 'one', 2: 'two', 3: 'two'})
        self.assertEqual(
            [['move one'], ['fewer 1']],
            proposals(host, base.request(2, topology=SAME_NUMA)))

    def test_topology_may_be_what_is_too_much(self):
        host = base.t4s(FREE, USED, FREE, USED)
        self.assertIn(['topology any'], proposals(
            host, base.request(2, topology=SAME_NUMA)))

    def test_nothing_helps_a_host_that_is_too_small(self):
        self.assertEqual([['fewer 2']], proposals(
            base.t4s(FREE, FREE), base.request(3)))
        self.assertEqual([], proposals(
            base.t4s(FREE), base.request(1, 'CUSTOM_GPU_H100')))


STATES = st.sampled_from(
    [FREE, FREE, USED, USED, _S.DIRTY, _S.CLEANING, base.HELD])


class AllSetsTest(oslotest_base.BaseTestCase):

    @hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
    @hypothesis.given(
        states=st.lists(STATES, min_size=1, max_size=6),
        owners=st.lists(st.sampled_from('abc'), min_size=6, max_size=6),
        count=st.integers(1, 4), topology=st.sampled_from(
            [request_mod.Topology.ANY, SAME_NUMA]),
        disabled=st.sets(st.integers(0, 5)), draining=st.booleans())
    def test_proposals_help_and_no_smaller_one_of_their_kind_does(
            self, states, owners, count, topology, disabled, draining):
        host = base.t4s(
            *states, users=dict(enumerate(owners)), draining=draining,
            fields={number: {'holds': frozenset({'disabled'})}
                    for number in disabled})
        request = base.request(count, topology=topology)

        def fits(changes):
            return not host_mod.findings(
                change.after(host, changes), request)
        found = [proposal for proposal in smallest.proposals(host, request)
                 if proposal and proposal[0].kind in change.OF_HOST]
        hypothesis.assume(host_mod.findings(host, request))
        everything = [one for kind in change.OF_HOST
                      for one in change.possible(host, kind)]
        self.assertEqual(fits(everything), bool(found))
        for proposal in found:
            self.assertTrue(fits(proposal), proposal)
            for left_out in proposal:
                self.assertFalse(fits(
                    [one for one in proposal if one != left_out]), proposal)
        of_one_kind = {proposal[0].kind: len(proposal) for proposal in found
                       if len({one.kind for one in proposal}) == 1}
        for kind in change.OF_HOST:
            sizes = [len(changes) for changes in _subsets(
                change.possible(host, kind)) if fits(changes)]
            if sizes:
                self.assertEqual(min(sizes), of_one_kind.get(kind), kind)


def _subsets(changes):
    return itertools.chain.from_iterable(
        itertools.combinations(changes, size)
        for size in range(len(changes) + 1))
