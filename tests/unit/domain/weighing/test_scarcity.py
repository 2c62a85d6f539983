# SPDX-License-Identifier: Apache-2.0
"""Tests of capacity that few hosts have."""

from __future__ import annotations

from oslotest import base

from gpgpu_plugin.domain import weighing
from tests.unit.domain.weighing import test_host

PAIR = test_host.request(vcpus=7, gib=33, gpus=2)


class ClassesTest(base.BaseTestCase):

    def test_class_is_rounded_up(self) -> None:
        self.assertEqual(
            [weighing.ScarceClass(milli_vcpus=8000, memory_mib=65536, gpus=2,
                                variants=frozenset(), share=1.0)],
            weighing.scarce_classes(weighing.Mix.count({PAIR: 1})))

    def test_single_gpus_and_shares_that_any_host_serves_are_none(
            self) -> None:
        self.assertEqual([], weighing.scarce_classes(weighing.Mix.count({
            test_host.request(): 1,
            test_host.request(units=500, variants={'T4'}): 1,
            test_host.request(gpus=0, units=0): 1})))

    def test_bound_gpu_is_a_class(self) -> None:
        self.assertEqual([frozenset({'T4'})], [
            scarce.variants
            for scarce in weighing.scarce_classes(weighing.Mix.count(
{test_host.request(variants={'T4'}): 1}))])


class CapacityTest(base.BaseTestCase):

    def test_capacities_are_limited_by_the_scarcest(self) -> None:
        scarce, = weighing.scarce_classes(weighing.Mix.count({PAIR: 1}))
        for count, host in (
                (2, test_host.host(16, 128, [1000] * 5)),
                (1, test_host.host(15, 128, [1000] * 5)),
                (1, test_host.host(16, 127, [1000] * 5)),
                (1, test_host.host(16, 128, [900, 1000, 1000]))):
            self.assertEqual(count, scarce.capacity(host), host)

    def test_capacities_of_a_fabric_are_free_partitions(self) -> None:
        for gpus, count in ((1, 6), (2, 2), (3, 0), (4, 1), (8, 0)):
            made = weighing.Scarcity(weighing.Mix.count({
                test_host.request(gpus=gpus, variants={'T4'}): 1}), [])
            host = test_host.linked(0b0110_1111)
            self.assertEqual((count,), made.capacity(host), gpus)
            loose = host._replace(
                links=host.links._replace(is_confined=False))
            self.assertEqual((6 // gpus,), made.capacity(loose), gpus)

    def test_other_variant_has_no_capacity(self) -> None:
        scarce, = weighing.scarce_classes(weighing.Mix.count(
            {test_host.request(variants={'H100'}): 1}))
        self.assertEqual(0, scarce.capacity(test_host.host()))


    def test_capacities_of_a_cloud_are_those_of_each_class(self) -> None:
        made = weighing.Scarcity(weighing.Mix.count({
            PAIR: 3, test_host.request(30, 10, 4): 2,
            test_host.request(variants={'H100'}): 1}), [])
        for host in [test_host.host(vcpus, gib, [300] + [1000] * whole, name)
                     for vcpus in (0, 7, 8, 31, 32, 33)
                     for gib in (1, 32, 64, 65) for whole in (0, 2, 5)
                     for name in ('T4', 'H100')]:
            for _ in range(2):
                self.assertEqual(
                    tuple(scarce.capacity(host) for scarce in made.classes),
                    made.capacity(host), host)


class PriceTest(base.BaseTestCase):

    def test_capacity_costs_more_the_fewer_there_are(self) -> None:
        mix = weighing.Mix.count({PAIR: 1, test_host.request(): 9})
        host = test_host.host(16, 128, [1000] * 4)
        many = weighing.Scarcity(mix, [host] * 40)
        few = weighing.Scarcity(mix, [host] + [
            test_host.host(4, 8, [1000] * 4)] * 39)
        self.assertLess(many.prices()[0], few.prices()[0])
        self.assertLessEqual(few.prices()[0], 2)

    def test_changed_host_counts_like_a_cloud_that_has_it(self) -> None:
        mix = weighing.Mix.count({PAIR: 1, test_host.request(): 9})
        before = test_host.host(16, 128, [1000] * 4)
        after = test_host.host(8, 64, [0, 0, 1000, 1000])
        changed = weighing.Scarcity(mix, [before, before])
        changed.change(before, after)
        self.assertEqual(weighing.Scarcity(mix, [before, after]).prices(),
                         changed.prices())
