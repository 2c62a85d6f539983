# SPDX-License-Identifier: Apache-2.0
"""Tests of link partitions as bit masks."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies
from oslotest import base

from gpgpu_plugin.domain import fabric
from tests.fixtures import lattice

EIGHT = lattice.of(8)
MASKS = strategies.integers(0, 255)


def left(free: int) -> int:
    """Return the GPUs of all partitions that are wholly free."""
    return sum(part.bit_count() for part in EIGHT if part & free == part)


class PartitionsTest(base.BaseTestCase):

    def test_lattice_is_aligned(self) -> None:
        self.assertEqual((1, 2, 4, 8, 0b11, 0b1100, 0b1111),
                         lattice.of(4))
        self.assertEqual(15, len(EIGHT))

    def test_single_gpu_comes_from_a_broken_pair(self) -> None:
        made = fabric.partitions_of(EIGHT)
        self.assertEqual((1, 0b0100), made.best(0b1111_0100, 1))

    def test_partition_that_is_not_free_is_never_taken(self) -> None:
        made = fabric.partitions_of(EIGHT)
        # Two GPUs are free, but of different pairs.
        self.assertIsNone(made.best(0b0110, 2))
        self.assertIsNone(made.best(0b0111, 3))

    def test_count_is_of_one_size(self) -> None:
        made = fabric.partitions_of(EIGHT)
        self.assertEqual([6, 2, 1, 0], [
            made.count(0b0110_1111, size) for size in (1, 2, 4, 8)])

    @given(MASKS, strategies.sampled_from([1, 2, 4, 8]))
    def test_best_costs_the_least_of_all_partitions(self, free, size) -> None:
        sets = [part for part in EIGHT
                if part.bit_count() == size and part & free == part]
        self.check(fabric.partitions_of(EIGHT).best(free, size), free, sets)

    @given(MASKS, strategies.integers(1, 8))
    def test_best_gpus_cost_the_least_of_all_sets(self, free, size) -> None:
        gpus = [1 << bit for bit in range(8) if free >> bit & 1]
        self.check(fabric.partitions_of(EIGHT).best_gpus(free, size), free, [
            sum(chosen) for chosen in itertools.combinations(gpus, size)])

    def check(self, found, free, sets) -> None:
        """Check a choice against all sets of GPUs that are possible."""
        if not sets:
            self.assertIsNone(found)
            return
        self.assertIn(found.gpus, sets)
        self.assertEqual(left(free) - left(free & ~found.gpus), found.cost)
        self.assertEqual(found.cost, min(
            left(free) - left(free & ~gpus) for gpus in sets))

    def test_of_many_gpus_those_are_taken_that_break_the_least_alone(
            self) -> None:
        pairs = tuple(0b11 << bit for bit in range(0, 20, 2))
        made = fabric.partitions_of(pairs)
        self.assertEqual(
            (2, 0b11_0101), made.best_gpus((1 << 20) - 1 & ~0b1010, 4))
