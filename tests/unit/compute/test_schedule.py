# SPDX-License-Identifier: Apache-2.0
"""Tests of due tasks and their times, on a fake clock."""

from oslotest import base

from gpgpu_plugin.compute import tasks

_T = tasks.Task


class ScheduleTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.seconds = 0.0
        self.schedule = tasks.Schedule(lambda: self.seconds, 600, 300)
        self.schedule.begin()

    def due(self):
        return {task for task in _T if task is not _T.RECONCILE_LATER
                and self.schedule.is_due(task)}

    def finish(self):
        for task in self.due():
            self.schedule.take(task)
            if task is _T.RECONCILE:
                self.schedule.reconciled()

    def test_begin_makes_everything_due_that_a_predecessor_may_have_left(
            self):
        self.assertEqual({_T.REPORT, _T.CLEAN, _T.RECONCILE}, self.due())

    def test_comparison_is_repeated_after_a_lease_and_then_left_alone(self):
        self.finish()
        self.assertFalse(self.schedule.is_due(_T.RECONCILE))
        self.seconds += 600
        self.assertTrue(self.schedule.is_due(_T.RECONCILE))
        self.finish()
        self.seconds += 10 * 3600
        self.assertFalse(self.schedule.is_due(_T.RECONCILE))

    def test_full_comparison_is_due_at_the_latest_after_a_day_and_a_half(
            self):
        self.finish()
        self.seconds += 600
        self.finish()
        self.seconds += 36 * 3600
        self.assertTrue(self.schedule.is_due(_T.RECONCILE))

    def test_digests_of_many_hosts_are_spread_over_the_interval(self):
        first = []
        for _ in range(200):
            one = tasks.Schedule(lambda: self.seconds, 600, 300)
            one.begin()
            first.append(one._digest_at)
        self.assertTrue(all(150 <= at <= 450 for at in first))
        # Two hundred equal ones would be a herd.
        self.assertGreater(max(first) - min(first), 150)

    def test_digest_is_due_again_after_it_was_taken(self):
        self.seconds += 450
        self.assertTrue(self.schedule.is_due(_T.DIGEST))
        self.schedule.take(_T.DIGEST)
        self.assertFalse(self.schedule.is_due(_T.DIGEST))

    def test_task_that_becomes_due_while_it_runs_stays_due(self):
        self.schedule.take(_T.REPORT)
        self.schedule.require(_T.REPORT)
        self.assertTrue(self.schedule.is_due(_T.REPORT))
