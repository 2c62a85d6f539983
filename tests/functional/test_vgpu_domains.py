# SPDX-License-Identifier: Apache-2.0
"""vGPUs in libvirt's domains."""

from __future__ import annotations

import typing

import fixtures
from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.fixtures import cloud
from tests.fixtures import libvirt_cloud
from tests.fixtures import reboot
from tests.fixtures import vgpu_cloud
from tests.functional import test_vgpus


class VGPULibvirtCloud(test_vgpus.VGPUViews, libvirt_cloud.GpuLibvirtCloud):
    """Hosts whose guests outlive nova-compute, but not the host."""

    def reboot_host(self, bus_step: int) -> None:
        """Reboot a host: no domain runs afterwards, and no vGPU exists.

        :param bus_step: step between the numbers of its buses
        """
        self.computes['gpu1'].stop()
        reboot.reboot(self.sysfs('gpu1'), self.machines['gpu1'], bus_step)
        for domain in self.connections['gpu1']._vms.values():
            domain.destroy()
        self._start_compute('gpu1')


class LibvirtTest(VGPULibvirtCloud):
    """mdevs in domains."""

    machines = {'gpu1': 'nvidia-t4-2', 'gpu2': 'nvidia-t4-2'}
    variants = test_vgpus.T4

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(libvirt_cloud.Moves())
        for name in ('T4-1Q', 'T4-4Q'):
            self.manage('vgpu-type', 'enable', 'T4', name)
        for host in self.machines:
            self.wait_for(lambda host=host: self.unallocated(host) == {  # type: ignore[misc]
                'T4': 2, '1Q': 32, '4Q': 8}, 'types in Placement')

    def attached(self, server: dict[str, typing.Any],
                 host: str = 'gpu1') -> list[str]:
        """Return the UUIDs of the mdevs in a server's domain, in order."""
        return vgpu_cloud.mdevs_of(
            self.connections[host].lookupByUUIDString(server['id']))

    def nothing_is_left(self) -> None:
        for host in self.machines:
            self.wait_for(lambda host=host: self.unallocated(host) == {  # type: ignore[misc]
                'T4': 2, '1Q': 32, '4Q': 8}, f'{host}: all of it back')
            self.assertEqual(set(), self.mdevs(host))

    def test_domain_has_mdevs_and_a_whole_gpu(self) -> None:
        server = self.boot(self.vgpu_flavor(Q4=2, whole=1))
        self.assertEqual(self.mdevs(), set(self.attached(server)))
        self.assertEqual((2, 1), (len(self.attached(server)),
                                  len(self.hostdevs(server))))
        self.delete(server)
        self.nothing_is_left()

    def test_hard_reboot_keeps_mdevs(self) -> None:
        server = self.boot(self.vgpu_flavor(Q4=2))
        before = self.attached(server)
        self.api.post_server_action(
            server['id'], {'reboot': {'type': 'HARD'}})
        self.wait_status(server['id'], 'ACTIVE')
        self.assertEqual(before, self.attached(server))
        for action, status in (('os-stop', 'SHUTOFF'),
                               ('os-start', 'ACTIVE')):
            self.api.post_server_action(server['id'], {action: None})
            self.wait_status(server['id'], status)
        self.assertEqual(before, self.attached(server))

    def test_first_mdev_is_the_display(self) -> None:
        specs = {'resources:CUSTOM_VGPU_T4_T4_4Q': '2',
                 'gpgpu:display': 'on'}
        # The stand-in for libvirt keeps no attribute that it does not know.
        defined: list[str] = []
        original = fakelibvirt.Connection.defineXML

        def define(this: typing.Any, xml: str) -> typing.Any:
            defined.append(xml)
            return original(this, xml)
        with fixtures.MonkeyPatch(
                'nova.tests.fixtures.libvirt.Connection.defineXML', define):
            server = self.boot(self.flavor_of(specs))
        self.assertEqual(['on', None], [
            element.get('display') for element in etree.fromstring(
                defined[-1]).findall('./devices/hostdev')])
        refused = self.boot(self.flavor_of(
            {'resources:CUSTOM_GPU_T4': '1', 'gpgpu:display': 'on'}),
            'ERROR')
        self.assertIn("none of the instance's GPUs is an mdev",
                      self.stdlog.logger.output)
        self.delete(server, refused)
        self.nothing_is_left()

    def test_suspend_is_refused(self) -> None:
        server = self.boot(self.vgpu_flavor(Q4=1))
        self.api.post_server_action(server['id'], {'suspend': {}})
        self.wait_status(server['id'], 'ACTIVE')
        self.assertEqual(1, len(self.attached(server)))

    def test_resize_between_types_leaves_one_set(self) -> None:
        server = self.boot(self.vgpu_flavor(Q4=1))
        for action in ('revertResize', 'confirmResize'):
            self.api.post_server_action(server['id'], {'resize': {
                'flavorRef': self.vgpu_flavor(Q1=2)}})
            there = self.wait_status(server['id'], 'VERIFY_RESIZE')
            host = there['OS-EXT-SRV-ATTR:host']
            self.assertEqual(self.mdevs(host), set(
                self.attached(server, host)) | (
                    self.mdevs(host) if host == 'gpu1' else set()))
            self.assertEqual(2, len(self.attached(server, host)))
            self.api.post_server_action(server['id'], {action: None})
            there = self.wait_status(server['id'], 'ACTIVE')
            host = there['OS-EXT-SRV-ATTR:host']
            wanted = 1 if action == 'revertResize' else 2
            self.assertEqual(wanted, len(self.attached(server, host)))
        self.wait_for(lambda: sum(len(self.mdevs(host)) for host in
                                  self.machines) == 2, 'the old side gone')
        self.delete(server)
        self.nothing_is_left()

    def test_resize_between_types_on_one_host_leaves_one_set(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.computes['gpu2'].stop()
        server = self.boot(self.vgpu_flavor(Q4=2), host='gpu1')
        before = self.attached(server)
        for action in ('revertResize', 'confirmResize'):
            self.api.post_server_action(server['id'], {'resize': {
                'flavorRef': self.vgpu_flavor(Q1=1)}})
            self.wait_status(server['id'], 'VERIFY_RESIZE')
            # The old and the new set are assigned, each on a GPU of its own.
            self.assertEqual(3, len(self.mdevs()))
            [new] = self.attached(server)
            self.assertNotIn(new, before)
            self.api.post_server_action(server['id'], {action: None})
            self.wait_status(server['id'], 'ACTIVE')
            left = [new] if action == 'confirmResize' else before
            self.wait_for(lambda left=left: self.mdevs() == set(left),  # type: ignore[misc]
                          'the other side gone')
            self.assertEqual(left, self.attached(server))
        self._start_compute('gpu2')
        self.delete(server)
        self.nothing_is_left()

    def test_unshelved_server_gets_new_mdevs(self) -> None:
        server = self.boot(self.vgpu_flavor(Q4=1))
        before = self.attached(server)
        self.api.post_server_action(server['id'], {'shelve': None})
        self.wait_status(server['id'], 'SHELVED_OFFLOADED')
        self.nothing_is_left()
        self.api.post_server_action(server['id'], {'unshelve': None})
        there = self.wait_status(server['id'], 'ACTIVE')
        after = self.attached(server, there['OS-EXT-SRV-ATTR:host'])
        self.assertEqual(1, len(after))
        self.assertNotEqual(before, after)
        self.delete(server)
        self.nothing_is_left()

    def test_reboot_with_new_bus_numbers_keeps_mdevs(self) -> None:
        self.flags(resume_guests_state_on_host_boot=True)
        servers = [self.boot(self.vgpu_flavor(Q4=count), host='gpu1')
                   for count in (1, 2)]
        before = [self.attached(server) for server in servers]
        self.reboot_host(bus_step=3)
        for server in servers:
            self.wait_status(server['id'], 'ACTIVE')
        self.assertEqual(before, [self.attached(server) for server in servers])
        self.assertEqual({*before[0], *before[1]}, self.mdevs())
        self.delete(*servers)
        self.nothing_is_left()

    def test_rebuild_keeps_mdevs(self) -> None:
        server = self.boot(self.vgpu_flavor(Q4=1))
        before = self.attached(server)
        self.api.post_server_action(server['id'], {'rebuild': {
            'imageRef': cloud.IMAGE}})
        self.wait_status(server['id'], 'ACTIVE')
        self.assertEqual(before, self.attached(server))
        self.delete(server)
        self.nothing_is_left()


class LibvirtVFTest(VGPULibvirtCloud):
    """VFs with types in domains."""

    machines = {'gpu1': 'nvidia-l40s-vgpu-2'}
    variants = test_vgpus.NvidiaVFCase.variants

    def _configure(self) -> None:
        super()._configure()
        self.flags(sriov_numvfs=['10de:26b9=8'], group='gpgpu_compute')

    def setUp(self) -> None:
        super().setUp()
        self.manage('vgpu-type', 'enable', 'L40S', 'L40S-12Q')
        self.wait_for(lambda: self.unallocated(variant='L40S') == {
            'L40S': 0, '12Q': 8}, 'types in Placement')

    def test_vfs_survive_reboots_and_are_freed_by_delete(self) -> None:
        self.flags(resume_guests_state_on_host_boot=True)
        server = self.boot(self.vgpu_flavor('L40S', Q12=2))
        before = self.hostdevs(server)
        self.assertEqual(self.devices_on(server), sorted(before))
        self.api.post_server_action(
            server['id'], {'reboot': {'type': 'HARD'}})
        self.wait_status(server['id'], 'ACTIVE')
        self.assertEqual(before, self.hostdevs(server))
        self.reboot_host(bus_step=3)
        self.wait_status(server['id'], 'ACTIVE')
        after = self.hostdevs(server)
        self.assertNotEqual(before, after)
        self.assertEqual(2, len(after))
        self.assertEqual({'1153'}, {
            (self.sysfs('gpu1') / 'bus/pci/devices' / address / 'nvidia'
             / 'current_vgpu_type').read_text().strip()
            for address in after})
        self.delete(server)
        self.wait_for(lambda: self.unallocated(variant='L40S') == {
            'L40S': 0, '12Q': 8}, 'all of it back')
