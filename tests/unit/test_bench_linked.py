# SPDX-License-Identifier: Apache-2.0
"""Tests of hosts with link partitions."""

from __future__ import annotations

import random

from oslotest import base

from bench.simulation import linked
from gpgpu_plugin.domain import fabric
from tests.fixtures import lattice


def pool(rule='linked', hosts=2):
    return linked.Linked(hosts, linked.RULES[rule])


class LinkedTest(base.BaseTestCase):

    def test_spread_takes_the_emptiest_host_and_pack_the_fullest(
            self) -> None:
        for rule, expected in (('spread', [0, 1]), ('pack', [0, 0]),
                               ('linked', [0, 0])):
            made = pool(rule)
            self.assertEqual(expected, [
                (made.place(1) or (None,))[0] for _ in range(2)], rule)

    def test_guests_without_a_partition_are_counted(self) -> None:
        made = pool('pack', hosts=1)
        made.place(1)
        self.assertEqual((0, 0b0110), made.place(2))
        self.assertEqual(1, made.broken)

    def test_link_partition_that_is_nowhere_free_is_refused(self) -> None:
        made = pool(hosts=1)
        self.assertIsNotNone(made.place(1))
        self.assertIsNone(made.place(8))
        self.assertEqual((0, 0b1100), made.place(2))

    def test_host_with_more_guests_is_taken_of_equal_ones(self) -> None:
        made = pool()
        first = [made.place(4) for _ in range(2)]
        self.assertEqual([(0, 0b1111), (0, 0b1111_0000)], first)
        small = [made.place(1) for _ in range(4)]
        self.assertEqual({1}, {place[0] for place in small if place})
        made.release(first[0])
        self.assertEqual((1, 0b1111_0000), made.place(4))

    def test_claim_takes_what_the_weigher_expects_it_to_break(self) -> None:
        generator = random.Random(5)
        masks = lattice.of(linked.GPUS)
        partitions = fabric.partitions_of(masks)
        for free in generator.sample(range(1, 256), 40):
            for size in (1, 2, 4, 8):
                choice = linked.RULES['linked'](linked.State(free, 0), size)
                best = partitions.best(free, size)
                self.assertEqual(best is None, choice is None)
                if best is not None and choice is not None:
                    gpus = choice[2]
                    self.assertIn(gpus, masks)
                    self.assertEqual(best.cost, fabric.fragmentation_cost(
                        partitions.free(free), gpus))

    def test_no_gpu_is_taken_twice_nor_lost(self) -> None:
        generator = random.Random(4)
        for rule in linked.RULES:
            made, places = pool(rule, hosts=4), []
            for _ in range(400):
                if places and generator.random() < .5:
                    made.release(places.pop(
                        generator.randrange(len(places))))
                place = made.place(generator.choice((1, 2, 4, 8)))
                if place is not None:
                    places.append(place)
                for host in range(4):
                    taken = [gpus for other, gpus in places if other == host]
                    self.assertEqual(
                        sum(gpus.bit_count() for gpus in taken),
                        sum(taken).bit_count(), rule)
            self.assertEqual(rule == 'linked', not made.broken)
            for place in places:
                made.release(place)
            self.assertEqual(
                [0, 1, 2, 3], sorted(made.place(8)[0] for _ in range(4)))
