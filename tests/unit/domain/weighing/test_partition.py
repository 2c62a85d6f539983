#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Tests of link partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies
from oslotest import base

from gpgpu_plugin.domain.weighing import partition

EIGHT = partition.lattice(8)


class PartitionsTest(base.BaseTestCase):

    def test_lattice_is_aligned(self) -> None:
        self.assertEqual([1, 2, 4, 8, 0b11, 0b1100, 0b1111],
                         partition.lattice(4))
        self.assertEqual(15, len(EIGHT))

    def test_single_gpu_comes_from_a_broken_pair(self) -> None:
        made = partition.Partitions(EIGHT)
        self.assertEqual((1, 0b0100), made.best(0b1111_0100, 1))

    def test_partition_that_is_not_free_is_never_taken(self) -> None:
        made = partition.Partitions(EIGHT)
        # Two GPUs are free, but of different pairs.
        self.assertIsNone(made.best(0b0110, 2))
        self.assertIsNone(made.best(0b0111, 3))
        self.assertFalse(made.is_partition(0b0110))
        self.assertTrue(made.is_partition(0b1100))

    @given(strategies.integers(0, 255), strategies.sampled_from([1, 2, 4, 8]))
    def test_best_costs_the_least_of_all(self, free, size) -> None:
        def left(mask: int) -> int:
            return sum(part.bit_count() for part in EIGHT
                       if part & mask == part)
        costs = [left(free) - left(free & ~part) for part in EIGHT
                   if part.bit_count() == size and part & free == part]
        found = partition.Partitions(EIGHT).best(free, size)
        if not costs:
            self.assertIsNone(found)
            return
        assert found is not None
        cost, mask = found
        self.assertEqual(min(costs), cost)
        self.assertEqual(cost, left(free) - left(free & ~mask))
        self.assertIn(mask, EIGHT)
