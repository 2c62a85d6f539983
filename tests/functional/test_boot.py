# SPDX-License-Identifier: Apache-2.0
"""Boot and delete of servers with GPUs, and requests that do not fit."""

from __future__ import annotations

import typing

from gpgpu_plugin.domain import naming
from tests.fixtures import cloud


class BootTest(cloud.GpuCloud):
    """One HGX server with eight H100."""

    def test_boot_and_delete_with_one_to_eight_gpus(self) -> None:
        for count in (1, 2, 4, 8):
            server = self.boot(self.flavor(H100=count))

            self.assertEqual(count, len(self.devices_of(server)))
            self.wait_states(**{state: devices for state, devices in (
                ('assigned', count), ('available', 8 - count)) if devices})
            self.assertEqual(count, self.usage())
            self.wait_inventory(8, 0)

            self.delete(server)
            self.wait_states(available=8)
            self.assertEqual(0, self.usage())
            self.wait_inventory(8, 0)

    def test_four_servers_get_different_gpus(self) -> None:
        flavor = self.flavor(H100=2)
        servers = [self.boot(flavor) for _ in range(4)]
        assigned = [self.devices_of(server) for server in servers]
        self.assertEqual([2] * 4, [len(gpus) for gpus in assigned])
        self.assertEqual(8, len(set.union(*assigned)))

    def test_four_gpus_of_a_server_are_on_one_numa_node(self) -> None:
        server = self.boot(self.flavor(H100=4))
        nodes = {device['numa_node'] for device in self.devices(
            '--used-by', server['id'])}
        self.assertEqual(1, len(nodes), nodes)

    def test_server_without_gpus_gets_none(self) -> None:
        gpu = self.boot(self.flavor(H100=8))
        plain = self.boot(self.flavor_of({}))
        self.assertEqual(set(), self.devices_of(plain))
        self.assertEqual(8, len(self.devices_of(gpu)))
        self.delete(gpu)
        self.wait_states(available=8)
        self.assertEqual(
            'ACTIVE', self.api.get_server(plain['id'])['status'])
        self.delete(plain)

    def test_request_for_more_than_available_finds_no_host(self) -> None:
        first = self.boot(self.flavor(H100=7))
        second = self.boot(self.flavor(H100=2), 'ERROR')
        self.assertIn('No valid host', second['fault']['message'])
        self.assertEqual(set(), self.devices_of(second))
        # Why is in the conductor's counts: Placement had no candidate, so no
        # filter ran.
        group, = self.listing('group', 'list', '--host', 'gpu1')
        self.assertEqual((8, 1), (group['total'], group['remaining']))
        self.delete(second, first)
        self.wait_inventory(8, 0)
        self.boot(self.flavor(H100=8))

    def test_deleted_gpus_are_offered_without_a_periodic_run(self) -> None:
        flavor = self.flavor(H100=8)
        server = self.boot(flavor)
        self.delete(server)
        # Neither Nova's periodic run nor ours comes within a test's time.
        self.wait_inventory(8, 0)
        self.wait_states(available=8)
        self.wait_offered()
        self.assertEqual(8, len(self.devices_of(self.boot(flavor))))

    def test_image_with_trait_boots_with_gpu_flavor(self) -> None:
        image = self.glance.create(None, {
            'name': 'gpu', 'disk_format': 'raw', 'container_format': 'bare',
            'status': 'active', 'min_ram': 0, 'min_disk': 0, 'size': 1,
            'visibility': 'public',
            'properties': {'trait:CUSTOM_GPU': 'required'}})
        flavor = self.flavor(H100=1)
        self.assertEqual(
            1, len(self.devices_of(self.boot(flavor, imageRef=image['id']))))

    def test_image_with_trait_of_another_gpu_finds_no_host(self) -> None:
        image = self.glance.create(None, {
            'name': 'amd', 'disk_format': 'raw', 'container_format': 'bare',
            'status': 'active', 'min_ram': 0, 'min_disk': 0, 'size': 1,
            'visibility': 'public',
            'properties': {'trait:CUSTOM_GPU_MI300X': 'required'}})
        self._create_trait('CUSTOM_GPU_MI300X')
        server = self.boot(
            self.flavor(H100=1), 'ERROR', imageRef=image['id'])
        self.assertIn('No valid host', server['fault']['message'])
        self.wait_states(available=8)


class ImageOfWholeGPUTest(cloud.GpuCloud):
    """A variant of whole GPUs and one of vGPUs, told apart by traits."""

    machines: typing.ClassVar[dict[str, str]] = {
        'gpu1': 'nvidia-t4-2', 'gpu2': 'hgx-h100-8'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('H100', *cloud.HGX_H100, '--trait', 'CUSTOM_GPU_WHOLE'),
        ('T4', '--vendor', '10de', '--device', '1eb8',
         '--trait', 'CUSTOM_GPU_SHARED'))

    def image(self, trait: str) -> str:
        return str(self.glance.create(None, {
            'name': trait, 'disk_format': 'raw', 'container_format': 'bare',
            'status': 'active', 'min_ram': 0, 'min_disk': 0, 'size': 1,
            'visibility': 'public',
            'properties': {f'trait:{trait}': 'required'}})['id'])

    def test_image_boots_with_its_kind_of_gpu_alone(self) -> None:
        self.manage('vgpu-type', 'enable', 'T4', 'T4-4Q')
        self.manage('vgpu-type', 'disable', 'T4', 'passthrough')
        vgpu = naming.resource_class('T4', 'T4-4Q')
        self.wait_for(lambda: self.unallocated('gpu1').get('4Q') == 8,
                      'vGPUs in Placement')
        flavors = {'CUSTOM_GPU_WHOLE': self.flavor(H100=1),
                   'CUSTOM_GPU_SHARED': self.flavor_of(
                       {f'resources:{vgpu}': '1'})}
        for trait in flavors:
            image = self.image(trait)
            for kind, flavor in flavors.items():
                self.boot(flavor, 'ACTIVE' if kind == trait else 'ERROR',
                          imageRef=image)


class TwoHostsTest(cloud.GpuCloud):
    """Hosts that the scheduler chooses from."""

    machines = {'gpu1': 'hgx-h100-8', 'gpu2': 'hgx-h100-8'}

    def test_two_full_servers_fill_both_hosts(self) -> None:
        flavor = self.flavor(H100=8)
        hosts = {self.boot(flavor)['OS-EXT-SRV-ATTR:host'] for _ in range(2)}
        self.assertEqual({'gpu1', 'gpu2'}, hosts)
        self.boot(flavor, 'ERROR')
