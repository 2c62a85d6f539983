# SPDX-License-Identifier: Apache-2.0
"""Tests of the states of hosts."""

from oslotest import base

from gpgpu_plugin.domain import host


class HostStateTest(base.BaseTestCase):

    def test_states_are_the_words_that_lists_show(self):
        self.assertEqual(
            ['up', 'silent', 'restored', 'disabled', 'draining'],
            list(host.HostState))

    def test_host_notices_a_restore_within_two_intervals(self):
        self.assertEqual(10, host.minutes_to_report(300))
        self.assertEqual(1, host.minutes_to_report(10))
