# SPDX-License-Identifier: Apache-2.0
"""The installed nova-compute with our driver over a real libvirtd.

Guests are real (QEMU without KVM). There is no IOMMU here, so the GPUs are a
fake machine's, and in no domain; that is proven by tox -e vfio-lab.
"""

from __future__ import annotations

import typing

from tests.fixtures import services
from tests.functional_libvirt import libvirtd
from tests.functional_process import cloud
from tests.functional_process import stack

COMPUTE_CONF = stack.COMPUTE_CONF + """
[DEFAULT]
compute_driver = gpgpu.GpuLibvirtFakeDriver
allow_resize_to_same_host = true
use_cow_images = false
# Nothing runs in the guests that would shut them down.
shutdown_timeout = 1
[libvirt]
virt_type = qemu
cpu_mode = none
connection_uri = qemu:///system
hw_machine_type = x86_64=q35
[vnc]
enabled = false
[nova_sys_admin]
helper_command = {bin}/privsep-helper --config-file {state}/{host}.conf
"""


def libvirt_of(case: typing.Any) -> typing.Any:
    """Return a connection to libvirt.

    Without one the test is skipped, or fails if GPGPU_REQUIRE_SERVICES is set.
    """
    found = case.useFixture(libvirtd.Libvirtd())
    if found.unavailable is not None:
        services.missing(case, found.unavailable)
    return found.connection


class LibvirtProcessTest(cloud.ProcessCloud):

    def setUp(self) -> None:
        self.libvirt = None
        super().setUp()
        self.libvirt = libvirt_of(self)
        # QEMU runs as another user.
        for folder in (self.stack.state, self.stack.state.parent):
            folder.chmod(0o711)
        (self.stack.state / 'gpu1/instances').mkdir(parents=True)
        self.start_compute('gpu1', COMPUTE_CONF)
        self.manage('variant', 'create', 'H100', *stack.HGX_H100)
        self.wait_for_inventory('H100', 8)
        # Before the processes end.
        self.addCleanup(self._end_guests)

    def _end_guests(self) -> None:
        # Of this test: they are on its own disks.
        for domain in self.libvirt.listAllDomains():
            if str(self.stack.state) in domain.XMLDesc():
                if domain.isActive():
                    domain.destroy()
                domain.undefine()

    def _domain_id(self, server: str) -> int:
        """Return the id of the running domain; each start changes it."""
        return int(self.libvirt.lookupByUUIDString(server).ID())

    def _assigned(self, server: str) -> set[str]:
        return {device['Address'] for device in self.devices(
            '--used-by', server)}

    def _available(self, count: int) -> None:
        self.wait_for(lambda: len(self.devices(
            '--state', 'available', '--host', 'gpu1')) == count,
            f'{count} available')

    def test_server_keeps_gpus_until_it_is_deleted(self) -> None:
        small, large = (self.flavor(f'gpu{count}', **{
            'resources:CUSTOM_GPU_H100': str(count)}) for count in (2, 4))
        server = self.boot(small)
        running, assigned = self._domain_id(server), self._assigned(server)
        self.assertEqual(2, len(assigned))
        print(f'domain of {server} runs, 2 devices are assigned')

        self.act(server, 'ACTIVE', reboot={'type': 'HARD'})
        self.assertNotEqual(running, self._domain_id(server))
        self.assertEqual(assigned, self._assigned(server))
        print('hard reboot: another domain, the same devices')

        self.act(server, 'SHUTOFF', **{'os-stop': None})
        self.act(server, 'ACTIVE', **{'os-start': None})
        self.assertEqual(assigned, self._assigned(server))
        print('stop and start: the same devices')

        self.act(server, 'VERIFY_RESIZE', resize={'flavorRef': large})
        self.assertEqual(6, len(self._assigned(server)))
        self.act(server, 'ACTIVE', revertResize=None)
        self.assertEqual(assigned, self._assigned(server))
        self._available(6)
        print('resize and revert: the devices from before')

        self.act(server, 'VERIFY_RESIZE', resize={'flavorRef': large})
        self.act(server, 'ACTIVE', confirmResize=None)
        self.assertEqual(4, len(self._assigned(server)))
        self.assertEqual(set(), assigned & self._assigned(server))
        self._available(4)
        print('resize and confirm: 4 other devices')

        self.nova.delete(f'/servers/{server}')
        self._available(8)
        self.assertNotIn(server, [
            domain.UUIDString() for domain in self.libvirt.listAllDomains()])
        print('delete: no domain, 8 devices are available')
