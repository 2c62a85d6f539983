# SPDX-License-Identifier: Apache-2.0
"""Tests of how long faults are injected."""

import itertools
import random
from unittest import mock

import fixtures
from oslotest import base

from tests.storm import faults


class DurationTest(base.BaseTestCase):

    def injected(self, enough):
        """Return how many faults there are, one a second, in two seconds.

        :param enough: number of faults after which nothing is missing
        """
        injector = faults.FaultInjector(
            mock.Mock(), 'sqlite://', random.Random(1))
        found = []
        self.pauses = []
        for name, value in (('_wait', self._pause),
                            ('_shuffled', lambda: [lambda: found.append(1)])):
            self.useFixture(fixtures.MockPatchObject(injector, name, value))
        self.useFixture(fixtures.MockPatchObject(
            faults.time, 'monotonic', side_effect=itertools.count()))
        injector.inject(2, lambda: len(found) >= enough)
        return len(found)

    def _pause(self, seconds, everything=False):
        if not everything:
            self.pauses.append(seconds)

    def test_faults_take_their_time_though_all_was_there(self):
        self.assertEqual(1, self.injected(enough=0))

    def test_slow_machine_gets_longer(self):
        self.assertEqual(7, self.injected(enough=7))

    def test_machine_that_is_too_slow_ends(self):
        self.assertEqual(19, self.injected(enough=1000))

    def test_pauses_grow_on_a_slow_machine(self):
        """Else its hosts were killed before any move had ended."""
        self.injected(enough=1000)
        self.assertLessEqual(self.pauses[0], 1.5)
        self.assertGreaterEqual(self.pauses[-1], 0.5 * 19 / 2)
