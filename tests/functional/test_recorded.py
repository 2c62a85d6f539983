# SPDX-License-Identifier: Apache-2.0
"""A recorded machine as a host of the fake cloud."""

from __future__ import annotations

from tests.fixtures import cloud


class RecordedTest(cloud.GpuCloud):
    """Four displays, two on each NUMA node, and mbochs with mdevs."""

    machines = {'gpu1': 'recorded-qemu-lab'}
    variants = (('BOCHS', '--vendor', '1234', '--device', '1111'),)

    def _on_vfio(self) -> set[str]:
        return {f'gpu1 {address}' for address, driver
                in self.bound_drivers('gpu1').items() if driver == 'vfio-pci'}

    def test_whole_gpus_of_a_recording_are_assigned(self) -> None:
        before = self.bound_drivers('gpu1')
        server = self.boot(self.flavor(BOCHS=3))
        assigned = self.devices_of(server)
        self.assertEqual(3, len(assigned))
        self.assertEqual(assigned, self._on_vfio())
        self.boot(self.flavor(BOCHS=2), 'ERROR')
        self.delete(server)
        self.wait_for(lambda: self.bound_drivers('gpu1') == before,
                      'drivers as they were')
