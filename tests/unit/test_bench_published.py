# SPDX-License-Identifier: Apache-2.0
"""Tests of the simple published policies."""

from __future__ import annotations

from oslotest import base

from bench.simulation import published
from gpgpu_plugin.domain import weighing
from tests.unit.domain.weighing import test_host

FULL = test_host.host(6, 16, [0, 1000])
IDLE = test_host.host(64, 256, [1000, 1000])


def gain(chosen, host, request):
    return chosen.choices(host, request)[0].gain


class SimplePolicyTest(base.BaseTestCase):

    def test_fuller_host_is_better(self) -> None:
        for chosen in (published.BestFit(), published.DotProduct(),
                       published.Packing()):
            self.assertGreater(gain(chosen, FULL, test_host.request()),
                               gain(chosen, IDLE, test_host.request()),
                               chosen)

    def test_best_fit_stretches_whole_numbers(self) -> None:
        self.assertEqual(
            [0, weighing.UNFIT, 33, 100],
            published.BestFit().finish([10, weighing.UNFIT, 11, 13]))
        self.assertEqual([10, weighing.UNFIT],
                         published.BestFit().finish([10, weighing.UNFIT]))

    def test_packing_puts_a_share_on_the_fullest_gpu_in_use(self) -> None:
        choice, = published.Packing().choices(
            test_host.host(free=[400, 700, 1000]),
            test_host.request(units=300))
        self.assertEqual((100, 700, 1000), choice.after.free)

    def test_random_keeps_hosts_that_do_not_fit_and_its_seed(self) -> None:
        scores = [0.0, weighing.UNFIT, 0.0]
        drawn = published.Random(7).finish(scores)
        self.assertEqual(drawn, published.Random(7).finish(scores))
        self.assertEqual(weighing.UNFIT, drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])

    def test_random_draws_the_gpu_of_a_share_too(self) -> None:
        chosen = published.Random(7)
        host = test_host.host(free=[400, 1000, 1000, 1000])
        found = [chosen.choices(host, test_host.request(units=300))
                 for _ in range(40)]
        self.assertEqual([1] * 40, [len(choices) for choices in found])
        fullest = sum(choices[0].after.free == (100, 1000, 1000, 1000)
                      for choices in found)
        self.assertTrue(3 <= fullest <= 20, fullest)

    def test_request_that_does_not_fit_has_no_choice(self) -> None:
        self.assertEqual([], published.BestFit().choices(
            FULL, test_host.request(gpus=2)))
