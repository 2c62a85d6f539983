# SPDX-License-Identifier: Apache-2.0
"""Tests of the plugin's own policy."""

from __future__ import annotations

from oslotest import base

from gpgpu_plugin.domain import weighing
from tests.unit.domain.weighing import test_host


def best(counts, hosts, request):
    """Return the number of the best host, and its state with the request."""
    policy = weighing.Foresight()
    policy.start(weighing.Mix.count(counts), hosts)
    return max(((choice.gain - policy.price(choice.lost), number,
                 choice.after) for number, host in enumerate(hosts)
                for choice in policy.choices(host, request)),
               key=lambda found: found[0])[1:]


class ForesightTest(base.BaseTestCase):

    def test_share_goes_where_it_leaves_nothing_over(self) -> None:
        share = test_host.request(units=500)
        self.assertEqual(
            (1, (0, 1000)), (lambda number, after: (number, after.free))(
                *best({share: 1, test_host.request(): 200},
                      [test_host.host(),
                       test_host.host(free=[500, 1000])], share)))

    def test_host_for_eight_gpus_is_saved_while_such_are_scarce(
            self) -> None:
        small, large = test_host.request(), test_host.request(32, 64, 8)
        hosts = [test_host.host(96, 384, [1000] * 8)] + [
            test_host.host(96, 384, [0, 0] + [1000] * 6)] * 3
        self.assertNotEqual(0, best({small: 9, large: 1}, hosts, small)[0])

    def test_host_for_eight_gpus_is_saved_though_many_classes_are_commoner(
            self) -> None:
        small, large = test_host.request(), test_host.request(32, 64, 8)
        bound = {test_host.request(8 * size, 32, 1, variants={'P100'}): 20
                 for size in range(1, 17)}
        hosts = [test_host.host(96, 384, [1000] * 8)] + [
            test_host.host(96, 384, [0, 0] + [1000] * 6)] * 3
        self.assertNotEqual(
            0, best({small: 9, large: 1} | bound, hosts, small)[0])

    def test_capacity_of_several_classes_cost_as_much_as_the_dearest(
            self) -> None:
        policy = weighing.Foresight()
        policy.start(weighing.Mix.count({
            test_host.request(8 * size, 32, 2): 1 for size in (1, 2, 3)}),
            [test_host.host()])
        dearest = max(policy.price(lost) for lost in (
            (1, 0, 0), (0, 1, 0), (0, 0, 1)))
        self.assertGreater(dearest, 0)
        self.assertEqual(dearest, policy.price((1, 1, 1)))
        self.assertEqual(0, policy.price((0, 0, 0)))

    def test_instance_without_gpu_takes_vcpus_that_no_gpu_needs(
            self) -> None:
        nothing = test_host.request(gpus=0, units=0)
        self.assertEqual(1, best(
            {test_host.request(): 1, nothing: 1},
            [test_host.host(8, 64), test_host.host(16, 64, [0, 0])],
            nothing)[0])

    def test_change_of_a_host_counts_like_a_new_start(self) -> None:
        mix = weighing.Mix.count({test_host.request(gpus=2): 1})
        before, after = test_host.host(), test_host.host(free=[0, 0])
        changed, fresh = weighing.Foresight(), weighing.Foresight()
        changed.start(mix, [before, before])
        changed.change(before, after)
        fresh.start(mix, [before, after])
        self.assertEqual(fresh.price((1,)), changed.price((1,)))
        self.assertGreater(changed.price((1,)), 0)


class LinkedTest(base.BaseTestCase):
    """Hosts with link partitions of one, two, four and eight GPUs."""

    def best(self, gpus, *hosts) -> int:
        number, _ = best({test_host.request(gpus=size): 1 for size in
                          (1, 2, 4, 8)}, hosts, test_host.request(gpus=gpus))
        return int(number)

    def test_choice_breaks_the_least_whatever_is_free(self) -> None:
        # The fuller host has a half left, the other a single GPU.
        for gpus, half, other, expected in (
                (1, 0b1111, 0b1111_0100, 1), (2, 0b1111, 0b1111_0011, 1),
                (2, 0b1111, 0b1111_1111, 0), (4, 0b1111, 0b1111_1111, 0)):
            for order in (1, -1):
                hosts = [test_host.linked(half), test_host.linked(other)]
                self.assertEqual(
                    expected if order == 1 else 1 - expected,
                    self.best(gpus, *hosts[::order]), (gpus, other))

    def test_of_equal_choices_that_with_more_instances_is_taken(
            self) -> None:
        self.assertEqual(1, self.best(
            4, test_host.linked(0b1111, 1), test_host.linked(0b1111, 3)))
        # It is worth less than any partition.
        self.assertEqual(0, self.best(
            1, test_host.linked(0b0001), test_host.linked(0b0011, 8)))

    def test_gpus_without_links_are_taken_first(self) -> None:
        for free in (0b1111_1111, 0b0000_1111):
            self.assertEqual(1, self.best(
                1, test_host.linked(free, is_confined=False),
                test_host.host(96, 768, [1000] * free.bit_count())))
