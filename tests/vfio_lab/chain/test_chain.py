# SPDX-License-Identifier: Apache-2.0
"""The whole chain: Nova's REST API, libvirt, vfio-pci, a guest that sees it.

Nova and Placement run in one process by their functional fixtures; the virt
driver, libvirtd, QEMU, the kernel and what it does with devices are real.
"""

from __future__ import annotations

import builtins
import glob
import os
import pathlib
import re
import sys
import time
import traceback
import typing
from unittest import mock

import libvirt
import libvirt_qemu
import os_vif

from tests.fixtures import cloud  # isort: skip
from tests.fixtures import cloud_views  # isort: skip

import fixtures
from lxml import etree
from nova.tests import fixtures as nova_fixtures
from nova.virt.libvirt import utils as libvirt_utils

from gpgpu_plugin import privsep
from tests.functional_libvirt import libvirtd
from tests.vfio_lab import lab
from tests.vfio_lab import machine

# Before Nova's fixtures replace them by ones that refuse /sys.
_ORIGINALS = {'builtins.open': builtins.open, 'os.listdir': os.listdir,
              'os.path.isdir': os.path.isdir, 'glob.glob': glob.glob,
              'glob.iglob': glob.iglob, 'os.uname': os.uname}
CONF = cloud.CONF
_DRIVER = 'nova.virt.libvirt.driver.LibvirtDriver'
# Python is about eight times slower here, and as much again beside others.
SLOWNESS = 16


def create_image(driver: typing.Any, context: typing.Any,
                 instance: typing.Any, *args: object,
                 **kwargs: object) -> tuple[bool, bool]:
    """Create an empty disk instead of an image from Glance."""
    folder = pathlib.Path(libvirt_utils.get_instance_path(instance))
    folder.mkdir(exist_ok=True)
    with (folder / 'disk').open('ab') as disk:
        disk.truncate(1024 * 1024)
    return True, True


class ChainTest(cloud.GpuCloud):
    """One host: the lab's machine, with four displays for GPUs."""

    compute_driver = 'gpgpu.GpuLibvirtDriver'
    machines: typing.ClassVar[dict[str, str]] = {'gpu1': ''}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('BOCHS', '--vendor', '1234', '--device', '1111', '--cleaning-policy',
         'scrub', '--memory-mib', str(machine.MEMORY_MIB)),)

    def setUp(self) -> None:
        lab.require(self)
        # A thread that waits for Python's lock wakes up every 5 ms otherwise,
        # in which another one gets nothing done here.
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(0.005 * SLOWNESS)
        # At once: the machine may be ended before all that runs is stopped.
        self.addOnException(
            lambda exc_info: traceback.print_exception(*exc_info))
        # Another display, with a sound function; the four are alike.
        for function in lab.two_functions():
            lab.write(f'bus/pci/devices/{function.address}/remove', '1')
        super().setUp()

    def _configure(self) -> None:
        super()._configure()
        for name, original in _ORIGINALS.items():
            self.useFixture(fixtures.MonkeyPatch(name, original))
        pathlib.Path('/etc/libvirt/qemu.conf').write_text(lab.QEMU_CONF)
        found = self.useFixture(libvirtd.Libvirtd())
        self.assertIsNone(found.unavailable)
        self.connection = found.connection
        privsep.be_root()
        self.flags(rpc_timeout=60, group='gpgpu')
        # On the guest's disk: memory has no gigabyte to offer.
        instances = self.useFixture(fixtures.TempDir('/var/tmp')).path
        self.flags(
            instances_path=instances, use_cow_images=False,
            shutdown_timeout=1, allow_resize_to_same_host=True)
        self.flags(virt_type='qemu', cpu_mode='none', images_type='raw',
                   hw_machine_type=['x86_64=q35'], group='libvirt')
        self.flags(enabled=False, group='vnc')
        for fixture in (nova_fixtures.OSBrickFixture(),
                        nova_fixtures.PrivsepFixture(),
                        fixtures.MockPatch(
                            'nova.compute.utils.get_machine_ips',
                            return_value=[CONF.my_ip])):
            self.useFixture(fixture)
        os_vif.initialize()
        # A thread that would outlive the test; nothing here waits for events.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.host.Host._init_events', lambda host: None))
        self.useFixture(fixtures.MonkeyPatch(
            f'{_DRIVER}._create_image', create_image))
        self.addCleanup(self._end_guests)

    def _end_guests(self) -> None:
        for domain in self.connection.listAllDomains():
            if domain.isActive():
                domain.destroy()
            domain.undefine()

    def _start_compute(self, host: str) -> None:
        with mock.patch('nova.virt.node.get_local_node_uuid',
                        return_value=cloud_views.node_uuid(host)):
            super()._start_compute(host)

    def wait_for(self, condition: typing.Callable[[], typing.Any], what: str,
                 timeout: float = 15) -> typing.Any:
        """Wait as the cloud does, with a longer limit."""
        return super().wait_for(condition, what, timeout * SLOWNESS)

    # -- what is seen -------------------------------------------------------

    def _domain(self, server: dict[str, typing.Any]) -> typing.Any:
        return self.connection.lookupByUUIDString(server['id'])

    def _owned(self, server: dict[str, typing.Any]) -> list[str]:
        """Return the addresses in the running domain that QEMU has open."""
        tree = etree.fromstring(self._domain(server).XMLDesc())
        found = [
            '{}:{}:{}.{}'.format(*(
                address.get(name).removeprefix('0x')
                for name in ('domain', 'bus', 'slot', 'function')))
            for address in tree.findall(
                "./devices/hostdev[@type='pci']/source/address")]
        functions = lab.functions()
        for address in found:
            self.assertEqual(('vfio-pci', 'vfio'), (
                functions[address].driver, functions[address].used_by))
        return found

    def _firmware_sees(self, server: dict[str, typing.Any],
                       count: int) -> None:
        """Wait until the guest's firmware has placed the devices."""
        seen: list[str] = []

        def placed() -> bool:
            text = libvirt_qemu.qemuMonitorCommand(
                self._domain(server), 'info pci',
                libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP)
            seen[:] = [bus for bus in re.split(r'^  Bus ', text, flags=re.M)
                       if '1234:1111' in bus]
            # All ones: the firmware has not come to it yet.
            return len(seen) == count and all(
                re.search(r'BAR0: .* at 0x(?!f{16})', bus) for bus in seen)
        try:
            self.wait_for(placed, f'{count} displays in the guest')
        except self.failureException:
            self.fail(f'{count} displays in the guest, not {seen}')

    def _assigned(self, server: dict[str, typing.Any]) -> list[str]:
        return sorted(
            name.partition(' ')[2] for name in self.devices_of(server))

    # -- the chain ----------------------------------------------------------

    def test_server_keeps_gpus_until_it_is_deleted(self) -> None:
        began = time.monotonic()

        def done(what: str) -> None:
            print(f'{what} ({time.monotonic() - began:.0f} s)')
        before = {gpu.address: gpu for gpu in lab.displays()}
        self.wait_inventory(4, 0, variant='BOCHS')
        done('start: four displays are in Placement')

        server = self.boot(self.flavor(BOCHS=1))
        [first] = self._assigned(server)
        self.assertEqual([first], self._owned(server))
        self._firmware_sees(server, 1)
        done(f'boot: the guest owns {first}, its firmware sees it')

        running = self._domain(server).ID()
        self.api.post_server_action(
            server['id'], {'reboot': {'type': 'HARD'}})
        self.wait_status(server['id'], 'ACTIVE')
        self.assertNotEqual(running, self._domain(server).ID())
        self.assertEqual([first], self._owned(server))
        done('hard reboot: another domain owns the same device')

        self.api.post_server_action(server['id'], {
            'resize': {'flavorRef': self.flavor(BOCHS=2)}})
        self.wait_status(server['id'], 'VERIFY_RESIZE')
        self.assertEqual(3, len(self._assigned(server)))
        self.api.post_server_action(server['id'], {'confirmResize': None})
        self.wait_status(server['id'], 'ACTIVE')
        assigned = self._assigned(server)
        self.assertEqual(2, len(assigned))
        self.assertNotIn(first, assigned)
        self.assertEqual(assigned, sorted(self._owned(server)))
        self._firmware_sees(server, 2)
        done('resize on the same host: two other devices')

        self.delete(server)
        self.wait_states(variant='BOCHS', available=4)
        self.wait_inventory(4, 0, variant='BOCHS')
        self.assertRaises(libvirt.libvirtError, self._domain, server)
        # Clean and bindable: as they were, and with another guest.
        for address, now in {
                gpu.address: gpu for gpu in lab.displays()}.items():
            self.assertIsNone(now.used_by)
            self.assertIsNone(now.fault)
            self.assertEqual(before[address].id, now.id)
        other = self.boot(self.flavor(BOCHS=4))
        self.assertEqual(sorted(before), sorted(self._owned(other)))
        self.delete(other)
        self.wait_states(variant='BOCHS', available=4)
        done('delete: all devices are back, clean, and went to the next guest')
