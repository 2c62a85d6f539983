# SPDX-License-Identifier: Apache-2.0
"""A server with GPUs of a third party's resource tracker."""

from __future__ import annotations

import typing

from tests.fixtures import cloud
from tests.fixtures import third_party


class ThirdPartyTrackerTest(cloud.GpuCloud):
    """A host with two GPUs, which gpgpu-conductor does not know."""

    machines: typing.ClassVar[dict[str, str]] = {'acme1': 'none'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = ()

    def _configure(self) -> None:
        self.useFixture(third_party.Installed(third_party.acme()))
        super()._configure()
        self.flags(resource_tracker='acme', group='gpgpu_compute')
        # GpuFilter asks gpgpu-conductor.
        self.restart_scheduler('ComputeFilter')

    def _check_ownership(self) -> None:
        """Check nothing: gpgpu-conductor assigns no GPU here."""

    def test_tracker_of_the_option_serves_servers(self) -> None:
        tracker = self.driver('acme1').gpu_tracker
        self.assertEqual('acme_gpu.tracker', type(tracker).__module__)
        flavor = self.flavor(ACME=1)
        servers = [self.boot(flavor) for _ in range(2)]
        self.assertEqual(
            {server['id'] for server in servers},
            {assignment.instance_uuid for assignment in tracker.assigned()})
        self.assertEqual(['0000:a1:00.0', '0000:a2:00.0'], tracker.prepared)
        self.assertEqual(['assigned'] * 2, [
            assignment.state for assignment in tracker.assigned()])
        refused = self.boot(flavor, 'ERROR')
        self.assertIn('No valid host', refused['fault']['message'])

        self.delete(servers[0], refused)
        [left] = tracker.assigned()
        self.assertEqual(servers[1]['id'], left.instance_uuid)
        self.boot(flavor)
