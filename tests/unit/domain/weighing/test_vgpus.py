# SPDX-License-Identifier: Apache-2.0
"""Tests of where vGPUs go."""

from oslotest import base

from gpgpu_plugin.domain import weighing


class GainTest(base.BaseTestCase):

    def order(self, count, *hosts, **kwargs):
        """Return the numbers of hosts with four units a GPU, best first."""
        gains = [weighing.vgpu_gain(dict(enumerate(host)), 4, count, **kwargs)
                 for host in hosts]
        return sorted(range(len(hosts)), key=lambda index: -gains[index])

    def test_started_gpu_is_filled_before_another_is_started(self):
        self.assertEqual([1, 0], self.order(1, [4], [4, 4, 4, 3]))

    def test_fullest_started_gpu_is_first(self):
        self.assertEqual([2, 1, 0], self.order(1, [3], [4, 2], [4, 1]))

    def test_units_left_on_all_started_gpus_count(self):
        # Two units: one GPU with two left, or two GPUs with three.
        self.assertEqual([1, 0], self.order(2, [1, 3], [2, 4]))

    def test_of_equal_choices_the_fullest_host_is_first(self):
        self.assertEqual([1, 0], self.order(1, [2, 4, 4], [2, 4]))
        self.assertEqual([1, 0], self.order(1, [4, 4], [4]))

    def test_spread_takes_the_host_with_the_most_units(self):
        self.assertEqual([1, 0], self.order(
            1, [1], [4, 4], is_spread=True))

    def test_host_with_too_few_units_does_not_fit(self):
        for is_spread in (False, True):
            self.assertEqual(weighing.UNFIT, weighing.vgpu_gain(
                {0: 1, 2: 1}, 4, 3, is_spread=is_spread))

    def test_claim_that_takes_the_emptiest_gpu_starts_one(self):
        self.assertEqual([1, 0], self.order(
            1, [4, 1], [3, 2], breadth_first=True))
        self.assertEqual([0, 1], self.order(1, [4, 1], [3, 2]))

    def test_place_that_has_all_units_decides(self):
        # One GPU of the first node has one unit left, which a claim of two
        # units does not take.
        tiers = ((0b01, 0b10), (0b11,))
        self.assertEqual({1: 2},
                         weighing.choose_for_vgpus({0: 1, 1: 4}, 4, 2, tiers))
        self.assertEqual({0: 1, 1: 1},
                         weighing.choose_for_vgpus({0: 1, 1: 1}, 4, 2, tiers))
