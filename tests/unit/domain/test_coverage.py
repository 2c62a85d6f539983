# SPDX-License-Identifier: Apache-2.0
"""Tests of which assignments allocations cover."""

from oslotest import base

from gpgpu_plugin.domain import placement
from tests.fixtures import group as make

GPU = 'CUSTOM_GPU_T4'


class CoverageTest(base.BaseTestCase):

    def covered(self, allocations, *assignments):
        self.coverage = placement.coverage_of(assignments, {
            consumer: {GPU: units}
            for consumer, units in allocations.items()})
        return self.coverage.covered

    def test_instance_covers_its_own(self):
        self.assertEqual({'of-i1'}, self.covered(
            {'i1': 1}, make.assigned('i1'), make.assigned('i2')))

    def test_allocation_covers_no_more_than_its_units(self):
        self.assertEqual({'first'}, self.covered(
            {'i1': 1}, make.assigned('i1', uuid='first'),
            make.assigned('i1', uuid='second')))

    def test_migration_covers_what_the_instance_leaves(self):
        self.assertEqual({'of-i1'}, self.covered(
            {'migration': 1}, make.assigned('i1')))

    def test_own_allocation_counts_before_a_migrations(self):
        self.assertEqual({'of-i1', 'of-i2'}, self.covered(
            {'migration': 1, 'i2': 1}, make.assigned('i1'),
            make.assigned('i2')))

    def test_surplus_of_an_instance_covers_no_other(self):
        self.assertEqual({'of-i1'}, self.covered(
            {'i1': 2}, make.assigned('i1'), make.assigned('i2')))

    def test_other_resource_classes_cover_nothing(self):
        self.assertEqual(set(), self.covered(
            {'i1': 1}, make.assigned('i1', 'T4-4Q')))

    def test_migration_covers_no_more_than_its_units(self):
        self.assertEqual({'of-i1'}, self.covered(
            {'migration': 1}, make.assigned('i1'), make.assigned('i2')))

    def test_units_that_cover_nothing_are_left(self):
        self.covered({'i1': 2, 'migration': 2, 'i3': 1},
                     make.assigned('i1'), make.assigned('i2'))
        self.assertEqual({('i1', GPU): 1, ('migration', GPU): 1,
                          ('i3', GPU): 1}, dict(self.coverage.left))
