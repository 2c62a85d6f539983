#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Tests of attempts to read."""

from oslotest import base

from gpgpu_plugin.host.discovery import attempt


class AttemptTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.problems = []
        self.attempt = attempt.Attempt('0000:3b:00.0', self.problems)

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
