# SPDX-License-Identifier: Apache-2.0
"""vGPUs through Nova's REST API: types, capacity and domains."""

from __future__ import annotations

import json
import os
import typing

import fixtures

from gpgpu_plugin.domain import naming
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import vgpu_driver
from tests.fixtures import cloud


class VGPUViews:
    """Mixin for a cloud of hosts with vGPUs."""

    sysfs: typing.Any
    listing: typing.Any
    flavor_of: typing.Any
    available: typing.Any

    def vgpu_flavor(self, variant: str = 'T4', **counts: int) -> str:
        """Create a flavor: ``Q4=2`` is two T4-4Q, ``whole=1`` a whole GPU."""
        return str(self.flavor_of({
            'resources:' + naming.resource_class(
                variant, naming.PASSTHROUGH if name == 'whole'
                else f'{variant}-{name[1:]}Q'): str(count)
            for name, count in counts.items()}))

    def remaining(self, *filters: str) -> dict[str, int]:
        """Return the remaining capacity of each enabled type."""
        return {row['vgpu_type']: row['remaining_capacity']
                for row in self.listing(
                    'vgpu-type', 'list', '--enabled', *filters)}

    def properties(self, variant: str, name: str) -> tuple[int | None, ...]:
        """Return memory, heads and resolution, which is in the driver's text.

        None: the driver does not say.
        """
        [row] = self.listing('vgpu-type', 'list', '--variant', variant,
                             '--type', name, '--long')
        return tuple(row[key] for key in (
            'video_ram', 'max_heads', 'max_resolution_x',
            'max_resolution_y'))

    def mdevs(self, host: str = 'gpu1') -> set[str]:
        """Return the UUIDs of the mdevs of a host."""
        path = self.sysfs(host) / 'bus/mdev/devices'
        return set(os.listdir(path)) if path.is_dir() else set()


T4 = (('T4', '--vendor', '10de', '--device', '1eb8'),)


class MdevCase(VGPUViews, cloud.GpuCloud):
    """Base class of tests of one server with two T4."""

    machines = {'gpu1': 'nvidia-t4-2'}
    variants = T4

    def setUp(self) -> None:
        super().setUp()
        for name in ('T4-1Q', 'T4-4Q'):
            self.manage('vgpu-type', 'enable', 'T4', name)
        self.wait_for(lambda: self.unallocated() == {
            'T4': 2, '1Q': 32, '4Q': 8}, 'types in Placement')


class MdevTest(MdevCase):
    """vGPUs that are mdevs."""

    def test_servers_with_two_types_use_different_gpus(self) -> None:
        small = self.boot(self.vgpu_flavor(Q1=2))
        large = self.boot(self.vgpu_flavor(Q4=1))
        self.assertEqual({'passthrough': 0, 'T4-1Q': 14, 'T4-4Q': 3},
                         self.remaining())
        self.wait_for(lambda: self.unallocated() == {
            'T4': 0, '1Q': 14, '4Q': 3}, 'capacity in Placement')
        self.assertEqual(3, len(self.mdevs()))
        self.assertEqual((4096, 4, 7680, 4320),
                         self.properties('T4', 'T4-4Q'))
        self.assertEqual(
            [('T4-1Q', 2), ('T4-4Q', 1), ('passthrough', 0)],
            sorted((row['vgpu_type'], row['assigned']) for row in
                   self.listing('vgpu-type', 'list', '--enabled',
                                '--cloud')))
        self.delete(small, large)
        self.wait_for(lambda: self.unallocated() == {
            'T4': 2, '1Q': 32, '4Q': 8}, 'all of it back')
        self.assertEqual(set(), self.mdevs())

    def test_two_types_of_one_flavor_share_a_gpu(self) -> None:
        for path in self.sysfs('gpu1').glob(
                f'bus/pci/devices/*/{vgpu_driver.RULE}'):
            vgpu_driver.set_rule(path.parent, {
                **json.loads(path.read_text()), 'mix_policy': 'any_mix'})
        self.manage('variant', 'set', 'T4', '--mix-policy', 'any_mix')
        server = self.boot(self.vgpu_flavor(Q1=2, Q4=1))
        self.assertEqual(3, len(self.mdevs()))
        self.assertEqual({'passthrough': 1, 'T4-1Q': 26, 'T4-4Q': 6},
                         self.remaining())
        self.delete(server)
        self.wait_for(lambda: self.unallocated() == {
            'T4': 2, '1Q': 32, '4Q': 8}, 'all of it back')

    def test_whole_gpu_and_vgpus_of_one_flavor(self) -> None:
        server = self.boot(self.vgpu_flavor(whole=1, Q4=4))
        self.assertEqual(4, len(self.mdevs()))
        self.assertEqual({'passthrough': 0, 'T4-1Q': 0, 'T4-4Q': 0},
                         self.remaining())
        self.delete(server)
        self.wait_for(lambda: self.unallocated() == {
            'T4': 2, '1Q': 32, '4Q': 8}, 'all of it back')
        # The GPU is its driver's again, so that it can have vGPUs.
        server = self.boot(self.vgpu_flavor(Q1=32))
        self.assertEqual(32, len(self.mdevs()))

    def test_types_that_exclude_each_other_are_denied(self) -> None:
        first = self.boot(self.vgpu_flavor(Q1=1))
        # Either type fits, but both only on the same GPU.
        log = self.useFixture(fixtures.FakeLogger())
        second = self.boot(self.vgpu_flavor(whole=1, Q4=1), 'ERROR')
        self.assertIn('on gpu1 denied: type_conflict (each type fits '
                      'alone, but not all of them together', log.output)
        self.delete(second)
        third = self.boot(self.vgpu_flavor(Q4=1))
        fourth = self.boot(self.vgpu_flavor(whole=1), 'ERROR')
        self.assertIn('No valid host', fourth['fault']['message'])
        self.delete(first, third, fourth)
        self.wait_for(lambda: self.unallocated() == {
            'T4': 2, '1Q': 32, '4Q': 8}, 'all of it back')

    def test_hard_reboot_creates_lost_mdevs_again(self) -> None:
        server = self.boot(self.vgpu_flavor(Q4=2))
        mdevs = self.mdevs()
        kernel = self.driver().gpu_tracker.backend.kernel
        for mdev in mdevs:
            kernel.write(f'bus/mdev/devices/{mdev}/remove', '1')
        # The GPU's driver is loaded anew, and comes after a first try.
        bus = self.sysfs('gpu1') / 'class/mdev_bus'
        bus.rename(bus.with_name('hidden'))
        reboot = {'reboot': {'type': 'HARD'}}
        self.api.post_server_action(server['id'], reboot)
        # Nova leaves a guest that runs as it is.
        self.wait_for(lambda: 'Reboot failed but instance is running'
                      in self.stdlog.logger.output, 'a reboot that failed')
        self.wait_status(server['id'], 'ACTIVE')
        bus.with_name('hidden').rename(bus)
        self.api.post_server_action(server['id'], reboot)
        self.wait_for(lambda: self.mdevs() == mdevs, 'the same mdevs')
        self.wait_status(server['id'], 'ACTIVE')
        self.delete(server)

    def test_vgpus_are_restored_after_reboot_of_the_host(self) -> None:
        self.boot(self.vgpu_flavor(Q4=2))
        before = self.mdevs()
        kernel = fake_kernel.FakeKernel(str(self.sysfs('gpu1')))
        for uuid in before:
            kernel.write(f'bus/mdev/devices/{uuid}/remove', '1')
        self.restart_compute()
        self.assertEqual(before, self.mdevs())
        self.assertEqual(6, self.remaining()['T4-4Q'])

    def test_next_server_gets_a_new_mdev(self) -> None:
        server = self.boot(self.vgpu_flavor(Q4=1))
        before = self.mdevs()
        self.delete(server)
        self.wait_for(lambda: not self.mdevs(), 'removed')
        again = self.boot(self.vgpu_flavor(Q4=1))
        self.assertEqual(1, len(self.mdevs() - before))
        self.delete(again)

    def test_disabled_type_is_not_offered(self) -> None:
        server = self.boot(self.vgpu_flavor(Q4=1))
        self.manage('vgpu-type', 'disable', 'T4', 'T4-4Q')
        self.wait_for(lambda: self.unallocated()['4Q'] == 0,
                      'nothing offered')
        refused = self.boot(self.vgpu_flavor(Q4=1), 'ERROR')
        self.assertIn('No valid host', refused['fault']['message'])
        self.delete(server, refused)
        self.manage('vgpu-type', 'enable', 'T4', 'T4-4Q')
        self.wait_for(lambda: self.unallocated()['4Q'] == 8,
                      'offered again')

    def test_breadth_first_flavor_uses_both_gpus(self) -> None:
        name = naming.resource_class('T4', 'T4-4Q')
        flavor = self.flavor_of({
            f'resources:{name}': '1',
            'gpgpu:allocation_policy': 'breadth_first'})
        self.boot(flavor)
        self.boot(flavor)
        self.assertEqual({'passthrough': 0, 'T4-1Q': 0, 'T4-4Q': 6},
                         self.remaining())


class NvidiaVFCase(VGPUViews, cloud.GpuCloud):
    """Base class of tests of two L40S, whose VFs have types."""

    machines = {'gpu1': 'nvidia-l40s-vgpu-2'}
    variants = (('L40S', '--vendor', '10de', '--device', '26b9'),)

    def _configure(self) -> None:
        super()._configure()
        self.flags(sriov_numvfs=['10DE:26B9=8'], group='gpgpu_compute')

    def setUp(self) -> None:
        super().setUp()
        for name in ('L40S-4Q', 'L40S-12Q'):
            self.manage('vgpu-type', 'enable', 'L40S', name)
        self.wait_for(lambda: self.unallocated(variant='L40S') == {
            'L40S': 0, '4Q': 24, '12Q': 8}, 'types in Placement')

    def typed(self) -> list[str]:
        """Return the types that VFs have."""
        return sorted(
            text for path in self.sysfs('gpu1').glob(
                'bus/pci/devices/*/nvidia/current_vgpu_type')
            if (text := path.read_text().strip()) != '0')


class NvidiaVFTest(NvidiaVFCase):
    """vGPUs that are VFs with types."""

    def test_types_of_vfs_are_set_and_cleared(self) -> None:
        self.assertEqual((12288, None, None, None),
                         self.properties('L40S', 'L40S-12Q'))
        server = self.boot(self.vgpu_flavor('L40S', Q12=3))
        self.assertEqual(['1153'] * 3, self.typed())
        other = self.boot(self.vgpu_flavor('L40S', Q4=2))
        self.assertEqual(['1150'] * 2 + ['1153'] * 3, self.typed())
        self.assertEqual(
            {'passthrough': 0, 'L40S-4Q': 10, 'L40S-12Q': 1},
            self.remaining())
        self.delete(server, other)
        self.wait_for(lambda: self.unallocated(variant='L40S') == {
            'L40S': 0, '4Q': 24, '12Q': 8}, 'all of it back')
        self.assertEqual([], self.typed())

    def test_types_of_one_size_share_a_gpu(self) -> None:
        self.manage('variant', 'set', 'L40S', '--mix-policy', 'equal_size')
        self.manage('vgpu-type', 'enable', 'L40S', 'L40S-12A')
        self.wait_for(lambda: self.unallocated(variant='L40S') == {
            'L40S': 0, '4Q': 24, '12Q': 8, '12A': 8}, 'types in Placement')
        server = self.boot(self.flavor_of({
            'resources:CUSTOM_VGPU_L40S_L40S_12Q': '1',
            'resources:CUSTOM_VGPU_L40S_L40S_12A': '2'}))
        self.assertEqual(['1153'] + ['1163'] * 2, self.typed())
        self.assertEqual(
            {'passthrough': 0, 'L40S-4Q': 12, 'L40S-12Q': 5, 'L40S-12A': 5},
            self.remaining())
        self.delete(server)
        self.wait_for(lambda: self.unallocated(variant='L40S') == {
            'L40S': 0, '4Q': 24, '12Q': 8, '12A': 8}, 'all of it back')

    def kernel(self) -> fake_kernel.FakeKernel:
        return fake_kernel.FakeKernel(str(self.sysfs('gpu1')))

    def pfs(self) -> list[str]:
        """Return the addresses of the PFs."""
        return [path.parent.name for path in self.sysfs('gpu1').glob(
            'bus/pci/devices/*/sriov_numvfs')]

    def lose_vfs(self) -> None:
        """Remove all VFs, as a reboot of the host does."""
        for address in self.pfs():
            self.kernel().set_vfs(address, 0)
        self.assertEqual([], self.typed())

    def placements(self) -> list[tuple[str, str]]:
        """Return the types and placements of the VFs that have a type."""
        return sorted(
            (text, (path.parent / 'placement_id').read_text().strip())
            for path in self.sysfs('gpu1').glob(
                'bus/pci/devices/*/nvidia/current_vgpu_type')
            if (text := path.read_text().strip()) != '0')

    def test_mixed_sizes_have_the_calculated_placements(self) -> None:
        for address in self.pfs():
            self.kernel().enable_mixed_size(address)
        self.manage('vgpu-type', 'enable', 'L40S', 'L40S-24Q')
        self.manage('variant', 'set', 'L40S', '--mix-policy', 'mixed_size')
        # A GPU has eight placements for 4Q, not twelve.
        self.wait_for(lambda: self.unallocated(variant='L40S') == {
            'L40S': 0, '4Q': 16, '12Q': 8, '24Q': 4}, 'types in Placement')
        self.boot(self.vgpu_flavor('L40S', Q4=1))
        self.boot(self.vgpu_flavor('L40S', Q12=1))
        # Both are on one GPU, of which a half remains.
        placements = [('1150', '20'), ('1153', '0')]
        self.assertEqual(placements, self.placements())
        self.wait_for(lambda: self.unallocated(variant='L40S') == {
            'L40S': 0, '4Q': 13, '12Q': 6, '24Q': 3}, 'capacity')
        self.lose_vfs()
        self.restart_compute()
        self.assertEqual(placements, self.placements())
        # What is promised is made.
        self.boot(self.vgpu_flavor('L40S', Q24=3))
        self.assertEqual(
            [*placements, *[('1155', '0'), ('1155', '24'), ('1155', '24')]],
            self.placements())
        self.assertEqual([], self.devices('--state', 'quarantined'))

    def test_power_on_sets_lost_types_again(self) -> None:
        server = self.boot(self.vgpu_flavor('L40S', Q12=1))
        self.api.post_server_action(server['id'], {'os-stop': None})
        self.wait_status(server['id'], 'SHUTOFF')
        for path in self.sysfs('gpu1').glob(
                'bus/pci/devices/*/nvidia/current_vgpu_type'):
            path.write_text('0\n')
        self.api.post_server_action(server['id'], {'os-start': None})
        self.wait_status(server['id'], 'ACTIVE')
        self.assertEqual(['1153'], self.typed())

    def test_vgpus_are_restored_after_reboot_of_the_host(self) -> None:
        self.boot(self.vgpu_flavor('L40S', Q12=2))
        self.lose_vfs()
        self.restart_compute()
        self.assertEqual(['1153'] * 2, self.typed())
        self.wait_for(lambda: self.remaining() == {
            'passthrough': 0, 'L40S-4Q': 12, 'L40S-12Q': 6}, 'capacity')


class MdevOnVFTest(VGPUViews, cloud.GpuCloud):
    """One server with two A100, whose VFs take one mdev each."""

    machines = {'gpu1': 'nvidia-a100-2'}
    variants = (('A100', '--vendor', '10de', '--device', '20b5'),)

    def _configure(self) -> None:
        super()._configure()
        self.flags(sriov_numvfs=['10de:20b5=6'], group='gpgpu_compute')

    def test_delete_frees_vgpus(self) -> None:
        for name in ('A100D-4C', 'A100D-20C'):
            self.manage('vgpu-type', 'enable', 'A100', name)
        expected = {'A100': 0, '4C': 40, '20C': 8}
        self.wait_for(
            lambda: self.unallocated(variant='A100') == expected, 'types')
        self.assertEqual((20480, 1, 4096, 2160),
                         self.properties('A100', 'A100D-20C'))
        server = self.boot(self.flavor_of(
            {'resources:CUSTOM_VGPU_A100_A100D_20C': '3'}))
        self.assertEqual(3, len(self.mdevs()))
        self.wait_for(lambda: self.unallocated(variant='A100') == {
            'A100': 0, '4C': 20, '20C': 5}, 'capacity')
        self.restart_compute()
        self.assertEqual(3, len(self.mdevs()))
        self.delete(server)
        self.wait_for(lambda: self.unallocated(variant='A100') == expected,
                      'all of it back')
        self.assertEqual(set(), self.mdevs())


class PlainVFTest(VGPUViews, cloud.GpuCloud):
    """VFs without types."""

    machines = {'gpu1': 'intel-flex170-2'}
    variants = (('FLEX', '--vendor', '8086', '--device', '56c0'),)

    def _configure(self) -> None:
        super()._configure()
        self.flags(sriov_numvfs=['8086:56c0=4'], group='gpgpu_compute')

    def test_delete_frees_vgpus(self) -> None:
        self.manage('vgpu-type', 'enable', 'FLEX', 'vf4')
        expected = {'FLEX': 0, 'VF4': 8}
        self.wait_for(
            lambda: self.unallocated(variant='FLEX') == expected, 'VFs')
        server = self.boot(self.flavor_of(
            {'resources:CUSTOM_VGPU_FLEX_VF4': '3'}))
        assigned = self.devices('--used-by', server['id'])
        self.assertEqual({'vf4'}, {device['vgpu_type'] for device in assigned})
        drivers = self.bound_drivers('gpu1')
        self.assertEqual({'vfio-pci'},
                         {drivers[device['address']] for device in assigned})
        self.delete(server)
        self.wait_for(
            lambda: self.unallocated(variant='FLEX') == expected,
            'all of it back')
