# SPDX-License-Identifier: Apache-2.0
"""Tests of the limits of calls that wait for the same."""

from oslotest import base

from gpgpu_plugin.rpc import server


class BulkheadTest(base.BaseTestCase):

    def test_calls_below_the_limits_begin(self):
        calls = server.Bulkhead(2, 3)
        for key in ('h1', 'h1', 'h2'):
            turn = calls.enter(key, 'call')
            self.assertEqual((key, 'call'), (turn.key, turn.call))

    def test_call_of_a_full_key_waits_until_one_ends(self):
        calls = server.Bulkhead(1, 3)
        first = calls.enter('h1', 1)
        self.assertIsNone(calls.enter('h1', 2))
        self.assertIsNone(calls.enter('h1', 3))
        other = calls.enter('h2', 4)
        self.assertIsNone(calls.leave(other))
        second = calls.leave(first)
        self.assertEqual(('h1', 2), (second.key, second.call))
        third = calls.leave(second)
        self.assertEqual(('h1', 3), (third.key, third.call))
        self.assertIsNone(calls.leave(third))
        self.assertIsNotNone(calls.enter('h1', 5))

    def test_keys_take_turns_when_all_are_full(self):
        calls = server.Bulkhead(1, 1)
        turn = calls.enter('h1', 0)
        for key, call in (('h1', 1), ('h1', 2), ('h2', 3), ('h3', 4)):
            self.assertIsNone(calls.enter(key, call))
        found = []
        while (turn := calls.leave(turn)) is not None:
            found.append(turn.call)
        self.assertEqual([1, 3, 4, 2], found)

    def test_last_repeat_of_a_call_that_runs_begins_when_that_ends(self):
        for key in ('h1', None):
            calls = server.Bulkhead(2, 2)
            first = calls.enter(key, 'first', 'a')
            for repeat in ('second', 'third'):
                self.assertIsNone(calls.enter(key, repeat, 'a'))
            # They do not count, and another call does not wait for them.
            self.assertEqual('other', calls.enter(key, 'other', 'b').call)
            repeat = calls.leave(first)
            self.assertEqual((key, 'third'), (repeat.key, repeat.call))
            self.assertIsNone(calls.leave(repeat))
            # What ended is not remembered.
            self.assertEqual('again', calls.enter(key, 'again', 'a').call)

    def test_repeat_takes_the_place_of_a_call_that_waits(self):
        calls = server.Bulkhead(1, 3)
        turn = calls.enter('h1', 0)
        for call, identity in ((1, 'a'), (2, 'b'), (3, 'a')):
            self.assertIsNone(calls.enter('h1', call, identity))
        found = []
        while (turn := calls.leave(turn)) is not None:
            found.append(turn.call)
        self.assertEqual([3, 2], found)

    def test_calls_without_key_are_not_counted(self):
        calls = server.Bulkhead(1, 1)
        turns = [calls.enter(None, number, number) for number in range(9)]
        self.assertEqual(list(range(9)), [turn.call for turn in turns])
        running = calls.enter('h1', 9)
        self.assertIsNone(calls.enter('h1', 10))
        self.assertEqual([None] * 9, list(map(calls.leave, turns)))
        self.assertEqual(10, calls.leave(running).call)
