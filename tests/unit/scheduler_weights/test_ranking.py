# SPDX-License-Identifier: Apache-2.0
"""Tests of ranks, and of scores that are kept."""

from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin.domain import weighing
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.scheduler_filters import scheduler_view
from gpgpu_plugin.scheduler_weights import ranking
from tests.unit.scheduler_filters import make


class RanksTest(base.BaseTestCase):

    def test_best_scores_have_ranks_of_their_own(self):
        self.assertEqual([14.0, 15.0, 13.0], ranking.ranks([1.0, 2.0, -3.0]))

    def test_all_others_share_the_last_one(self):
        found = ranking.ranks([float(-n) for n in range(100)])
        self.assertEqual(list(range(15, 0, -1)), found[:15])
        self.assertEqual({1.0}, set(found[15:]))

    def test_hosts_that_do_not_fit_are_below_all(self):
        self.assertEqual([0.0, 15.0, 0.0], ranking.ranks(
            [weighing.UNFIT, -1e9, weighing.UNFIT]))

    def test_what_arithmetic_alone_tells_apart_is_equal(self):
        self.assertEqual([15.0, 15.0], ranking.ranks([0.3, 0.1 + 0.2]))

    def test_no_host(self):
        self.assertEqual([], ranking.ranks([]))


class RankingTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.view = scheduler_view.SchedulerView()
        self.names = [f'h{n}' for n in range(4)]
        self.view.update(map(make.groups, self.names))
        self.ranking = ranking.Ranking(self.view, 'pack')

    def scores(self, count=1, hosts=None, vcpus=4):
        return self.ranking.scores(
            hosts or list(map(make.host, self.names)),
            (request.Request(demands=(request.Demand(
                resource_class=make.RC, count=count),)), vcpus, 1024, None))

    def worked_out(self, **kwargs):
        """Return for how many hosts a decision works out a score."""
        with mock.patch.object(
                ranking.Ranking, '_choose', autospec=True,
                side_effect=ranking.Ranking._choose) as choose:
            self.scores(**kwargs)
        return choose.call_count

    def test_score_is_worked_out_once(self):
        self.assertEqual(4, self.worked_out())
        self.assertEqual(0, self.worked_out())

    def test_other_request_has_other_scores(self):
        self.scores()
        self.assertEqual(4, self.worked_out(count=2))
        self.assertEqual(4, self.worked_out(vcpus=5))
        self.assertEqual(0, self.worked_out())

    def test_change_of_one_host_is_worked_out_alone(self):
        self.scores()
        self.view.update([make.groups('h1', generation=2, free=0b1)])
        self.assertEqual(1, self.worked_out())

    def test_change_of_vcpus_or_ram_is_worked_out(self):
        hosts = list(map(make.host, self.names))
        self.scores(hosts=hosts)
        hosts[0].vcpus_used += 1
        hosts[1].free_ram_mb -= 1
        self.assertEqual(2, self.worked_out(hosts=hosts))

    def test_pending_choice_is_worked_out_until_it_goes(self):
        self.scores()
        self.view.pending.add('h2', 'server', request.Request(demands=(
            request.Demand(resource_class=make.RC, count=1),)))
        self.assertEqual(1, self.worked_out())
        self.assertEqual(0, self.worked_out())
        self.view.pending.add('h3', 'server', request.Request())
        self.assertEqual(2, self.worked_out())

    def test_host_that_the_view_does_not_know_does_not_fit(self):
        self.assertEqual([weighing.UNFIT], self.scores(
            hosts=[make.host('other')]))

    def test_host_that_went_away_does_not_fit(self):
        self.scores()
        self.view.update([make.groups('h0', generation=2, deleted=True)])
        self.assertEqual(weighing.UNFIT, self.scores()[0])
        self.assertGreater(self.scores()[1], weighing.UNFIT)

    def test_new_class_begins_anew_and_forgets_no_host(self):
        self.scores()
        before = self.ranking._policy._scarcity._units
        self.view.offers[scheduler_view.Offer(
            resource_class='PGPU', variant='B', most=1)] += 1
        self.scores(hosts=[make.host('h0')])
        self.assertEqual(before, self.ranking._policy._scarcity._units)

    def test_new_mix_is_used_and_forgets_no_host(self):
        self.scores()
        before = self.ranking._policy._scarcity._units
        # Nobody asks for more than two GPUs: what is left for one is worth
        # more than what is left for eight.
        self.view.mix = scheduling.RequestMix(version=1, requests=(
            scheduling.CountedRequests(scheduling.RequestKind(
                48, 1024, make.RC, 2), 1.0),))
        self.assertEqual(1, self.worked_out(hosts=[make.host('h0')]))
        self.assertEqual(before, self.ranking._policy._scarcity._units)
        self.assertEqual([2], [
            scarce.gpus for scarce in self.ranking._policy._scarcity.classes])
        self.assertEqual(0, self.worked_out(hosts=[make.host('h0')]))

    def test_flavors_are_the_mix_until_the_view_has_one(self):
        def classes(made):
            return {scarce.gpus for scarce in made._policy._scarcity.classes}
        made = ranking.Ranking(self.view, 'pack', (
            scheduling.CountedRequests(
                scheduling.RequestKind(8, 1024, make.RC, 3), 1.0),))
        self.assertEqual({3}, classes(made))
        self.view.mix = scheduling.RequestMix(version=1, requests=(
            scheduling.CountedRequests(
                scheduling.RequestKind(8, 1024, make.RC, 2), 1.0),))
        made.scores([], ())
        # Few requests are known.
        self.assertEqual({2, 3}, classes(made))

    def test_vcpus_that_the_mix_needs_make_gpus_worth_something(self):
        self.view.mix = scheduling.RequestMix(version=1, requests=(
            scheduling.CountedRequests(scheduling.RequestKind(
                12, 1024, make.RC, 1), 1.0),))
        # No such request finds vCPUs on h1, where all GPUs are left over.
        full = make.host('h1', vcpus_used=90)
        first, second = self.scores(hosts=[make.host('h0'), full])
        self.assertLess(first, second)

    def test_decision_works_out_no_more_than_the_limit(self):
        self.useFixture(fixtures.MonkeyPatch(
            f'{ranking.__name__}.NEW', 3))
        # Each has a state of its own.
        hosts = [make.host(name, vcpus_used=number)
                 for number, name in enumerate(self.names)]
        first = self.scores(hosts=hosts)
        self.assertEqual(
            [True] * 3 + [False], [score > -1e8 for score in first])
        self.assertGreater(first[3], weighing.UNFIT)
        self.assertEqual(1, self.worked_out(hosts=hosts))
        self.assertEqual(0, self.worked_out(hosts=hosts))

    def test_host_that_is_deleted_meanwhile_fails_no_decision(self):
        class Hosts(dict):
            """Hosts that another thread deletes once they were looked up."""

            def get(self, name, default=None):
                return self.pop(name, default)
        self.view.hosts = Hosts(self.view.hosts)
        self.assertEqual(4, len(self.scores()))
        self.assertEqual([weighing.UNFIT] * 4, self.scores())

    def test_capacity_is_the_same_after_any_history(self):
        self.scores()
        for generation, free in ((2, 0b1), (3, 0b1111), (4, 0b11)):
            self.view.update([make.groups(
                'h1', generation=generation, free=free)])
            self.view.pending.add('h2', f'server{generation}', request.Request(
                demands=(request.Demand(resource_class=make.RC, count=1),)))
            self.scores(count=generation)
        fresh = ranking.Ranking(self.view, 'pack')
        fresh.scores(map(make.host, self.names), (
            request.Request(demands=(request.Demand(
                resource_class=make.RC, count=1),)), 1, 1, None))
        self.assertEqual(fresh._policy._scarcity._capacity,
                         self.ranking._policy._scarcity._capacity)


class LinkedTest(base.BaseTestCase):
    """Hosts with link partitions of one, two and four GPUs."""

    def best(self, count, *hosts, topology=request.GPUTopology.ANY,
             policy_name='pack', pending=()):
        """Return the number of the host that is ranked first."""
        view = scheduler_view.SchedulerView()
        view.update(hosts)
        for number, other in enumerate(pending):
            view.pending.add(hosts[other].node_uuid, f'pending{number}',
                             self.request(1, topology))
        found = ranking.Ranking(view, policy_name).scores(
            [make.host(host.node_uuid) for host in hosts],
            (self.request(count, topology), 4, 1024, None))
        self.assertEqual(1, found.count(max(found)), found)
        return found.index(max(found))

    def request(self, count, topology):
        return request.Request(topology=topology, demands=(request.Demand(
            resource_class=make.RC, count=count),))

    def test_host_whose_partitions_break_the_least_is_first(self):
        for topology, fabric in ((request.GPUTopology.ANY, True),
                                 (request.GPUTopology.LINKED, False)):
            # h1 has a GPU whose pair is broken already; h0 has fewer free.
            hosts = (make.linked('h0', 0b0011, fabric),
                     make.linked('h1', 0b1101, fabric))
            self.assertEqual(1, self.best(1, *hosts, topology=topology))
            self.assertEqual(0, self.best(
                1, *hosts[::-1], topology=topology))

    def test_fullest_host_is_first_of_equal_ones(self):
        self.assertEqual(1, self.best(
            2, make.linked('h0', 0b0011, instances=('a',)),
            make.linked('h1', 0b0011, instances=('b', 'c'))))
        self.assertEqual(0, self.best(
            2, make.linked('h0', 0b0011), make.linked('h1', 0b0111)))

    def test_pending_choice_breaks_what_its_claim_will(self):
        hosts = (make.linked('h0', 0b1111), make.linked('h1', 0b1111))
        self.assertEqual(1, self.best(1, *hosts, pending=[1]))
        self.assertEqual(0, self.best(4, *hosts, pending=[1]))

    def test_policy_spread_takes_the_host_with_the_most_gpus(self):
        hosts = (make.linked('h0', 0b0001), make.linked('h1', 0b1111))
        self.assertEqual(0, self.best(1, *hosts))
        self.assertEqual(1, self.best(1, *hosts, policy_name='spread'))

    def test_free_partitions_are_the_capacity_of_a_fabric(self):
        view = scheduler_view.SchedulerView()
        view.update([make.linked('h0', 0b0110),
                     make.linked('h1', 0b0110, fabric=False)])
        view.mix = scheduling.RequestMix(version=1, requests=(
            scheduling.CountedRequests(scheduling.RequestKind(
                4, 1024, make.RC, 2), 1.0),))
        made = ranking.Ranking(view, 'pack')
        made.scores([make.host('h0')], (self.request(
            1, request.GPUTopology.ANY), 4, 1024, None))
        self.assertEqual([0], made._policy._scarcity._capacity)
        made.scores([make.host('h1')], (self.request(
            1, request.GPUTopology.ANY), 4, 1024, None))
        self.assertEqual([1], made._policy._scarcity._capacity)
