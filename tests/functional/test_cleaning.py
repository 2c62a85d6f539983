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
"""GPUs between two tenants, by Nova's API and gpgpu-manage."""

from __future__ import annotations

import typing

from tests.fixtures import cloud

SECRET = b'TENANT-A-SECRET-WEIGHTS'


class MemoryTest(cloud.GpuCloud):
    """One server with eight GPUs, whose memory no reset clears."""

    def setUp(self) -> None:
        super().setUp()
        self.vfio = self.driver().gpu_tracker.backend.kernel.vfio
        self.gpus = {row['address']: row for row in self.devices(
            '--variant', 'H100')}
        self.vfio.outlasting.update(self.gpus)

    def use(self) -> dict[str, typing.Any]:
        """Boot a server that leaves data in its GPU, and delete it.

        :returns: the GPU's row of ``device list``
        """
        server = self.boot(self.flavor(H100=1))
        [device] = self.devices('--used-by', server['id'])
        self.vfio.content(device['address'])[100:100 + len(SECRET)] = SECRET
        self.delete(server)
        return device

    def has_secret(self, device: dict[str, typing.Any]) -> bool:
        return SECRET in self.vfio.content(device['address'])

    def test_next_server_never_reads_what_the_last_one_left(self) -> None:
        device = self.use()
        self.wait_states(available=7, quarantined=1)
        self.wait_inventory(8, 1)
        shown = self.listing('device', 'show', device['uuid'])
        self.assertIn('16 of 16 marks in its memory outlasted',
                      shown['reason'])
        # All others can be used, this one cannot.
        server = self.boot(self.flavor(H100=7))
        self.assertNotIn(f'gpu1 {device["address"]}',
                         self.devices_of(server))
        self.delete(server)
        self.wait_states(quarantined=8)

        shown = self.listing('variant', 'set', 'H100', '--cleaning-policy',
                             'scrub', '--memory-mib', '2')
        self.assertEqual(('scrub', 2), (
            shown['cleaning_policy'], shown['memory_mib']))
        for row in self.devices('--state', 'quarantined'):
            self.manage('device', 'release', row['uuid'])
        self.wait_states(available=8)
        self.assertFalse(any(map(self.has_secret, self.gpus.values())))
        self.boot(self.flavor(H100=8))

    def test_reset_alone_has_to_be_chosen_by_name(self) -> None:
        self.manage('variant', 'set', 'H100', '--cleaning-policy',
                    'reset-only')
        device = self.use()
        self.wait_states(available=8)
        self.assertTrue(self.has_secret(device))
        [row] = self.listing('group', 'list')
        self.assertEqual('reset-only', row['cleaning_policy'])
        # The memory is evidence again: what had a tenant is looked at.
        self.manage('variant', 'set', 'H100', '--cleaning-policy', 'default')
        self.wait_states(available=7, quarantined=1)
