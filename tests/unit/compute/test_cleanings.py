# SPDX-License-Identifier: Apache-2.0
"""Tests of cleanings that run beside other tasks."""

import threading
import time
from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.compute import cleaning
from gpgpu_plugin.objects import claim

LONG = 60.0


def task(number, stable_id=None):
    return claim.CleanTask(
        device_uuid=f'd{number}', token=f't{number}',
        stable_id=stable_id or f'/devices/pci0000:00/{number:02x}.0',
        address=f'0000:{number:02x}:00.0', vgpu_type=None,
        variant=None, request=f'r{number}', had_guest=True,
        steps=('reset',))


class CleaningsCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.begun = []
        self.notified = []
        self.go = {number: threading.Event() for number in range(1, 9)}
        self.errors = {}
        for event in self.go.values():
            self.addCleanup(event.set)

    def clean(self, wanted):
        number = int(wanted.device_uuid[1:])
        self.begun.append(number)
        self.assertTrue(self.go[number].wait(LONG))
        if number in self.errors:
            raise self.errors[number]
        return number

    def make(self, limit=4, moment=LONG):
        return cleaning.Cleanings(
            limit, self.clean, lambda: self.notified.append(1), moment)

    def until(self, condition):
        deadline = time.monotonic() + LONG
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)


class RunTest(CleaningsCase):

    def test_answers_come_as_cleanings_end(self):
        found = self.make().run([task(1), task(2)])
        self.go[2].set()
        self.assertEqual(2, next(found))
        self.go[1].set()
        self.assertEqual([1], list(found))
        self.assertEqual([], self.notified)

    def test_nothing_to_clean_waits_for_nothing(self):
        self.assertEqual([], list(self.make().run([])))

    def test_as_many_as_allowed_run_at_once(self):
        running = self.make(limit=2)
        found = running.run([task(1), task(2), task(3)])
        self.go[1].set()
        self.assertEqual(1, next(found))
        for number in (2, 3):
            self.go[number].set()
        self.assertEqual({2, 3}, set(found))
        self.assertEqual([1, 2, 3], sorted(self.begun))
        self.assertFalse(running)

    def test_one_vf_of_a_gpu_after_the_other(self):
        pf = '/devices/pci0000:00/01.0'
        found = self.make().run([task(1, f'{pf}/vf0'), task(2, f'{pf}/vf1')])
        self.go[1].set()
        self.assertEqual(1, next(found))
        self.go[2].set()
        self.assertEqual([2], list(found))
        self.assertEqual([1, 2], self.begun)

    def test_error_of_one_leaves_the_others_alone(self):
        running = self.make()
        self.errors[1] = exception.HostNotReady(path='x', reason='y')
        found = running.run([task(1), task(2)])
        for number in (1, 2):
            self.go[number].set()
        self.assertEqual(2, next(found))
        self.assertRaises(exception.HostNotReady, next, found)
        self.assertFalse(running)
        self.assertEqual([], self.notified)


    def test_each_error_is_logged_and_one_of_the_session_is_raised(self):
        log = self.useFixture(fixtures.FakeLogger())
        running = self.make(limit=1)
        self.errors[1] = exception.HostNotReady(path='x', reason='y')
        self.errors[2] = exception.SessionLost(
            host='h', session=1, reason='restored')
        for number in (1, 2):
            self.go[number].set()
        found = running.run([task(1), task(2)])
        self.assertRaises(exception.SessionLost, list, found)
        for words in ('d1 (0000:01:00.0)', 'HostNotReady', 'd2', 'restored'):
            self.assertIn(words, log.output)

    def test_thread_that_exits_leaves_its_gpu_to_others(self):
        running = self.make(limit=1)
        self.errors[1] = SystemExit(1)
        for number in (1, 2):
            self.go[number].set()
        self.assertRaisesRegex(
            RuntimeError, 'SystemExit', list, running.run([task(1)]))
        self.assertFalse(running)
        self.assertEqual([2], list(running.run([task(2)])))

    def test_thread_that_does_not_begin_leaves_its_gpu_to_others(self):
        running = self.make(limit=1)
        self.go[1].set()
        with mock.patch('threading.Thread.start',
                        side_effect=RuntimeError("can't start new thread")):
            self.assertRaises(RuntimeError, list, running.run([task(1)]))
        self.assertFalse(running)
        self.assertEqual([1], list(running.run([task(1)])))


class DelayTest(CleaningsCase):

    def setUp(self):
        super().setUp()
        self.seconds = 0.0
        self.errors[1] = exception.HostNotReady(path='x', reason='y')
        for number in (1, 2):
            self.go[number].set()
        self.running = cleaning.Cleanings(
            4, self.clean, lambda: None, LONG, clock=lambda: self.seconds)

    def try_again(self, tasks=(1,)):
        """Clean devices; the first of them cannot be cleaned."""
        found = self.running.run(list(map(task, tasks)))
        self.assertRaises(exception.HostNotReady, list, found)

    def test_device_of_a_host_without_session_does_not_wait(self):
        self.errors[1] = exception.NoSession(host='h1', reason='none yet')
        for _ in range(3):
            self.assertRaises(exception.NoSession, list,
                              self.running.run([task(1)]))
        self.assertEqual([1, 1, 1], self.begun)

    def test_device_of_a_host_that_is_not_set_up_waits_ever_longer(self):
        for _ in range(60):
            self.try_again()
            self.seconds += 60
        # At 0, 1, 2, 4, 8, 16, 26, 36, 46 and 56 minutes.
        self.assertEqual([1] * 10, self.begun)

    def test_other_devices_do_not_wait(self):
        self.try_again()
        self.try_again((1, 2))
        self.assertEqual([1, 2], self.begun)

    def test_device_that_was_cleaned_waits_no_more(self):
        self.try_again()
        error = self.errors.pop(1)
        self.seconds += 60
        self.assertEqual([1], list(self.running.run([task(1)])))
        self.errors[1] = error
        self.try_again()
        self.seconds += 31
        self.try_again()
        self.assertEqual([1] * 4, self.begun)


class LaterTest(CleaningsCase):

    def test_long_cleaning_holds_nobody_up(self):
        running = self.make(moment=0)
        self.assertEqual([], list(running.run([task(1)])))
        self.assertTrue(running)
        self.assertEqual([], self.notified)
        self.go[1].set()
        self.until(lambda: self.notified)
        self.assertFalse(running)
        self.assertEqual([1], list(running.run([])))
        self.assertEqual([1], self.notified)

    def test_device_that_is_being_cleaned_is_left_out(self):
        running = self.make(moment=0)
        for _ in range(2):
            self.assertEqual([], list(running.run([task(1)])))
        self.until(lambda: self.begun)
        self.go[1].set()
        self.until(lambda: self.notified)
        self.assertEqual([1], self.begun)

    def test_answer_that_nobody_took_is_announced(self):
        """The caller fails between two answers."""
        running = self.make()
        found = running.run([task(1), task(2)])
        for number in (1, 2):
            self.go[number].set()
        next(found)
        self.until(lambda: not running)
        found.close()
        self.assertEqual([1], self.notified)
        self.assertEqual(1, len(list(running.run([]))))
