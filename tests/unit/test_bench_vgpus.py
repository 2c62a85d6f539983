# SPDX-License-Identifier: Apache-2.0
"""Tests of hosts with vGPUs of one type a GPU."""

from __future__ import annotations

from oslotest import base

from bench.simulation import vgpus
from gpgpu_plugin.domain import weighing


def pool(rule='started', hosts=2):
    return vgpus.VGPUs(hosts, vgpus.RULES[rule])


def hosts_of(made, size, count):
    return [made.place(size).host for _ in range(count)]


class VGPUsTest(base.BaseTestCase):

    def test_started_gpu_of_the_type_is_taken_before_an_idle_one(
            self) -> None:
        made = pool()
        first, second = made.place(4), made.place(4)
        self.assertEqual(first, second)
        self.assertNotEqual(first, made.place(2))

    def test_started_gpu_of_an_emptier_host_is_taken_too(self) -> None:
        made = pool()
        filled = [made.place(1) for _ in range(4)]
        self.assertEqual([1], hosts_of(made, 8, 1))
        made.release(filled[0])
        self.assertEqual([1], hosts_of(made, 8, 1))
        self.assertEqual([0], hosts_of(pool('pack'), 8, 1))

    def test_pack_starts_another_gpu_of_the_fullest_host(self) -> None:
        made = pool('pack')
        self.assertEqual([0, 0, 0, 0, 1], hosts_of(made, 1, 5))
        self.assertEqual([0, 1, 0, 1], hosts_of(pool('spread'), 2, 4))

    def test_gpu_takes_no_second_type_until_it_is_empty(self) -> None:
        made = pool(hosts=1)
        places = [made.place(size) for size in (1, 2, 4, 8)]
        self.assertNotIn(None, places)
        self.assertIsNone(made.place(1))
        self.assertIsNotNone(made.place(8))
        made.release(places[1])
        self.assertEqual(places[1], made.place(1))
        self.assertIsNone(made.place(2))

    def test_own_rule_is_that_of_the_weigher(self) -> None:
        made = vgpus.VGPUs(3, vgpus.RULES['started'])
        for size in (4, 1, 1, 1, 1, 2, 2, 2):
            made.place(size)
        states = [dict(enumerate(gpu.available(4) for gpu in host))
                  for host in made.hosts]
        gains = [weighing.vgpu_gain(state, 4, 1) for state in states]
        self.assertEqual(gains.index(max(gains)), made.place(4).host)


class RepackedTest(base.BaseTestCase):

    def test_vgpus_of_a_type_need_no_more_gpus_than_they_fill(self) -> None:
        made = vgpus.Repacked(2, {2: .5, 4: .25})
        places = [made.place(size) for size in (2, 2, 4, 4)]
        self.assertNotIn(None, places)
        self.assertIsNone(made.place(2))
        made.release(places[0])
        self.assertIsNotNone(made.place(2))
        self.assertIsNone(made.place(2))
