# SPDX-License-Identifier: Apache-2.0
"""Tests of the worker: wake-ups, one iteration at a time, errors."""

import threading

import fixtures
from oslotest import base

from gpgpu_plugin.compute import service


class WorkerTest(base.BaseTestCase):

    def make(self, work, interval=3600):
        made = service.Worker(work, interval, 'test')
        self.addCleanup(made.stop)
        made.start()
        return made

    def test_wake(self):
        iterated = threading.Event()
        self.make(iterated.set).wake()
        self.assertTrue(iterated.wait(300))

    def test_interval(self):
        iterated = threading.Event()
        self.make(iterated.set, 0.01)
        self.assertTrue(iterated.wait(300))

    def test_next_iteration_comes_when_the_work_wants_it(self):
        iterations = []
        third = threading.Event()

        def work():
            iterations.append(1)
            if len(iterations) == 3:
                third.set()
                return None
            return 0.01
        self.make(work).wake()
        self.assertTrue(third.wait(300))

    def test_error_does_not_end_it(self):
        iterations = []
        second = threading.Event()

        def work():
            iterations.append(1)
            if len(iterations) == 1:
                raise RuntimeError('once')
            second.set()
        self.make(work, 0.01)
        self.assertTrue(second.wait(300))

    def test_wakes_while_it_works_become_one_iteration(self):
        iterations = []
        begun, go_on, done = (threading.Event() for _ in range(3))

        def work():
            iterations.append(1)
            begun.set()
            go_on.wait(300)
            if len(iterations) == 2:
                done.set()
        made = self.make(work)
        made.wake()
        self.assertTrue(begun.wait(300))
        for _ in range(50):
            made.wake()
        go_on.set()
        self.assertTrue(done.wait(300))
        made.stop()
        self.assertEqual(2, len(iterations))

    def test_iterations_of_two_threads_do_not_overlap(self):
        begun, go_on = threading.Event(), threading.Event()
        inside = threading.Semaphore()
        overlaps = []

        def work():
            overlaps.append(not inside.acquire(blocking=False))
            begun.set()
            if not overlaps[-1]:
                go_on.wait(300)
                inside.release()
        subject = self.make(work)
        subject.wake()
        self.assertTrue(begun.wait(300))
        asked = threading.Event()
        other = threading.Thread(
            target=lambda: (subject.run_once(), asked.set()))
        lock = subject._busy

        class Lock:
            """Lock that reports when a second thread waits for it."""

            def __enter__(self):
                asked.set()
                lock.acquire()

            def __exit__(self, *args):
                lock.release()
        subject._busy = Lock()
        other.start()
        self.assertTrue(asked.wait(300))
        go_on.set()
        other.join(300)
        self.assertEqual([False, False], overlaps)

    def test_interval_counts_after_an_error(self):
        pauses = []
        third = threading.Event()
        answers = iter([0.25, RuntimeError('once')])

        def work():
            answer = next(answers, None)
            if isinstance(answer, Exception):
                raise answer
            return answer
        subject = service.Worker(work, 3600, 'test')

        def wait(pause):
            pauses.append(pause)
            if len(pauses) == 3:
                third.set()
                subject._stopping = True
        self.useFixture(fixtures.MockPatchObject(
            subject._wake, 'wait', wait))
        subject.start()
        self.assertTrue(third.wait(300))
        subject.stop()
        self.assertEqual([3600, 0.25, 3600], pauses)

    def test_stop_ends_the_thread_at_once(self):
        subject = self.make(lambda: None)
        thread = subject._thread
        subject.stop(300)
        self.assertFalse(thread.is_alive())

    def test_wake_during_stop_begins_no_iteration(self):
        iterations = []
        subject = self.make(lambda: iterations.append(1))
        subject.stop()
        subject.wake()
        self.assertEqual([], iterations)
