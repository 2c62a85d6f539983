# SPDX-License-Identifier: Apache-2.0
"""``host delete`` while nova-compute runs, and after it ended."""

from __future__ import annotations

import fixtures

from tests.fixtures import cloud
from tests.fixtures import cloud_views


class HostDeleteTest(cloud.GpuCloud):
    """One HGX server with eight H100."""

    def _works(self) -> None:
        """Check that the host offers GPUs and boots servers."""
        self.wait_for(lambda: self.listing('host', 'list'), 'reported anew')
        self.wait_states(available=8)
        self.wait_inventory(8, 0)
        device = self.devices('--host', 'gpu1', '--variant', 'H100')[0]
        self.manage('hold', 'add', device['uuid'], '--kind', 'disabled')
        self.wait_inventory(8, 1)
        self.boot(self.flavor(H100=8), 'ERROR')
        server = self.boot(self.flavor(H100=7))
        self.assertNotIn(f'gpu1 {device["address"]}', self.devices_of(server))
        self.delete(server)
        self.manage('hold', 'remove', device['uuid'], '--kind', 'disabled')
        self.wait_states(available=8)
        self.wait_inventory(8, 0)

    def test_delete_while_nova_compute_runs_is_refused(self) -> None:
        # A busy machine answers late.
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.compute_api.PING_TIMEOUT', 60))
        refused = self.assertRaises(
            cloud_views.CommandFailed, self.manage, 'host', 'delete', 'gpu1')
        self.assertIn('its nova-compute is running', str(refused))
        self.wait_states(available=8)
        self.assertEqual((8, 0), self.inventory())

    def test_host_deleted_by_force_reports_again_and_works(self) -> None:
        for _ in range(2):
            self.manage('host', 'delete', 'gpu1', '--force')
            self._works()

    def test_draining_host_deleted_by_force_reports_again_draining(
            self) -> None:
        self.manage('host', 'drain', 'gpu1')
        self.wait_inventory(8, 8)
        self.manage('host', 'delete', 'gpu1', '--force')
        self.wait_for(lambda: self.listing('host', 'list'), 'reported anew')
        self.wait_states(available=8)
        self.wait_inventory(8, 8)
        self.boot(self.flavor(H100=1), 'ERROR')
        self.manage('host', 'undrain', 'gpu1')
        self.wait_inventory(8, 0)
        self.delete(self.boot(self.flavor(H100=8)))

    def test_host_deleted_after_nova_compute_ended_works_again(self) -> None:
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.compute_api.PING_TIMEOUT', 1))
        self.computes['gpu1'].stop()
        self.manage('host', 'delete', 'gpu1')
        self.assertEqual([], self.listing('host', 'list'))
        self.restart_compute('gpu1')
        self._works()
