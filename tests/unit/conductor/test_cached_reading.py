# SPDX-License-Identifier: Apache-2.0
import threading

import fixtures
from oslotest import base

from gpgpu_plugin.conductor import threads
from tests.fixtures import patience


class CachedReadingTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.count = 0

    def reading(self, read, limit=patience.LONG):
        made = threads.SingleFlightCache(
            'numbers', read, lifetime=10, patience=limit,
            clock=lambda: self.now)
        self.addCleanup(made.stop)
        return made

    def next(self):
        self.count += 1
        return self.count

    def test_value_is_read_again_when_its_lifetime_is_over(self):
        reading = self.reading(self.next)
        self.assertEqual(1, reading.get())
        self.now += 10
        self.assertEqual(1, reading.get())
        self.now += 0.1
        self.assertEqual(2, reading.get())

    def test_many_who_ask_at_once_share_one_reading(self):
        go_on = threading.Event()

        def read():
            go_on.wait(patience.LONG)
            return self.next()
        reading, found = self.reading(read), []
        askers = [threading.Thread(
            target=lambda: found.append(reading.get())) for _ in range(10)]
        for asker in askers:
            asker.start()
        go_on.set()
        for asker in askers:
            asker.join()
        self.assertEqual([1] * 10, found)

    def test_nobody_waits_for_a_reading_that_hangs(self):
        go_on = threading.Event()
        self.addCleanup(go_on.set)

        def read():
            go_on.wait(patience.LONG)
            return self.next()
        reading = self.reading(read, 0.01)
        self.now += 100
        self.assertIsNone(reading.get())
        # It is the same one, although more than a lifetime has passed.
        self.now += 100
        self.assertIsNone(reading.get())
        go_on.set()
        self.assertTrue(patience.wait_until(reading.get))
        self.assertEqual(1, self.count)

    def test_reading_that_fails_is_said_and_not_repeated_at_once(self):
        log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.conductor.threads'))

        def read():
            if self.next() == 1:
                raise OSError('no route\nSELECT 1')
            return 'read'
        reading = self.reading(read)
        self.assertIsNone(reading.get())
        self.assertIsNone(reading.get())
        self.assertEqual(
            'Cannot read the numbers: no route\n', log.output)
        self.now += 11
        self.assertEqual('read', reading.get())

    def test_stop_ends_the_thread(self):
        reading = self.reading(self.next)
        reading.get()
        reading.stop()
        self.assertEqual([], [
            thread.name for thread in threading.enumerate()
            if thread.name.startswith('gpgpu-numbers')])
