# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs in domains of libvirt, through Nova's operations."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import typing
import uuid

import fixtures
from nova import context as nova_context
from nova import objects

from gpgpu_plugin.host.fake import machine
from tests.fixtures import libvirt_cloud
from tests.fixtures import reboot

CONF = libvirt_cloud.cloud.CONF


class LibvirtCase(libvirt_cloud.GpuLibvirtCloud):
    """Base class of tests of a server with two GPUs on one HGX host."""

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.flavor(H100=2))
        self.before = self.devices_on(self.server)

    def same(self) -> None:
        """Check that the server has the devices that it had before."""
        self.assertEqual(2, len(self.before))
        self.assertEqual(self.before, self.devices_on(self.server))
        self.assertEqual(self.before, self.hostdevs(self.server))
        bound = self.bound_drivers('gpu1')
        self.assertEqual(set(self.before), {
            address for address, driver in bound.items()
            if driver == 'vfio-pci'})
        self.wait_states(assigned=2, available=6)

    def reboot_host(self, bus_step: int = 1) -> None:
        """Reboot a host: afterwards no device is bound, and no domain runs.

        :param bus_step: step between bus numbers; another value renumbers the
            buses
        """
        self.computes['gpu1'].stop()
        reboot.reboot(self.sysfs('gpu1'), 'hgx-h100-8', bus_step)
        self.connections['gpu1'].lookupByUUIDString(
            self.server['id']).destroy()
        self._start_compute('gpu1')


class LibvirtTest(LibvirtCase):
    """One HGX server."""

    def test_delete_frees_hostdevs(self) -> None:
        self.same()
        self.delete(self.server)
        self.wait_states(available=8)
        self.wait_inventory(8, 0)
        self.assertNotIn('vfio-pci', self.bound_drivers('gpu1').values())

    def test_instance_without_gpus_has_no_hostdev(self) -> None:
        server = self.boot(self.flavor_of({}))
        self.assertEqual([], self.hostdevs(server))

    def test_restart_of_nova_compute_keeps_hostdevs(self) -> None:
        self.restart_compute()
        self.run_periodics('gpu1')
        self.same()

    def test_reboot_of_the_host_keeps_devices(self) -> None:
        self.flags(resume_guests_state_on_host_boot=True)
        self.reboot_host()
        self.wait_status(self.server['id'], 'ACTIVE')
        self.same()

    def test_reboot_with_new_bus_numbers_keeps_devices(self) -> None:
        self.flags(resume_guests_state_on_host_boot=True)
        before = {device['uuid'] for device in self.devices(
            '--used-by', self.server['id'])}
        self.reboot_host(bus_step=2)
        self.wait_status(self.server['id'], 'ACTIVE')
        self.assertEqual(before, {device['uuid'] for device in self.devices(
            '--used-by', self.server['id'])})
        old, self.before = self.before, self.devices_on(self.server)
        self.assertNotEqual(old, self.before)
        self.same()

class CompanionTest(libvirt_cloud.GpuLibvirtCloud):
    """A GPU with a sound function of its own."""

    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'old-two-card'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('K4000', '--vendor', '10de', '--device', '11fa'),)

    def _configure(self) -> None:
        super()._configure()
        folder = pathlib.Path(self.state_path) / 'machines/gpu1'
        machine.build(machine.load('old-two-card'), folder)
        # Another display is the one that it booted with.
        for attribute in folder.glob('bus/pci/devices/*/boot_vga'):
            attribute.write_text('0\n')

    def test_gpu_is_assigned_with_its_companion(self) -> None:
        server = self.boot(self.flavor(K4000=1))
        [gpu] = self.devices_on(server)
        card = [gpu, f'{gpu[:-1]}1']
        for _ in range(2):
            self.assertEqual(card, self.hostdevs(server))
            bound = self.bound_drivers('gpu1')
            self.assertEqual(set(card), {
                address for address, driver in bound.items()
                if driver == 'vfio-pci'})
            self.api.post_server_action(server['id'], {
                'reboot': {'type': 'HARD'}})
            self.wait_status(server['id'], 'ACTIVE')
        self.delete(server)
        self.wait_states(variant='K4000', available=1)
        self.assertNotIn('vfio-pci', self.bound_drivers('gpu1').values())

    def test_gpu_that_shares_its_iommu_group_is_unmanaged(self) -> None:
        root = self.sysfs('gpu1') / 'bus/pci/devices'
        gpu = self.devices('--variant', 'K4000')[0]['address']
        other = next(folder for folder in root.iterdir()
                     if (folder / 'device').read_text() == '0x102d\n')
        group = (root / gpu / 'iommu_group').resolve()
        (other / 'iommu_group/devices' / other.name).unlink()
        (other / 'iommu_group').unlink()
        (other / 'iommu_group').symlink_to(group)
        (group / 'devices' / other.name).symlink_to(other.resolve())
        self.restart_compute()
        [shown] = [device for device in self.devices()
                   if device['address'] == gpu]
        self.assertEqual('unmanaged', shown['shown_state'])
        reason = self.listing('device', 'show', shown['uuid'])['reason']
        self.assertIn(f'also contains {other.name}', reason)
        self.boot(self.flavor(K4000=1), 'ERROR')


class ConflictTest(libvirt_cloud.GpuLibvirtCloud):
    """Nova's own PCI passthrough beside the plugin."""

    def _start_with(self, **spec: str) -> None:
        self.computes['gpu1'].stop()
        self.flags(device_spec=[json.dumps(spec)], group='pci')
        self._start_compute('gpu1')

    def _check_ended(self, *words: str) -> None:
        """Check that the log has one line that has words."""
        line = [line for line in self.stdlog.logger.output.splitlines()
                if 'nova-compute cannot start: ' in line][-1]
        for word in words:
            self.assertIn(word, line)

    def test_device_spec_of_a_managed_gpu_stops_nova_compute(self) -> None:
        address = next(device['address'] for device in self.devices(
            '--variant', 'H100'))
        for spec in ({'vendor_id': '10de', 'product_id': '2330'},
                     {'vendor_id': '10de'}):
            self.assertRaises(SystemExit, self._start_with, **spec)
            self._check_ended('[pci] device_spec', address, 'H100')

    def test_mdev_types_of_a_managed_gpu_stop_nova_compute(self) -> None:
        address = next(device['address'] for device in self.devices(
            '--variant', 'H100'))
        folder = self.sysfs('gpu1') / 'bus/pci/devices' / address
        (folder / 'mdev_supported_types/nvidia-35').mkdir(parents=True)
        self.computes['gpu1'].stop()
        self.flags(enabled_mdev_types=['nvidia-35'], group='devices')
        self.assertRaises(SystemExit, self._start_compute, 'gpu1')
        self._check_ended('enabled_mdev_types = nvidia-35', address, 'H100')
        # Of other devices they are Nova's business.
        self.flags(device_addresses=['0000:ff:00.0'], group='mdev_nvidia-35')
        self._start_compute('gpu1')

    def test_later_variant_does_not_take_devices_of_nova(self) -> None:
        first = self.devices('--variant', 'H100')[0]['uuid']
        self.manage('variant', 'delete', 'H100')
        self._start_with(vendor_id='10de', product_id='2330')
        self.manage('variant', 'create', *self.variants[0])
        self.assertEqual([], self.devices('--variant', 'H100'))
        self.assertIn('managed by Nova ([pci] device_spec)', self.listing(
            'device', 'show', first)['reason'])
        self.boot(self.flavor(H100=1), 'ERROR')

    def test_device_spec_of_another_device_is_accepted(self) -> None:
        self._start_with(vendor_id='8086', product_id='1572')
        self.boot(self.flavor(H100=8))


class CyborgTest(libvirt_cloud.GpuLibvirtCloud):
    """GPUs of the same host that Cyborg manages."""

    def setUp(self) -> None:
        super().setUp()
        first = min(device['address'] for device in self.devices(
            '--variant', 'H100'))
        self.first = first
        self.cyborg = str(uuid.uuid4())
        self.placement.post('/resource_providers', {
            'uuid': self.cyborg, 'name': f'gpu1_{first}',
            'parent_provider_uuid': self._get_provider_uuid_by_host('gpu1'),
        }, version='1.39')
        self._set_provider_traits(self.cyborg, ['OWNER_CYBORG'])

    def _shown(self) -> dict[str, typing.Any]:
        [found] = [device for device in self.devices()
                   if device['address'] == self.first]
        return dict(self.listing('device', 'show', found['uuid']))

    def test_gpus_of_cyborg_are_unmanaged(self) -> None:
        # Nova learns of a provider that is not its own when it starts.
        self.restart_compute()
        self.run_periodics('gpu1')
        self.wait_for(
            lambda: self._shown()['shown_state'] == 'unmanaged', 'unmanaged')
        self.assertIn(f'provider gpu1_{self.first} in Placement has '
                      'OWNER_CYBORG', self._shown()['reason'])
        self.run_periodics('gpu1')
        self.wait_inventory(7, 0)
        server = self.boot(self.flavor(H100=7))
        self.assertNotIn(self.first, self.hostdevs(server))
        self.delete(server)
        self.wait_states(available=7)

    def test_iteration_beside_cyborg_makes_no_report(self) -> None:
        self.restart_compute()
        for _ in range(2):
            self.run_periodics('gpu1')
        tracker = self.driver().gpu_tracker
        with fixtures.MockPatchObject(
                tracker.api, 'report', side_effect=AssertionError) as report:
            self.run_periodics('gpu1')
        report.mock.assert_not_called()


class NUMAPolicyTest(libvirt_cloud.GpuLibvirtCloud):
    """Guests with memory on one NUMA node; Nova takes the emptier one."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(packing_host_numa_cells_allocation_strategy=False,
                   group='compute')
        self.restart_scheduler(
            'ComputeFilter', 'NUMATopologyFilter', 'GpuFilter')

    def _flavor(self, count: int, policy: str, **specs: str) -> str:
        return self.flavor_of({
            'resources:CUSTOM_GPU_H100': str(count),
            'gpgpu:numa_policy': policy, **specs})

    def _nodes(self, server: dict[str, typing.Any]) -> tuple[
            set[int], set[int | None]]:
        """Return the NUMA nodes of the guest's memory, and of its GPUs."""
        instance = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), server['id'],
            expected_attrs=['numa_topology'])
        cells = {cell.id for cell in instance.numa_topology.cells}
        return cells, {
            self.listing('device', 'show', device['uuid'])['numa_node']
            for device in self.devices('--used-by', server['id'])}

    def test_gpus_are_near_the_memory_of_the_guest(self) -> None:
        numa = {'hw:numa_nodes': '1'}
        seen = set()
        for policy in ('preferred', 'required'):
            server = self.boot(self._flavor(2, policy, **numa))
            memory, gpus = self._nodes(server)
            self.assertEqual(memory, gpus)
            seen |= memory
        self.assertEqual({0, 1}, seen)
        # Two are left on each node: no node has three.
        self.boot(self._flavor(3, 'required', **numa), 'ERROR')
        self.boot(self._flavor(3, 'preferred', **numa))

    def test_resize_places_gpus_near_the_memory(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.useFixture(libvirt_cloud.Moves())
        numa = {'hw:numa_nodes': '1'}
        server = self.boot(self._flavor(1, 'required', **numa))
        before, _ = self._nodes(server)
        self.api.post_server_action(server['id'], {'resize': {
            'flavorRef': self._flavor(2, 'required', **numa)}})
        self.wait_status(server['id'], 'VERIFY_RESIZE')
        self.api.post_server_action(server['id'], {'confirmResize': None})
        self.wait_status(server['id'], 'ACTIVE')
        self.wait_states(assigned=2, available=6)
        memory, gpus = self._nodes(server)
        self.assertEqual(memory, gpus)
        self.assertNotEqual(before, memory)

    def test_guest_without_numa_topology_is_refused(self) -> None:
        self.boot(self._flavor(1, 'preferred'))
        self.boot(self._flavor(1, 'required'), 'ERROR')
        self.assertIn('numa_policy_required', self.stdlog.logger.output)
        # A forced host meets no filter: the claim refuses.
        self.boot(self._flavor(1, 'required'), 'ERROR',
                  availability_zone='nova:gpu1')
        self.assertEqual(1, self.states()['assigned'])


class NumberedRootTest(libvirt_cloud.GpuLibvirtCloud):
    """A root bus that the firmware numbers only, and GPUs without numbers."""

    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'old-two-card'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('K80', '--vendor', '10de', '--device', '102d'),)
    cleaned_before = False

    def test_cards_below_a_renumbered_root_are_cleaned_like_new_ones(
            self) -> None:
        self.wait_states(variant='K80', available=2)
        self.wait_inventory(2, 0, variant='K80')
        server = self.boot(self.flavor(K80=1))
        before = self.devices_of(server)
        known = {device['uuid'] for device in self.devices()}
        self.computes['gpu1'].stop()
        card = machine.load('old-two-card')
        with fixtures.MockPatchObject(
                machine, 'load', lambda _name: dataclasses.replace(
                    card, roots=({**card.roots[0], 'bus': '0000:40'},))):
            reboot.reboot(self.sysfs('gpu1'), card.name)
        # It is another machine by its GPUs, until somebody vouches.
        self.manage('host', 'takeover', 'gpu1')
        self._start_compute('gpu1')
        self.wait_for(lambda: len(self._new(known, 'available')) == 2,
                      'the GPUs in their new places to be available')
        # One of them is the card that the server had.
        for device in self._new(known, 'available'):
            self.assertEqual(['passed'], [
                record['verdict'] for record in self.listing(
                    'device', 'cleanings', device['uuid'])])
        self.assertEqual(before, self.devices_of(server))
        self.wait_offered()
        others = self.boot(self.flavor(K80=2))
        self.assertEqual(
            {device['uuid'] for device in self._new(known, 'assigned')},
            {device['uuid'] for device in self.devices(
                '--used-by', others['id'])})

    def _new(self, known: set[str], state: str) -> list[dict[str, typing.Any]]:
        """Return the GPUs in a state that were not known."""
        return [device for device in self.devices(
                    '--variant', 'K80', '--state', state)
                if device['uuid'] not in known]
