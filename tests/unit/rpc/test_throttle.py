# SPDX-License-Identifier: Apache-2.0
"""Tests of how far a server reads ahead of its threads."""

import threading

import fixtures
from oslotest import base

from gpgpu_plugin.rpc import throttle
from tests.fixtures import patience


class ThrottleTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.longest(patience.LONG)
        self.elsewhere = 0

    def longest(self, seconds):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.throttle.LONGEST', seconds))

    def throttle(self, limit):
        return throttle.Throttle(limit, None, lambda: self.elsewhere)

    def reader(self, read):
        """Return a thread that waits until it may read."""
        thread = threading.Thread(target=read.wait)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(read.turn_off)
        return thread

    def assertReads(self, thread):
        thread.join(patience.LONG)
        self.assertFalse(thread.is_alive())

    def assertWaits(self, thread):
        thread.join(0.05)
        self.assertTrue(thread.is_alive())

    def test_fewer_calls_than_the_limit_delay_no_other(self):
        read = self.throttle(2)
        read.receive()
        self.assertReads(self.reader(read))

    def test_reader_waits_until_a_call_gets_its_thread(self):
        read = self.throttle(2)
        read.receive()
        read.receive()
        thread = self.reader(read)
        self.assertWaits(thread)
        read.begin()
        self.assertReads(thread)

    def test_waits_are_forgotten_where_the_broker_sends_any_number(self):
        self.longest(0.01)
        read = self.throttle(2)
        read.receive()
        read.receive()
        read.wait()
        self.assertGreaterEqual(read.receive(), 0.01)
        for _ in range(3):
            read.begin()
        for _ in range(2):
            read.wait()
        self.assertLess(read.receive(), 0.01)

    def test_calls_that_wait_elsewhere_count(self):
        read = self.throttle(2)
        read.receive()
        self.elsewhere = 1
        thread = self.reader(read)
        self.assertWaits(thread)
        self.elsewhere = 0
        read.handled(9)
        self.assertReads(thread)

    def test_server_that_handles_calls_quickly_parks_those_that_wait(self):
        read = self.throttle(2)
        self.elsewhere = 2 * throttle.PARKED - 1
        self.assertWaits(self.reader(read))
        for seconds, reads in ((throttle.LONGEST, False),
                               (throttle.LONGEST / 2, True)):
            read.handled(seconds)
            self.assertEqual(reads, read._may_read())
        self.elsewhere += 1
        self.assertFalse(read._may_read())
        self.elsewhere = 0
        # But not those that wait for any thread at all.
        read.receive()
        read.receive()
        self.assertFalse(read._may_read())

    def test_reader_goes_on_after_the_longest_wait(self):
        self.longest(0.01)
        read = self.throttle(1)
        read.receive()
        self.assertReads(self.reader(read))

    def test_server_that_stops_reads_all(self):
        read = self.throttle(1)
        read.receive()
        thread = self.reader(read)
        self.assertWaits(thread)
        read.turn_off()
        self.assertReads(thread)
        self.assertReads(self.reader(read))


class DelayTest(base.BaseTestCase):
    """How long a call may have waited to be read."""

    def setUp(self):
        super().setUp()
        self.seconds = 1000.0
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.rpc.throttle.time.monotonic',
            lambda: self.seconds))
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.rpc.throttle.threading.Condition.wait_for',
            self.wait_for))
        self.delay = 0
        self.read = throttle.Throttle(1, 3, lambda: 0)

    def wait_for(self, predicate, timeout):
        self.seconds += self.delay

    def receive(self, delay):
        """Receive a call, after which the reader waits."""
        found = self.read.receive()
        self.delay = delay
        self.read.wait()
        return found

    def test_waits_before_a_call_was_read_add_up(self):
        self.assertEqual(
            [0, 0.5, 1.5],
            [self.receive(delay) for delay in (0.5, 1, 0)])

    def test_only_calls_that_the_broker_sends_ahead_wait(self):
        self.assertEqual(
            [0, 1, 2, 3, 3, 3], [self.receive(1) for _ in range(6)])

    def test_none_waits_when_the_reader_had_nothing_to_read(self):
        self.receive(1)
        self.seconds += 1.5
        self.assertEqual(0, self.receive(1))
        self.assertEqual(1, self.receive(1))
