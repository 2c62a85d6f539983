# SPDX-License-Identifier: Apache-2.0
"""Moves whose claim the destination denies: alternate hosts, or no move."""

from __future__ import annotations

import typing

from tests.functional import test_moves


class DeniedMoveTest(test_moves.MovesCase):
    """Moves from the first host; Nova prefers the second to the third."""

    machines: typing.ClassVar[dict[str, str]] = {
        'gpu1': 'pcie-l40s-4', 'gpu2': 'pcie-l40s-4', 'gpu3': 'pcie-l40s-4'}

    def setUp(self) -> None:
        super().setUp()
        # Nova does not know who claims GPUs without an allocation.
        self.restart_scheduler('ComputeFilter')

    def _deny(self, *hosts: str) -> None:
        for host in hosts:
            claim = self.claim_directly(host, 4, 'L40S')
            self.addCleanup(self.abandon, claim)

    def _moves_to_third_host(self, count: int) -> None:
        new = self.moved('gpu3')
        self.assertEqual(count, len(new))
        self.assertEqual(
            {('gpu1', 'instance'), ('gpu3', 'destination')}, self.roles())
        self.assertEqual(self.gpus, self.hostdevs(self.server))
        self.assertEqual([], self.devices_on(self.server, 'gpu2'))
        self.decide('confirmResize')
        self.wait_for(lambda: self.roles() == {('gpu3', 'instance')},
                      'devices of the third host alone')
        self.assertEqual(new, self.hostdevs(self.server, 'gpu3'))

    def test_resize_denied_by_first_destination_goes_to_the_next(
            self) -> None:
        self._deny('gpu2')
        self.resize(self.flavor(L40S=3))
        self._moves_to_third_host(3)

    def test_cold_migration_denied_by_first_destination_goes_to_the_next(
            self) -> None:
        self._deny('gpu2')
        self.act('migrate')
        self._moves_to_third_host(2)

    def test_resize_denied_by_all_hosts_leaves_server_as_it_was(self) -> None:
        claims = [self.claim_directly(host, 1, 'L40S')
                  for host in ('gpu2', 'gpu3')]
        before = self.gpus
        self.resize(self.flavor(L40S=4))
        self.wait_migration('error')
        server = self.wait_status(self.server['id'], 'ACTIVE', 'ERROR')
        self.assertEqual(('ACTIVE', 'gpu1'), (
            server['status'], server['OS-EXT-SRV-ATTR:host']))
        self.assertEqual(before, self.hostdevs(self.server))
        self.assertEqual({('gpu1', 'instance')}, self.roles())
        for claim in claims:
            self.abandon(claim)
        self.done()

    def test_migration_to_a_named_host_that_denies_it_leaves_server(
            self) -> None:
        claim = self.claim_directly('gpu2', 4, 'L40S')
        self.act('migrate', {'host': 'gpu2'})
        self.wait_migration('error')
        self.wait_status(self.server['id'], 'ACTIVE')
        self.abandon(claim)
        self.done()
