# SPDX-License-Identifier: Apache-2.0
"""Deletes of a server with devices on two hosts, without a message to one."""

from __future__ import annotations

import fixtures

from tests.functional import test_moves


class InterruptedMoveTest(test_moves.MovesCase):
    """Nova deletes a server between the source's and the destination's part.

    Its migration stays unfinished in Nova's database, and no host receives a
    message of a conductor.
    """

    def setUp(self) -> None:
        super().setUp()
        for target in (
                'nova.compute.rpcapi.ComputeAPI.finish_resize',
                'gpgpu_plugin.rpc.compute_api.ComputeAPI'
                '.assignments_changed'):
            self.useFixture(fixtures.MonkeyPatch(
                target, lambda *args, **kwargs: None))
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.compute.leftovers.UNEXPECTED_PATIENCE', 0))
        self.act('migrate')
        self.wait_for(self._is_left_to_destination, 'the source\'s part')
        self.assertEqual(
            {('gpu1', 'instance'), ('gpu2', 'destination')}, self.roles())

    def _is_left_to_destination(self) -> bool:
        server = self.api.get_server(self.server['id'])
        return (server['OS-EXT-SRV-ATTR:host'],
                server['OS-EXT-STS:task_state']) == ('gpu2', 'resize_migrated')

    def _wait_roles(self, *expected: tuple[str, str]) -> None:
        self.wait_for(lambda: self.roles() == set(expected),
                      f'assignments {expected}')

    def test_source_without_a_message_finds_the_delete(self) -> None:
        self.delete(self.server)
        self._wait_roles(('gpu1', 'instance'))
        self.run_periodics('gpu1')
        self._wait_roles()

    def test_both_hosts_find_a_delete_without_nova_compute(self) -> None:
        self.computes['gpu2'].stop()
        [service] = self.api.get_services(
            binary='nova-compute', host='gpu2')
        self.api.put_service_force_down(service['id'], True)
        # nova-api deletes it by itself.
        self.delete(self.server)
        self.run_periodics('gpu1')
        self._wait_roles(('gpu2', 'destination'))
        self._start_compute('gpu2')
        self._wait_roles()
