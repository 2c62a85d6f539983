# SPDX-License-Identifier: Apache-2.0
"""Tests of contradictions in the events of a device."""

from oslotest import base

from tests.storm import event_history

CLEANED = [('clean_started', None), ('clean_passed', None)]


def used(assignment):
    return [('claim', assignment), ('activate', assignment),
            ('release', assignment), *CLEANED]


class ContradictionTest(base.BaseTestCase):

    def test_consecutive_users(self):
        self.assertIsNone(event_history.contradiction([
            *used('a1'), ('claim', 'a2'), ('abort', 'a2'), ('claim', 'a3'),
            ('abort', 'a3'), ('clean_started', None),
            ('clean_interrupted', None), *CLEANED]))

    def test_two_users_at_once(self):
        self.assertIn('is not possible', event_history.contradiction([
            ('claim', 'a1'), *used('a2')]))

    def test_second_user_without_cleaning(self):
        self.assertIn('is not possible', event_history.contradiction([
            *used('a1')[:3], *used('a2')]))

    def test_end_of_another_assignment(self):
        self.assertIn('a2 ends in a1', event_history.contradiction([
            ('claim', 'a1'), ('release', 'a2')]))

    def test_assignment_without_end(self):
        self.assertIn(
            'assignment a1', event_history.contradiction(used('a1')[:2]))

    def test_device_without_cleaning_at_the_end(self):
        self.assertIn('dirty', event_history.contradiction(used('a1')[:3]))
