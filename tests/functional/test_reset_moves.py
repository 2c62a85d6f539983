# SPDX-License-Identifier: Apache-2.0
"""Moves of a server that an operator reset to active before they ended.

Nova then has several migrations of the server that are finished, and confirms
or reverts whichever its database names first.
"""

from __future__ import annotations

from tests.functional import test_moves


class ResetTest(test_moves.MovesCase):
    """A server that is migrated, reset to active and migrated home."""

    def setUp(self) -> None:
        super().setUp()
        self.act('migrate')
        self.away = self.moved()
        self.reset()
        self.act('migrate')
        self.back = self.moved('gpu1')
        self.assertFalse(set(self.gpus) & set(self.back))

    def reset(self) -> None:
        """Reset the server to active, as an operator does."""
        self.act('os-resetState', {'state': 'active'})
        self.wait_status(self.server['id'], 'ACTIVE')

    def _check_guest(self) -> None:
        self.assertEqual(self.back, self.hostdevs(self.server))
        self.wait_for(
            lambda: self.devices_on(self.server) == sorted(self.back),
            'the guest\'s devices alone')
        self.assertEqual(sorted(self.back), sorted(
            assignment.address for assignment
            in self.driver('gpu1').gpu_tracker.assignments.of_instance(
                self.server['id'])))
        self.assertEqual(
            [('gpu1', address) for address in sorted(self.back)],
            sorted((row['host'], row['address']) for row in self.listing(
                'usage', 'list', '--instance', self.server['id'])
                if row['ended_at'] is None))

    def test_confirmation_of_the_older_one_keeps_the_guest_s(self) -> None:
        self.decide('confirmResize')
        self._check_guest()
        self.compare('gpu1')
        self.compare('gpu2')
        self._check_guest()
        self.act('os-stop')
        self.wait_status(self.server['id'], 'SHUTOFF')
        self.act('os-start')
        self.wait_status(self.server['id'], 'ACTIVE')
        self._check_guest()
        # Two servers want all that is left there.
        other = self.boot(self.flavor(L40S=2), host='gpu1')
        self.assertFalse(set(self.back) & set(self.hostdevs(other)))
        self.delete(self.server, other)
        for host in self.machines:
            self.wait_states(host, 'L40S', available=4)
