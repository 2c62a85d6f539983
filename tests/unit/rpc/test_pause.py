# SPDX-License-Identifier: Apache-2.0
"""Tests of times in which the process was stopped."""

import fixtures
from oslotest import base

from gpgpu_plugin.rpc import pause


class PauseWatchTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.seconds = 1000.0
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.rpc.pause.time.monotonic', lambda: self.seconds))
        self.watch = pause.PauseWatch()

    def test_message_of_a_process_that_runs_has_just_arrived(self):
        for _ in range(5):
            self.seconds += pause.INTERVAL
            self.assertEqual(self.seconds, self.watch.arrived_at())

    def test_message_read_after_a_stop_may_be_as_old_as_the_stop(self):
        self.seconds += 60
        self.assertEqual(1000, self.watch.arrived_at())

    def test_stop_that_the_thread_notices_first_counts_as_well(self):
        self.seconds += 60
        self.watch.note()
        self.seconds += pause.INTERVAL
        self.assertEqual(1000, self.watch.arrived_at())

    def test_message_read_later_has_just_arrived(self):
        self.seconds += 60
        for _ in range(3):
            self.watch.note()
            self.seconds += pause.INTERVAL
        self.assertEqual(self.seconds, self.watch.arrived_at())

    def test_time_before_the_start_is_no_pause(self):
        # As of a server that an unfit conductor starts later.
        self.seconds += 60
        self.watch.start()
        self.addCleanup(self.watch.stop)
        self.assertEqual(1060, self.watch.arrived_at())

    def test_thread_ends(self):
        self.watch.start()
        thread = self.watch._thread
        self.watch.stop()
        self.assertFalse(thread.is_alive())
        self.watch.stop()
