# SPDX-License-Identifier: Apache-2.0
"""vGPUs on a real kernel: mdevs of its sample drivers, VFs of an NVMe."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import threading
import typing
import uuid

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host import base as host_base
from tests.contract import mdev
from tests.fixtures import cleaned
from tests.fixtures import reported
from tests.vfio_lab import kept
from tests.vfio_lab import lab

MBOCHS = {'mbochs-small': 64, 'mbochs-medium': 16, 'mbochs-large': 4}
MTTY = {'mtty-1': 24, 'mtty-2': 12}
# Made (+) and removed (-), until nothing fits any more, and on.
_MBOCHS_STEPS = (
    '+large', '+small', '+medium', '+large', '+large', '-small', '+medium',
    '+medium', '+small', '+small', '+small', '+small', '-large', '+small',
    '-medium', '+medium', '+medium', '-small', '-large', '+large', '-large',
    '-large', '+medium', '+large', '+small')
_MTTY_STEPS = ('+1', *['+2'] * 11, '+1', '-2', '+1', '-1', '-1', '+2')


class MdevCase(lab.LabTestCase):
    """The kernel's mbochs and mtty, without mdevs."""

    name = 'mbochs'

    def setUp(self) -> None:
        super().setUp()
        lab.load_mdevs()
        self.root = '/sys'
        self.backend = lab.host(self)
        self.parent = lab.functions()[self.name]
        self.addCleanup(lab.remove_mdevs)


class ScanTest(MdevCase):

    def test_scan_finds_parents_of_mdevs(self) -> None:
        scan = self.backend.scan()
        self.assertEqual((), scan.problems)
        names = {function.address for function in self.backend.discover(scan)}
        found = {function.address: function
                 for function in reported.functions(scan)
                 if function.address in names}
        self.assertEqual(
            [('/devices/virtual/mbochs/mbochs', '1234', '1111', '038000'),
             ('/devices/virtual/mtty/mtty', '4348', '3253', '070002')],
            [(parent.id, parent.vendor, parent.device, parent.class_code)
             for parent in (found['mbochs'], found['mtty'])])
        for name, types in (('mbochs', MBOCHS), ('mtty', MTTY)):
            self.assertEqual(types, {
                listed.name: listed.max_instances
                for listed in found[name].vgpu_types or ()})
        self.assertEqual(
            {'mbochs-small': 4, 'mbochs-medium': 16, 'mbochs-large': 64},
            {listed.name: listed.video_ram
             for listed in found['mbochs'].vgpu_types or ()})


class MbochsContractTest(mdev.MdevContract, MdevCase):

    types = MBOCHS

    def write(self, path: str, value: str) -> None:
        lab.write(path, value)

    def test_removal_of_open_mdev_waits_for_close(self) -> None:
        device = self.device(self.large)
        self.backend.prepare(device)
        name = device.assignment_uuid
        group = os.path.basename(os.readlink(
            f'/sys/bus/mdev/devices/{name}/iommu_group'))
        thread = threading.Thread(target=self.backend.release,
                                  args=(device,), daemon=True)
        with lab.opened(group, name):
            thread.start()
            thread.join(3)
            self.assertTrue(thread.is_alive())
            # It is on the bus no more, and there all the same.
            self.assertEqual([], self.mdevs())
            self.assertEqual((name,), self.scan_parent().existing_vgpus)
            self.assertEqual(self.types[self.large] - 1,
                             self.available(self.large))
            for method in (self.backend.release, self.backend.attachment):
                exc = self.assertRaises(
                    exception.HostError, method, device)
                self.assertIn('still has it open', str(exc))
            self.assertFalse(self.backend.clean(device).passed)
        thread.join(30)
        self.assertFalse(thread.is_alive())
        self.assertEqual((), self.scan_parent().existing_vgpus)
        self.assertTrue(self.backend.clean(device).passed)


class MttyContractTest(mdev.MdevContract, MdevCase):

    name = 'mtty'
    types = MTTY

    def write(self, path: str, value: str) -> None:
        lab.write(path, value)


class CapacityTest(MdevCase):
    """Capacity by the plugin's rules, compared with the kernel's."""

    def _follow(self, name: str, steps: typing.Iterable[str]) -> None:
        parent = lab.functions()[name]
        gpu = vgpu.GPUCapacity(
            id=parent.id,
            offered=True,
            mix_policy=vgpu.VGPUMixPolicy.ANY_MIX,
            types={listed.name: listed
                   for listed in parent.vgpu_types or ()},
        )
        prepared: list[host_base.HostDevice] = []
        seen = []
        for step in steps:
            kind = f'{name}-{step[1:]}'
            if step[0] == '+':
                prepared.append(host_base.HostDevice(
                    assignment_uuid=str(uuid.uuid4()), vgpu_type=kind,
                    stable_id=f'{parent.id}/mdev0', address=name))
                self.backend.prepare(prepared[-1])
                gpu = gpu.with_vgpu(kind)
            else:
                gone = next(device for device in prepared
                            if device.vgpu_type == kind)
                self.backend.release(gone)
                prepared.remove(gone)
                gpu = dataclasses.replace(gpu, vgpus=tuple(
                    vgpu.VGPU(
                        vgpu_type=device.vgpu_type)
                    for device in prepared))
            available = {
                name: gpu.available(name) for name in gpu.types
            }
            self.assertEqual(self._available(parent), available, step)
            seen.append(tuple(available.values()))
            print(f'{step}: the kernel also reports {available} available')
        self.assertIn((0,) * len(gpu.types), seen)
        self.assertEqual(len(prepared), len(lab.mdevs()))

    @staticmethod
    def _available(parent: pci.PCIFunction) -> dict[str, int]:
        return {listed.name: int(pathlib.Path(
            '/sys/class/mdev_bus', parent.address, 'mdev_supported_types',
            listed.type_id, 'available_instances').read_text())
            for listed in parent.vgpu_types or ()}

    def test_mbochs_capacity_follows_its_driver(self) -> None:
        self._follow('mbochs', _MBOCHS_STEPS)

    def test_mtty_capacity_follows_its_driver(self) -> None:
        self._follow('mtty', _MTTY_STEPS)


class SriovVFTest(lab.LabTestCase):
    """Plain VFs."""

    def setUp(self) -> None:
        super().setUp()
        self.pf = lab.nvme()
        self.backend = lab.host(self, kept.NUMVFS)
        self.addCleanup(
            lab.write, f'bus/pci/devices/{self.pf.address}/sriov_numvfs',
            '0')

    def test_vfs_are_created_once(self) -> None:
        self.backend.make_vfs([self.pf.id])
        self.assertEqual([], lab.vfs())
        self.backend.make_vfs(())
        made = lab.vfs()
        self.assertEqual([f'{self.pf.id}/vf{number}' for number in range(4)],
                         [vf.id for vf in made])
        self.backend.make_vfs(())
        self.assertEqual(made, lab.vfs())

    def test_vf_is_assigned_and_cleaned(self) -> None:
        self.backend.make_vfs(())
        device = kept.vf_device(lab.vfs()[2], 'a')
        for _ in range(2):
            self.backend.prepare(device)
            self.assertEqual('vfio-pci', self._driver(device))
        self.assertEqual(
            host_base.Attachment(functions=(device.address,)),
            self.backend.attachment(device))
        self.assertEqual(1, lab.nested(
            '1b36:0010', '-device', f'vfio-pci,host={device.address}'))
        print(f'the firmware of a guest placed {device.address}')
        for _ in range(2):
            self.backend.release(device)
            self.assertEqual('vfio-pci', self._driver(device))
        verdict = self.backend.clean(device)
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertIn('was reset', cleaned.reasons(verdict))
        self.assertEqual('vfio-pci', self._driver(device))
        self.backend.give_back(device)
        self.assertIsNone(self._driver(device))
        print(cleaned.reasons(verdict))

    def test_other_vf_at_the_address_is_refused(self) -> None:
        self.backend.make_vfs(())
        one, other = lab.vfs()[:2]
        wrong = kept.vf_device(one, 'a', address=other.address)
        exc = self.assertRaises(
            exception.HostError, self.backend.prepare, wrong)
        self.assertIn(one.id, str(exc))
        self.assertFalse(self.backend.clean(wrong).passed)
        self.assertIsNone(self._driver(wrong))

    @staticmethod
    def _driver(device: host_base.HostDevice) -> str | None:
        return lab.functions()[device.address].driver


class KeptTest(lab.LabTestCase):
    """State for the second boot; this is the last test."""

    def test_assignments_last_over_a_boot(self) -> None:
        lab.load_mdevs()
        pf = lab.nvme()
        backend = lab.host(self, kept.NUMVFS)
        backend.make_vfs(())
        devices = [
            host_base.HostDevice(
                assignment_uuid=str(uuid.uuid4()), vgpu_type='mbochs-medium',
                stable_id=f'{lab.functions()["mbochs"].id}/mdev0',
                address='mbochs'),
            kept.vf_device(lab.vfs()[1], str(uuid.uuid4()))]
        for device in devices:
            backend.prepare(device)
        self.assertEqual([devices[0].assignment_uuid], lab.mdevs())
        self.assertEqual(4, sum(
            function.pf == pf.id for function in lab.functions().values()))
        kept.note(devices)
