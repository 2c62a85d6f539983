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
"""A ledger that contradicts itself is found."""

from oslotest import base

from tests.storm import verdict

CLEANED = [('clean_started', None), ('clean_passed', None)]


def used(assignment):
    return [('claim', assignment), ('activate', assignment),
            ('release', assignment), *CLEANED]


class ContradictionTest(base.BaseTestCase):

    def test_one_user_after_the_other(self):
        self.assertIsNone(verdict.contradiction([
            *used('a1'), ('claim', 'a2'), ('abort', 'a2'), ('claim', 'a3'),
            ('abort', 'a3'), ('clean_started', None),
            ('clean_interrupted', None), *CLEANED]))

    def test_two_users_at_a_time(self):
        self.assertIn('is not possible', verdict.contradiction([
            ('claim', 'a1'), *used('a2')]))

    def test_user_after_one_that_was_not_cleaned(self):
        self.assertIn('is not possible', verdict.contradiction([
            *used('a1')[:3], *used('a2')]))

    def test_end_of_another_assignment(self):
        self.assertIn('a2 ends in a1', verdict.contradiction([
            ('claim', 'a1'), ('release', 'a2')]))

    def test_user_that_never_ended(self):
        self.assertIn('assignment a1', verdict.contradiction(used('a1')[:2]))

    def test_device_that_stays_dirty(self):
        self.assertIn('dirty', verdict.contradiction(used('a1')[:3]))
