# SPDX-License-Identifier: Apache-2.0
"""GPUs near the memory of guests that have a NUMA topology."""

from __future__ import annotations

import typing

from nova import context as nova_context
from nova import objects as nova_objects

from tests.fixtures import libvirt_cloud

OUR_FILTERS = ('ComputeFilter', 'GpuNUMATopologyFilter', 'GpuFilter')


class GpuNUMACloud(libvirt_cloud.GpuLibvirtCloud):
    """Hosts with two GPUs on each of two NUMA nodes of one socket."""

    machines: typing.ClassVar = {'gpu1': 'pcie-l40s-4'}
    variants: typing.ClassVar = (
        ('L40S', '--vendor', '10de', '--device', '26b9'),)

    def setUp(self) -> None:
        super().setUp()
        self.restart_scheduler(*OUR_FILTERS)

    def numa_flavor(self, gpus: int, policy: str | None = None,
                    memory_mb: int = 64, **extra_specs: str) -> str:
        """Create a flavor of guests with one NUMA node.

        :param policy: value of ``gpgpu:numa_policy``
        """
        specs = {'hw:numa_nodes': '1', **{
            key.replace('__', ':'): value
            for key, value in extra_specs.items()}}
        if gpus:
            specs['resources:CUSTOM_GPU_L40S'] = str(gpus)
        if policy:
            specs['gpgpu:numa_policy'] = policy
        return str(self._create_flavor(
            vcpu=1, memory_mb=memory_mb, disk=1, ephemeral=0,
            extra_spec=specs))

    def take_node(self, node: int, host: str = 'gpu1') -> None:
        """Claim all GPUs of a NUMA node."""
        if node == 0:
            self.claim_directly(host, 2, 'L40S')
            return
        claim = self.claim_directly(host, 2, 'L40S')
        self.claim_directly(host, 2, 'L40S')
        self.abandon(claim)

    def gpu_nodes(self, server: dict[str, typing.Any]) -> set[int]:
        """Return the NUMA nodes of a server's GPUs."""
        return {device['numa_node'] for device in self.devices(
            '--used-by', server['id'])}

    def guest_nodes(self, server: dict[str, typing.Any]) -> set[int]:
        """Return the host's NUMA nodes of a server, as Nova recorded them."""
        instance = nova_objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), server['id'],
            expected_attrs=['numa_topology'])
        return {cell.id for cell in instance.numa_topology.cells}

    def used_memory(self, host: str = 'gpu1') -> dict[int, int]:
        """Return the MB that guests use by NUMA node, as Nova recorded it."""
        node = nova_objects.ComputeNode.get_by_host_and_nodename(
            nova_context.get_admin_context(), host, host)
        topology = nova_objects.NUMATopology.obj_from_db_obj(
            node.numa_topology)
        return {cell.id: cell.memory_usage for cell in topology.cells}


class NUMAPolicyTest(GpuNUMACloud):

    def test_required_guest_is_moved_to_the_node_that_has_free_gpus(
            self) -> None:
        self.take_node(0)
        server = self.boot(self.numa_flavor(2, 'required'))
        self.assertEqual(({1}, {1}), (
            self.gpu_nodes(server), self.guest_nodes(server)))
        self.assertEqual({0: 0, 1: 64}, self.used_memory())
        # Nova computes it anew from its instances.
        self.run_periodics('gpu1')
        self.assertEqual({0: 0, 1: 64}, self.used_memory())
        self.delete(server)
        self.assertEqual({0: 0, 1: 0}, self.used_memory())

    def test_gpus_of_a_node_without_cpus_are_near_to_the_nearest(
            self) -> None:
        root = self.sysfs('gpu1')
        for file in root.glob('bus/pci/devices/*/numa_node'):
            if file.read_text() == '1\n':
                file.write_text('2\n')
        nodes = {'has_cpu': '0-1', 'online': '0-2',
                 'node2/distance': '21 11 10'}
        for name, text in nodes.items():
            file = root / 'devices/system/node' / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f'{text}\n')
        self.restart_compute()
        self.take_node(0)
        server = self.boot(self.numa_flavor(2, 'required'))
        self.assertEqual(({1}, {1}), (
            self.gpu_nodes(server), self.guest_nodes(server)))

    def test_required_guest_is_moved_to_node_0_as_well(self) -> None:
        self.take_node(1)
        server = self.boot(self.numa_flavor(2, 'required'))
        self.assertEqual(({0}, {0}), (
            self.gpu_nodes(server), self.guest_nodes(server)))

    def test_preferred_guest_is_moved_to_the_node_that_has_free_gpus(
            self) -> None:
        self.take_node(0)
        server = self.boot(self.numa_flavor(2))
        self.assertEqual(({1}, {1}), (
            self.gpu_nodes(server), self.guest_nodes(server)))

    def test_preferred_guest_gets_far_gpus_if_there_are_no_others(
            self) -> None:
        server = self.boot(self.numa_flavor(3))
        self.assertEqual({0, 1}, self.gpu_nodes(server))
        self.assertEqual(1, len(self.guest_nodes(server)))

    def test_required_guests_use_the_node_that_others_left(self) -> None:
        taken = self.boot(self.flavor(L40S=2))
        free = {0, 1} - self.gpu_nodes(taken)
        flavor = self.numa_flavor(1, 'required')
        for _ in range(2):
            server = self.boot(flavor)
            self.assertEqual((free, free), (
                self.gpu_nodes(server), self.guest_nodes(server)))
        self.boot(flavor, 'ERROR')

    def test_guest_with_pinned_cpus_is_moved_with_its_cpus(self) -> None:
        self.flags(cpu_dedicated_set='0-7', group='compute')
        self.restart_compute()
        self.take_node(0)
        server = self.boot(self.numa_flavor(
            1, 'required', hw__cpu_policy='dedicated'))
        self.assertEqual({1}, self.guest_nodes(server))
        self.delete(server)
        self.assertEqual({0: 0, 1: 0}, self.used_memory())


class PCINUMAPolicyTest(GpuNUMACloud):
    """Three GPUs are never on one node, but always on one socket."""

    def test_policy_of_nova_in_the_flavor_is_obeyed(self) -> None:
        for policy, status in (('required', 'ERROR'), ('legacy', 'ERROR'),
                               ('socket', 'ACTIVE'),
                               ('preferred', 'ACTIVE')):
            server = self.boot(self.numa_flavor(
                3, hw__pci_numa_affinity_policy=policy), status)
            self.delete(server)
            self.wait_states(variant='L40S', available=4)
            self.wait_offered()

    def test_policy_of_nova_in_the_image_is_obeyed(self) -> None:
        image = self.glance.create(None, {
            'name': 'near', 'disk_format': 'raw', 'container_format': 'bare',
            'status': 'active', 'min_ram': 0, 'min_disk': 0, 'size': 1,
            'properties': {'hw_pci_numa_affinity_policy': 'required'}})
        self.boot(self.numa_flavor(3, 'none'), 'ERROR', imageRef=image['id'])
        self.wait_states(variant='L40S', available=4)
        self.wait_offered()
        self.take_node(0)
        server = self.boot(self.numa_flavor(2), imageRef=image['id'])
        self.assertEqual(({1}, {1}), (
            self.gpu_nodes(server), self.guest_nodes(server)))

    def test_policy_of_nova_past_the_filters_is_enforced_by_the_claim(
            self) -> None:
        self.restart_scheduler('ComputeFilter', 'NUMATopologyFilter')
        for policy, status in (('required', 'ERROR'), ('socket', 'ACTIVE')):
            self.boot(self.numa_flavor(
                3, hw__pci_numa_affinity_policy=policy), status)
        self.assertIn('numa_policy_required', self.stdlog.logger.output)
