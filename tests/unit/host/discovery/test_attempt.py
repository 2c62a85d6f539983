# SPDX-License-Identifier: Apache-2.0
"""Tests of attempts to read."""

from oslotest import base

from gpgpu_plugin.host.discovery import sysfs


class AttemptTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.problems = []
        self.attempt = sysfs.Attempt('0000:3b:00.0', self.problems)

    def test_readable_attribute_is_returned_without_a_problem(self):
        self.assertEqual('x', self.attempt('vendor', lambda: 'x'))
        self.assertIsNone(self.attempt('label', lambda: None))
        self.assertEqual(([], []), (self.problems, self.attempt.unreadable))

    def test_unreadable_attribute_is_unknown_and_a_problem(self):
        def fail():
            raise OSError(5, 'Input/output error')
        self.assertIsNone(self.attempt('vendor', fail))
        self.assertIsNone(self.attempt('class', lambda: int('x')))
        self.assertEqual(['vendor', 'class'], self.attempt.unreadable)
        self.assertEqual(
            '0000:3b:00.0: vendor cannot be read (Input/output error): '
            'unknown', self.problems[0])
        self.assertIn("'x'", self.problems[1])
