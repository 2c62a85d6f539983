# SPDX-License-Identifier: Apache-2.0
"""Tests of assignments that Nova's resource tracker does not expect."""

import types

from oslotest import base

from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.objects import claim
from tests.unit.compute import make

MINE = make.assignment(uuid='a1')
MOVED = make.assignment(uuid='a2', role=claim.ClaimRole.DESTINATION,
                        migration_uuid='m1')


class UnexpectedAssignmentsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.seconds = 0.0
        self.watch = leftovers.UnexpectedAssignments(lambda: self.seconds)

    def find(self, *assignments, instances=(), migrations=(), builds=(),
             after=60.0):
        """Return what a periodic update of Nova finds."""
        self.seconds += after
        return self.watch.find(assignments, types.SimpleNamespace(
            tracked_instances=set(instances),
            tracked_migrations=dict.fromkeys(migrations)), set(builds))

    def test_expected_assignments_are_not_found(self):
        for assignments, kwargs in (
                ([], {}), ([MINE], {'instances': ['i1']}),
                ([MINE], {'migrations': ['i1']}),
                ([MINE], {'builds': ['i1']}),
                ([MOVED], {'instances': ['i1']}),
                ([MINE, MOVED], {'migrations': ['i1']}),
                ([MINE, MOVED], {'instances': ['i1'], 'migrations': ['i1']})):
            for _ in range(2):
                self.assertEqual([], self.find(*assignments, **kwargs))

    def test_lasting_difference_is_found_once(self):
        for assignments, kwargs in (
                ([MINE], {'instances': ['i2']}),
                ([MINE, MOVED], {'instances': ['i1']})):
            self.assertEqual([[], ['i1'], [], []], [
                self.find(*assignments, **kwargs) for _ in range(4)])
            self.assertEqual([], self.find())

    def test_difference_that_stays_is_found_again_each_hour(self):
        # An instance that was moving at the first comparison may have been
        # deleted since, which changes nothing here.
        self.find(MINE)
        self.assertEqual([['i1'], [], ['i1'], [], ['i1']], [
            self.find(MINE, after=seconds)
            for seconds in (60.0, 3540.0, 60.0, 3540.0, 60.0)])

    def test_difference_that_does_not_last_is_not_found(self):
        self.assertEqual([], self.find(MINE))
        self.assertEqual([], self.find(MINE, after=1.0))
        self.assertEqual([], self.find(MINE, instances=['i1']))
        self.assertEqual([], self.find(MINE))

    def test_change_of_a_difference_is_found_again(self):
        self.find(MINE, MOVED)
        self.assertEqual(['i1'], self.find(MINE, MOVED))
        self.assertEqual([], self.find(MINE))
        self.assertEqual(['i1'], self.find(MINE))
