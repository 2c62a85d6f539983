# SPDX-License-Identifier: Apache-2.0
"""Tests of the state of link partitions."""

from oslotest import base

from gpgpu_plugin.domain import fabric
from tests.unit.domain.allocation import base as domain_base

PARTS = {''.join(sorted(part)): part for part in domain_base.lattice('abcd')}


class StatesTest(base.BaseTestCase):

    def shown(self, free, *uses, is_whole=True):
        """Return the states of abcd, ab, cd and c."""
        found = fabric.partition_states(PARTS, free, [
            fabric.PartitionUse(gpus=frozenset(gpus), is_whole=is_whole)
            for gpus in uses])
        return [str(found[name]) for name in ('abcd', 'ab', 'cd', 'c')]

    def test_partition_is_free_if_all_its_gpus_are(self):
        self.assertEqual(['free'] * 4, self.shown('abcd'))
        self.assertEqual(['unavailable', 'free', 'unavailable', 'free'],
                         self.shown('abc'))

    def test_partition_of_one_instance_overlaps_others(self):
        self.assertEqual(['overlapped', 'taken', 'free', 'free'],
                         self.shown('cd', 'ab'))
        self.assertEqual(['taken', 'overlapped', 'overlapped', 'overlapped'],
                         self.shown('', 'abcd'))
        self.assertEqual(['overlapped', 'taken', 'overlapped', 'taken'],
                         self.shown('', 'ab', 'c', 'd'))

    def test_gpus_that_are_no_partition_break_those_that_they_are_of(self):
        self.assertEqual(['broken', 'broken', 'broken', 'broken'],
                         self.shown('ad', 'bc'))
        self.assertEqual(['broken', 'taken', 'broken', 'free'],
                         self.shown('c', 'ab', 'dx'))

    def test_vgpus_break_partitions(self):
        self.assertEqual(['broken', 'free', 'broken', 'broken'],
                         self.shown('abd', 'c', is_whole=False))
