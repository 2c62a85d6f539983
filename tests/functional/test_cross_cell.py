# SPDX-License-Identifier: Apache-2.0
"""Resize to a host in another cell of Nova."""

from __future__ import annotations

import typing
from unittest import mock

from nova.policies import base as base_policies
from nova.policies import servers as servers_policies

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.rpc import conductor_client
from tests.fixtures import cloud

CELLS = {'gpu1': 'cell1', 'gpu2': 'cell2'}


class CrossCellTest(cloud.GpuCloud):
    """A server with two GPUs on the host of the first of two cells."""

    NUMBER_OF_CELLS = 2
    machines: typing.ClassVar[dict[str, str]] = {
        'gpu1': 'pcie-l40s-4', 'gpu2': 'pcie-l40s-4'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('L40S', '--vendor', '10de', '--device', '26b9'),)

    def setUp(self) -> None:
        super().setUp()
        self.policy.set_rules({
            servers_policies.CROSS_CELL_RESIZE:
                base_policies.RULE_ADMIN_API}, overwrite=False)
        self.server = self.boot(self.flavor(L40S=2))
        self.assertEqual({('gpu1', 'instance', 2)}, self.assigned())

    def _start_compute(self, host: str, cell_name: str | None = None,
                       ) -> typing.Any:
        return super()._start_compute(host, cell_name or CELLS[host])

    def assigned(self) -> set[tuple[str, str, int]]:
        """Return the hosts and roles of the server's GPUs, with numbers."""
        api = conductor_client.ConductorAPI(cloud.CONF)
        found = [(assignment.host, str(assignment.role))
                 for assignment in api.instance_assignments(
                     gpgpu_context.admin(), self.server['id'])]
        return {(*key, found.count(key)) for key in found}

    def act(self, action: str, body: object, status: str, host: str) -> None:
        self.api.post_server_action(self.server['id'], {action: body})
        server = self.wait_status(self.server['id'], status, 'ERROR')
        self.assertEqual((status, host), (
            server['status'], server['OS-EXT-SRV-ATTR:host']),
            server.get('fault'))

    def compare(self) -> None:
        """Compare the assignments of both hosts with their cells."""
        for host in self.machines:
            self.driver(host).gpu_tracker.request_reconcile()
            self.run_once(host)

    def resize(self) -> None:
        self.act('resize', {'flavorRef': self.flavor(L40S=3)},
                 'VERIFY_RESIZE', 'gpu2')
        self.compare()
        self.assertEqual({('gpu1', 'instance', 2), ('gpu2', 'destination', 3)},
                         self.assigned())

    def test_resize_across_cells_is_reverted_then_confirmed(self) -> None:
        self.resize()
        self.act('revertResize', None, 'ACTIVE', 'gpu1')
        self.assertEqual({('gpu1', 'instance', 2)}, self.assigned())
        self.wait_states('gpu2', 'L40S', available=4)
        self.wait_offered('gpu2')
        self.resize()
        self.act('confirmResize', None, 'ACTIVE', 'gpu2')
        self.assertEqual({('gpu2', 'instance', 3)}, self.assigned())
        self.wait_states('gpu1', 'L40S', available=4)
        self.compare()
        self.act('reboot', {'type': 'HARD'}, 'ACTIVE', 'gpu2')
        self.assertEqual({('gpu2', 'instance', 3)}, self.assigned())
        self.delete(self.server)
        self.wait_states('gpu2', 'L40S', available=4)

    def test_source_is_free_after_a_confirmation_that_failed(self) -> None:
        self.resize()
        with mock.patch.object(self.driver('gpu1'), 'cleanup',
                               side_effect=RuntimeError('x')):
            self.api.post_server_action(
                self.server['id'], {'confirmResize': None})
            self.wait_status(self.server['id'], 'ERROR')
        self.compare()
        self.assertEqual({('gpu2', 'destination', 3)}, self.assigned())
        # Nova keeps its record of the instance in the first cell for ever.
        self.delete(self.server)
        for host in self.machines:
            self.wait_states(host, 'L40S', available=4)

    def test_resize_denied_by_the_other_cell_leaves_guest(self) -> None:
        self.restart_scheduler('ComputeFilter')
        claim = self.claim_directly('gpu2', 2, 'L40S')
        self.api.post_server_action(self.server['id'], {
            'resize': {'flavorRef': self.flavor(L40S=3)}})
        self.wait_migration('error')
        self.assertIn('not_enough_available', self.stdlog.logger.output)
        self.abandon(claim)
        self.compare()
        self.assertEqual({('gpu1', 'instance', 2)}, self.assigned())
        self.assertEqual([self.server['id']],
                         self.driver('gpu1').list_instance_uuids())
        # Nova fails while it resets the task, whatever the reason was.
        self.act('os-resetState', {'state': 'active'}, 'ACTIVE', 'gpu1')
        self.delete(self.server)
        self.wait_states('gpu1', 'L40S', available=4)
