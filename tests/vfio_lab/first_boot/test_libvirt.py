# SPDX-License-Identifier: Apache-2.0
"""An mdev in a domain of libvirt, by the element that the driver generates."""

from __future__ import annotations

import contextlib
import pathlib
import typing
import uuid

import libvirt
import libvirt_qemu
from lxml import etree

from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.virt import libvirt as virt_libvirt
from tests.functional_libvirt import libvirtd
from tests.vfio_lab import lab

MACHINE = 'pc-q35-7.2'
IDS = '1234:1111'
DOMAIN = """
<domain type='qemu'>
  <name>mdev</name>
  <memory unit='MiB'>64</memory>
  <os><type arch='x86_64' machine='{machine}'>hvm</type></os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <memballoon model='none'/>
    {hostdevs}
  </devices>
</domain>
"""


class DomainTest(lab.LabTestCase):

    def setUp(self) -> None:
        super().setUp()
        pathlib.Path('/etc/libvirt/qemu.conf').write_text(lab.QEMU_CONF)
        lab.load_mdevs()
        self.backend = lab.host(self)
        self.addCleanup(lab.remove_mdevs)
        found = self.useFixture(libvirtd.Libvirtd())
        self.assertIsNone(found.unavailable)
        self.connection = found.connection
        self.addCleanup(self._end)

    def _end(self) -> None:
        for domain in self.connection.listAllDomains():
            # One that did not start may be about to end.
            with contextlib.suppress(libvirt.libvirtError):
                domain.destroy()

    def _start(self, attachment: host_base.Attachment) -> typing.Any:
        return self.connection.createXML(DOMAIN.format(
            machine=MACHINE, hostdevs=''.join(
                hostdev.to_xml() for hostdev in virt_libvirt.hostdevs(
                    attachment, 0, MACHINE))))

    @staticmethod
    def _pci(domain: typing.Any) -> str:
        return typing.cast(str, libvirt_qemu.qemuMonitorCommand(
            domain, 'info pci',
            libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP))

    def test_domain_with_mdev_starts(self) -> None:
        device = host_base.HostDevice(
            assignment_uuid=str(uuid.uuid4()), vgpu_type='mbochs-medium',
            stable_id=f'{lab.functions()["mbochs"].id}/mdev0',
            address='mbochs')
        attachment = host_base.Attachment(mdev=device.assignment_uuid)
        # libvirt makes none of its own accord.
        exc = self.assertRaises(libvirt.libvirtError, self._start, attachment)
        self.assertIn(device.assignment_uuid, str(exc))

        self.backend.prepare(device)
        self.assertEqual(attachment, self.backend.attachment(device))
        domain = self._start(attachment)
        self.assertEqual(
            [device.assignment_uuid],
            [address.get('uuid') for address in etree.fromstring(
                domain.XMLDesc()).findall(
                    "./devices/hostdev[@type='mdev']/source/address")])
        lab.wait(lambda: lab.placed(self._pci(domain), IDS) == 1,
                 f'{IDS} in {self._pci(domain)}')
        print(f'the firmware of a domain placed {IDS}, which is mdev '
              f'{device.assignment_uuid}')

        domain.destroy()
        self.assertEqual([device.assignment_uuid], lab.mdevs())
        self.backend.release(device)
        self.assertEqual([], lab.mdevs())
