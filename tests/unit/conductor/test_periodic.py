# SPDX-License-Identifier: Apache-2.0
"""Tests of functions that are called again and again."""

import threading

from oslotest import base

from gpgpu_plugin.conductor import threads


class PeriodicTest(base.BaseTestCase):

    def test_functions_are_called_again_until_the_stop(self):
        often, once = threading.Semaphore(0), threading.Semaphore(0)
        subject = threads.PeriodicThread(
            'again', (0.01, often.release), (3600, once.release))
        subject.start()
        for _ in range(3):
            self.assertTrue(often.acquire(timeout=60))
        self.assertTrue(once.acquire(timeout=60))
        subject.stop()
        self.assertFalse(once.acquire(blocking=False))
        self.assertNotIn('again', [
            thread.name for thread in threading.enumerate()])

    def test_stop_before_the_start_does_nothing(self):
        threads.PeriodicThread('never', (1, self.fail)).stop()
