# SPDX-License-Identifier: Apache-2.0
"""A compute host from which the plugin is removed, as admin/day2 has it."""

from __future__ import annotations

import typing

from nova import context as nova_context
from nova import exception as nova_exception

from tests.fixtures import cloud


class UninstallTest(cloud.GpuCloud):
    """One HGX server that Nova's own driver takes over."""

    def update(self, compute: typing.Any) -> None:
        """Run Nova's periodic update; it raises if Placement refuses."""
        with nova_context.target_cell(
                nova_context.get_admin_context(),
                self.cell_mappings['cell1']) as target:
            compute.manager.rt.update_available_resource(target, 'gpu1')

    def stop(self) -> None:
        compute = self.computes.pop('gpu1')
        compute.manager.driver.gpu_tracker.stop()
        compute.stop()

    def start(self) -> typing.Any:
        """Start nova-compute without the plugin."""
        self.flags(compute_driver='fake.FakeDriverWithoutFakeNodes')
        compute = self.start_service('compute', host='gpu1')
        self.update(compute)
        return compute

    def delete_provider(self, path: str) -> None:
        self.assertEqual(
            204, self.placement.delete(path, version='1.39').status)

    def test_host_takes_instances_after_its_providers_are_deleted(
            self) -> None:
        path = f'/resource_providers/{self.provider("gpu1", "H100")}'
        self.stop()
        self.delete_provider(path)
        self.update(self.start())
        self.boot(self.flavor_of({}))
        self.assertEqual(404, self.placement.get(path, version='1.39').status)

    def test_update_fails_if_they_are_deleted_while_it_runs(self) -> None:
        path = f'/resource_providers/{self.provider("gpu1", "H100")}'
        self.stop()
        compute = self.start()
        self.delete_provider(path)
        self.assertRaises(
            nova_exception.ResourceProviderAllocationRetrievalFailed,
            self.update, compute)
