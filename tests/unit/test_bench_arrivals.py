# SPDX-License-Identifier: Apache-2.0
"""Tests of arrivals, and of the published figures at a reduced size."""

from __future__ import annotations

import pathlib
import random

from oslotest import base

from bench.simulation import arrivals
from bench.simulation import policies
from bench.simulation import trace
from tests.unit.domain.weighing import test_host

OPENB = pathlib.Path(__file__).parents[2] / 'bench' / 'openb'
WHOLE = test_host.request(1, 1)


def simulate(hosts, requests, policy='pack', seed=42, **more):
    return arrivals.simulate(
        hosts, requests, lambda: policies.make(policy, seed),
        **{'load': 1.3, 'seed': seed} | more)


class DrawTest(base.BaseTestCase):

    def test_requests_are_repeated_or_left_out(self) -> None:
        for units in (3000, 10_000):
            drawn = arrivals.draw([WHOLE] * 5, units, random.Random(1))
            self.assertEqual(units, sum(
                request.total_units for request in drawn))


class SimulateTest(base.BaseTestCase):

    def test_figures_of_a_cloud_that_is_filled(self) -> None:
        hosts = [test_host.host(free=[1000] * 10)] * 2
        self.assertEqual(
            arrivals.Outcome(
                allocated_percent=100.0, at95=95.0, refused=6, decisions=26,
                curve={5 * number: min(100.0, 5 * number)
                       for number in range(1, 27)}),
            simulate(hosts, [WHOLE]))

    def test_load_that_no_arrival_has_is_the_nearest_before(self) -> None:
        outcome = simulate([test_host.host()], [WHOLE], load=.6)
        self.assertEqual((100.0, None, 2), (
            outcome.allocated_percent, outcome.at95, outcome.decisions))

    def test_same_seed_has_the_same_result(self) -> None:
        hosts, requests = reduced('default', 40)
        for policy in policies.NAMES:
            self.assertEqual(simulate(hosts, requests, policy, seed=5),
                             simulate(hosts, requests, policy, seed=5))
        self.assertNotEqual(simulate(hosts, requests, 'random', seed=5),
                            simulate(hosts, requests, 'random', seed=6))


def reduced(name, part=8):
    """Return every so many-th host of the trace, and all its requests."""
    def lines(file):
        return (OPENB / file).read_text().splitlines()
    hosts = trace.hosts(lines('openb_node_list_gpu_node.csv'), 'nodes')
    return hosts[::part], trace.requests(
        lines(f'openb_pod_list_{name}.csv'), 'requests')


class PublishedTest(base.BaseTestCase):
    """Tests at an eighth of the hosts; all are in bench/simulate.py."""

    def test_policies_come_near_the_published_figures(self) -> None:
        hosts, requests = reduced('default')
        for policy, figure in (('random', 87.5), ('best-fit', 93.1),
                               ('fgd', 95.4)):
            found = [simulate(hosts, requests, policy, seed=seed
                              ).allocated_percent for seed in (42, 43, 44)]
            self.assertLess(abs(sum(found) / 3 - figure), 1.5,
                            (policy, found))

    def test_own_policy_is_better_with_the_mix_known_or_learnt(self) -> None:
        for name in ('default', 'gpuspec33'):
            hosts, requests = reduced(name)
            fgd = simulate(hosts, requests, 'fgd').allocated_percent
            for learn_mix in (False, True):
                own = simulate(hosts, requests, learn_mix=learn_mix
                               ).allocated_percent
                self.assertGreater(own, fgd + .3, (name, learn_mix))
