#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
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
