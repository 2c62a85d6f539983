# SPDX-License-Identifier: Apache-2.0
"""Services that stop and start while instances run."""

from __future__ import annotations

from tests.fixtures import cloud


class RestartTest(cloud.GpuCloud):
    """One HGX server with a running instance."""

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.flavor(H100=2))

    def test_nova_compute_restart_changes_nothing(self) -> None:
        devices = self.devices('--host', 'gpu1')
        bound = self.bound_drivers('gpu1')
        self.restart_compute('gpu1')
        self.run_periodics('gpu1')
        self.assertEqual(devices, self.devices('--host', 'gpu1'))
        self.assertEqual(bound, self.bound_drivers('gpu1'))
        self.assertEqual(2, self.usage())
        self.assertEqual((8, 0), self.inventory())
        self.delete(self.server)
        self.wait_states(available=8)
        self.wait_inventory(8, 0)

    def test_guest_lost_without_nova_compute_keeps_its_assignment(
            self) -> None:
        # The assignment stays until Nova ends it.
        assigned = self.devices_of(self.server)
        self.restart_compute('gpu1')
        self.assertEqual(assigned, self.devices_of(self.server))

    def test_conductor_restart_changes_nothing(self) -> None:
        devices = self.devices('--host', 'gpu1')
        self.conductor.stop()
        self.conductor.start()
        self.run_periodics('gpu1')
        self.assertEqual(devices, self.devices('--host', 'gpu1'))
        self.boot(self.flavor(H100=6))


class ConductorDownTest(cloud.GpuCloud):
    """One HGX server; gpgpu-conductor goes away and comes back."""

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.flavor(H100=2))
        self.plain_flavor = self.flavor_of({})
        self.gpu_flavor = self.flavor(H100=1)

    def test_filter_names_the_reason_to_refuse_a_boot(self) -> None:
        self.conductor.stop()
        server = self.boot(self.gpu_flavor, 'ERROR')
        self.assertIn('No valid host', server['fault']['message'])
        self.assertIn('conductor_unavailable', self.stdlog.logger.output)
        self.wait_for(lambda: self.usage() == 2, 'usage as before')
        self.boot(self.plain_flavor)

        self.conductor.start()
        self.assertEqual(1, len(self.devices_of(self.boot(self.gpu_flavor))))

    def test_build_names_the_reason_of_a_refused_claim(self) -> None:
        self.restart_scheduler('ComputeFilter')
        self.conductor.stop()
        self.boot(self.gpu_flavor, 'ERROR')
        self.assertIn('No gpgpu-conductor answered',
                      self.stdlog.logger.output)
        self.wait_for(lambda: self.usage() == 2, 'usage as before')
        self.conductor.start()
        self.boot(self.gpu_flavor)

    def test_release_is_sent_later(self) -> None:
        self.conductor.stop()
        self.delete(self.server)
        self.conductor.start()
        self.run_periodics('gpu1')
        self.wait_states(available=8)
        self.wait_offered()
        self.boot(self.flavor(H100=8))

    def test_release_survives_a_restart_of_nova_compute(self) -> None:
        self.conductor.stop()
        self.delete(self.server)
        self.restart_compute('gpu1')
        self.boot(self.plain_flavor)
        self.conductor.start()
        self.run_periodics('gpu1')
        self.wait_states(available=8)
        self.wait_inventory(8, 0)

    def test_nova_compute_without_conductor_reserves_all_gpus(self) -> None:
        self.conductor.stop()
        self.restart_compute('gpu1')
        total, reserved = self.inventory()
        self.assertEqual(total, reserved)
        self.conductor.start()
        self.run_periodics('gpu1')
        self.wait_inventory(8, 0)
