# SPDX-License-Identifier: Apache-2.0
"""Recordings of a real kernel contain everything that the scanner reads."""

from __future__ import annotations

import os
import uuid

import fixtures

from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.fake import machine
from gpgpu_plugin.host.fake import recording
from tests.vfio_lab import lab

MDEVS = {'mbochs': ('mbochs-small', 'mbochs-medium'), 'mtty': ('mtty-2',)}


def furnish() -> None:
    """Create VFs and mdevs, as on the machine recorded-qemu-lab."""
    lab.load_mdevs()
    clear()
    lab.write(f'bus/pci/devices/{lab.nvme().address}/sriov_numvfs', '4')
    lab.vfs()
    number = 0
    for parent, types in MDEVS.items():
        for type_id in types:
            number += 1
            lab.write(f'class/mdev_bus/{parent}/mdev_supported_types/{type_id}/'
                      'create', str(uuid.UUID(int=number)))


def clear() -> None:
    """Remove all VFs and mdevs."""
    lab.remove_mdevs()
    lab.write(f'bus/pci/devices/{lab.nvme().address}/sriov_numvfs', '0')


class RecordingTest(lab.LabTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(clear)
        furnish()
        # And one that a guest could have.
        lab.unload('bochs')
        backend = lab.host(self)
        self.gpu = lab.displays()[0]
        device = host_base.HostDevice(
            assignment_uuid=str(uuid.uuid4()), stable_id=self.gpu.id,
            address=self.gpu.address)
        self.addCleanup(backend.release, device)
        backend.prepare(device)

    def _replay(self, *, with_serials: bool) -> str:
        folder = self.useFixture(fixtures.TempDir()).path
        text = machine.dump(recording.record(
            sysfs.Sysfs('/sys'), with_serials=with_serials), 'the lab')
        with open(f'{folder}/host.yaml', 'w', encoding='utf-8') as file:
            file.write(text)
        print(f'{len(text)} bytes')
        machine.build(machine.load(f'{folder}/host.yaml'), f'{folder}/sys')
        return f'{folder}/sys'

    def test_scan_of_recording_equals_scan_of_host(self) -> None:
        with lab.opened(self.gpu.iommu_group, self.gpu.address):
            found = lab.functions()
            self.assertEqual(
                ['vfio', 'mdev', 'mdev'],
                [found[name].used_by
                 for name in (self.gpu.address, 'mbochs', 'mtty')])
            self.assertEqual(
                4, sum(bool(function.pf) for function in found.values())
            )
            for with_serials in (True, False):
                # The lab's devices have no serial numbers.
                root = self._replay(with_serials=with_serials)
                self.assertEqual(
                    scanner.scan(sysfs.Sysfs('/sys')),
                    scanner.scan(sysfs.Sysfs(root)))

    def test_scans_of_single_functions_equal_those_of_host(self) -> None:
        root = self._replay(with_serials=True)
        for address in lab.functions():
            for scan in (scanner.scan_function, scanner.scan_card):
                self.assertEqual(scan(sysfs.Sysfs('/sys'), address),
                                 scan(sysfs.Sysfs(root), address))
        for address in os.listdir('/sys/bus/pci/drivers/vfio-pci'):
            if ':' in address:
                self.assertTrue(os.path.samefile(
                    f'{root}/bus/pci/drivers/vfio-pci/{address}',
                    f'{root}/bus/pci/devices/{address}'))

    def test_recording_changes_nothing_on_the_host(self) -> None:
        before = scanner.scan(sysfs.Sysfs('/sys'))
        self._replay(with_serials=True)
        self.assertEqual(before, scanner.scan(sysfs.Sysfs('/sys')))
