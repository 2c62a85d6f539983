# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs that get VFs before they were cleaned."""

from __future__ import annotations

import typing

from gpgpu_plugin.host.fake import kernel as fake_kernel
from tests.fixtures import cloud
from tests.fixtures import cloud_views


class WholeCardTest(cloud.GpuCloud):
    """One server with two GPUs that may have VFs."""

    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'intel-flex170-2'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('FLEX', '--vendor', '8086', '--device', '56c0'),)

    def set_vfs(self, address: str, count: int) -> None:
        """Make VFs of a GPU, or remove them, as an operator does."""
        fake_kernel.FakeKernel(str(self.sysfs('gpu1'))).set_vfs(address, count)
        self.run_once('gpu1')

    def vfs(self) -> list[dict[str, typing.Any]]:
        """Return the devices of the host that are not its two GPUs."""
        return [device for device in self.devices('--host', 'gpu1')
                if device['uuid'] not in self.gpus]

    def setUp(self) -> None:
        super().setUp()
        self.gpus = {device['uuid'] for device in self.devices()}

    def quarantine_used(self) -> dict[str, typing.Any]:
        """Have the cleaning of a used GPU fail, and return it."""
        server = self.boot(self.flavor(FLEX=1))
        [gpu] = self.devices('--used-by', server['id'])
        kernel = self.driver().gpu_tracker.backend.kernel
        kernel.faults[f'{gpu["address"]}/reset'] = 5
        self.delete(server)
        self.wait_states(variant='FLEX', quarantined=1, available=1)
        kernel.faults.clear()
        return gpu

    def wait_cleaned(self, gpu: dict[str, typing.Any]) -> None:
        """Wait until a cleaning of the GPU has passed."""
        self.wait_for(lambda: 'clean_passed' in [
            event['kind'] for event in self.listing(
                'event', 'list', '--device', gpu['uuid'])], 'the cleaning')

    def test_nova_compute_makes_vfs_of_clean_gpus_only(self) -> None:
        gpu = self.quarantine_used()
        self.flags(sriov_numvfs=['8086:56c0=4'], group='gpgpu_compute')
        self.restart_compute()
        self.wait_for(lambda: [vf['shown_state'] for vf in self.vfs()] == [
            'available'] * 4, 'the VFs of the other GPU')
        self.run_once('gpu1')
        self.assertEqual('0\n', self.sysfs('gpu1').joinpath(
            'bus/pci/devices', gpu['address'], 'sriov_numvfs').read_text())

        self.manage('device', 'release', gpu['uuid'])
        self.wait_cleaned(gpu)
        self.run_once('gpu1')
        self.wait_for(lambda: [vf['shown_state'] for vf in self.vfs()] == [
            'available'] * 8, 'the VFs of both GPUs')

    def test_vfs_wait_until_the_whole_gpu_was_cleaned(self) -> None:
        gpu = self.quarantine_used()
        self.set_vfs(gpu['address'], 4)
        self.assertEqual(
            ['quarantined'] * 4, [vf['shown_state'] for vf in self.vfs()])
        self.assertIn('cleaning failed', self.listing(
            'device', 'show', self.vfs()[0]['uuid'])['reason'])
        self.boot(self.flavor(FLEX=2), 'ERROR')

        # What an operator accepts is not clean yet.
        self.manage('device', 'release', gpu['uuid'])
        for _ in range(2):
            self.run_once('gpu1')
            self.assertEqual(['dirty'] * 5, [
                device['shown_state'] for device in (
                    self.listing('device', 'show', gpu['uuid']), *self.vfs())])
        wanted = f'remove the VFs of {gpu["address"]} on host gpu1'
        self.assertIn(wanted, self.listing(
            'device', 'show', gpu['uuid'])['reason'])
        refused = self.assertRaises(
            cloud_views.CommandFailed, self.manage, 'device', 'release',
            gpu['uuid'])
        self.assertIn(wanted, str(refused))
        self.assertEqual((2, 1), self.inventory(variant='FLEX'))
        self.boot(self.flavor(FLEX=2), 'ERROR')

        self.set_vfs(gpu['address'], 0)
        self.wait_cleaned(gpu)
        # The VFs that were there are cleaned once they are there again.
        self.set_vfs(gpu['address'], 4)
        self.wait_for(lambda: {vf['shown_state'] for vf in self.vfs()} == {
            'available'}, 'clean VFs')
        self.set_vfs(gpu['address'], 0)
        self.wait_for(lambda: self.inventory(variant='FLEX') == (2, 0),
                      'both GPUs in Placement')
        self.boot(self.flavor(FLEX=2))
