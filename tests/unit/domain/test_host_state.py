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
"""Tests of the states of hosts."""

from oslotest import base

from gpgpu_plugin.domain import host_state


class HostStateTest(base.BaseTestCase):

    def test_states_are_the_words_that_lists_show(self):
        self.assertEqual(
            ['up', 'silent', 'restored', 'disabled', 'draining'],
            list(host_state.HostState))

    def test_host_notices_a_restore_within_two_intervals(self):
        self.assertEqual(10, host_state.minutes_to_report(300))
        self.assertEqual(1, host_state.minutes_to_report(10))
