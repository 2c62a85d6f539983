# SPDX-License-Identifier: Apache-2.0
"""A real kernel: its facts, and the contract that the fake one keeps, too."""

from __future__ import annotations

import contextlib
import errno
import pathlib
import subprocess
import threading

from gpgpu_plugin import exception
from gpgpu_plugin import smbios
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import machine as machine_host
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.privsep import sysfs as privsep_sysfs
from tests.contract import passthrough
from tests.vfio_lab import lab
from tests.vfio_lab import machine

_SECOND_CPU = 'devices/system/cpu/cpu1/online'


class ScannerTest(lab.LabTestCase):
    """The lab's machine, compared with tests/vfio_lab/machine.py."""

    def test_node_without_a_cpu_counts_as_the_nearest_with_one(self) -> None:
        # The CPU of node 1 is offline.
        self.assertEqual([0] * 4, [
            function.numa_node for function in lab.displays()])

    def test_scan_finds_two_displays_on_each_node(self) -> None:
        lab.write(_SECOND_CPU, '1')
        self.addCleanup(lab.write, _SECOND_CPU, '0')
        displays = lab.displays()
        self.assertEqual(
            [0, 0, 1, 1], [function.numa_node for function in displays]
        )
        groups = [function.iommu_group for function in displays]
        self.assertNotIn(None, groups)
        self.assertEqual(4, len(set(groups)))
        for function in displays:
            self.assertEqual('038000', function.class_code)
            self.assertIsNone(function.fault)
            # Below a root port: no switch.
            self.assertEqual((), function.switch_path)
        self.assertEqual(['11', '12', '14', '15'],
                         [function.slot for function in displays])

    def test_stable_id_has_the_root_bus_by_its_name_in_acpi(self) -> None:
        self.assertRegex(lab.displays()[0].id,
                         r'^/devices/pci_SB_\.[A-Z0-9_]{4}/01\.0/00\.0$')

    def test_scan_reports_no_problem(self) -> None:
        self.assertEqual((), scanner.scan(sysfs.Sysfs('/sys')).problems)


class SlotLabelsTest(lab.LabTestCase):
    """What gpgpu_plugin.host.discovery.machine relies on."""

    def test_only_root_reads_smbios_and_finds_the_labels(self) -> None:
        table = pathlib.Path('/sys', smbios.TABLE)
        self.assertNotEqual(0, subprocess.run(
            ['cat', table], user=65534, check=False,
            capture_output=True).returncode)
        selected = privsep_sysfs.read('/sys', smbios.TABLE)
        self.assertLess(len(selected), len(table.read_bytes()))
        found = machine_host.SlotLabels(sysfs.Sysfs('/sys')).get()
        self.assertEqual(found, smbios.labels(selected))
        displays = [display.address for display in lab.displays()]
        self.assertEqual(
            [machine.SLOT, machine.SLOT, None, None],
            [found.find([address]) for address in displays])

    def test_kernel_shows_the_label_of_an_onboard_device(self) -> None:
        self.assertEqual(machine.NVME, lab.nvme().address)
        self.assertEqual(f'{machine.ONBOARD}\n', pathlib.Path(
            '/sys/bus/pci/devices', machine.NVME, 'label').read_text())


class SerialNumbersTest(lab.LabTestCase):
    """What gpgpu_plugin.host.vfio.serial_numbers relies on.

    No display of QEMU has a serial number.
    """

    def setUp(self) -> None:
        super().setUp()
        self.gpu = lab.displays()[3]
        self.path = f'bus/pci/devices/{self.gpu.address}'
        self.host = lab.host(self)

    def test_user_of_nova_sees_the_header_only(self) -> None:
        seen = subprocess.run(
            ['cat', f'/sys/{self.path}/config'], user=65534, check=True,
            capture_output=True).stdout
        self.assertEqual(config_space.HEADER, len(seen))
        config = self.host.binder.config(self.gpu)
        self.assertGreater(len(config), config_space.CONVENTIONAL)
        self.assertEqual(seen, config[:len(seen)])
        self.assertEqual(config, privsep_sysfs.read(
            '/sys', f'{self.path}/config'))

    def test_function_without_vpd_has_none(self) -> None:
        self.assertEqual(b'', self.host.binder.vpd(self.gpu))
        self.assertRaises(FileNotFoundError, privsep_sysfs.read, '/sys',
                          f'{self.path}/vpd')

    def test_function_that_is_found_anew_is_noticed(self) -> None:
        tree = sysfs.Sysfs('/sys')
        before = dict(tree.inodes(tree.devices))
        self.assertEqual(before, dict(tree.inodes(tree.devices)))
        self.host.scan()
        self.assertFalse(self.host.changed())
        lab.write(f'{self.path}/remove', '1')
        lab.write('bus/pci/rescan', '1')
        after = dict(tree.inodes(tree.devices))
        self.assertEqual(before.keys(), after.keys())
        self.assertEqual([self.gpu.address], [
            name for name in before if before[name] != after[name]])
        self.assertTrue(self.host.changed())


class KernelContractTest(
        passthrough.PassthroughContract, lab.LabTestCase):
    """bochs displays on node 0, without their driver."""

    def setUp(self) -> None:
        super().setUp()
        self.root = '/sys'
        lab.unload('bochs')
        self.backend = lab.host(self)
        self.gpus = lab.displays()[:2]
        self.addCleanup(self._restore)

    def _restore(self) -> None:
        # Also what a test removed or left bound.
        lab.write('bus/pci/rescan', '1')
        for gpu in self.gpus:
            found = scanner.scan_function(sysfs.Sysfs('/sys'), gpu.address)
            assert found is not None, gpu.address
            if found.driver:
                lab.write(f'bus/pci/drivers/{found.driver}/unbind',
                          gpu.address)
            lab.write(f'bus/pci/devices/{gpu.address}/driver_override', '')

    def write(self, path: str, value: str) -> None:
        lab.write(path, value)

    def test_unbind_of_open_device_waits_for_close(self) -> None:
        # This is why the backend checks first, and the daemon has a timeout.
        gpu = self.gpus[0]
        self.backend.prepare(self.device(gpu))
        thread = threading.Thread(
            target=self.write, args=(f'{passthrough.VFIO}/unbind',
                                     gpu.address))
        with self.opened(gpu):
            thread.start()
            thread.join(3)
            self.assertTrue(thread.is_alive())
            self.assertRaises(exception.HostError, self.backend.release,
                              self.device(gpu))
        thread.join(30)
        self.assertFalse(thread.is_alive())
        self.assertIsNone(self.scan_gpu(gpu).driver)

    def opened(self, gpu: pci.PCIFunction,
               ) -> contextlib.AbstractContextManager[None]:
        return lab.opened(gpu.iommu_group, gpu.address)


class SriovTest(lab.LabTestCase):
    """An NVMe whose VFs its driver makes."""

    def setUp(self) -> None:
        super().setUp()
        self.pf = lab.nvme()
        self.path = f'bus/pci/devices/{self.pf.address}/sriov_numvfs'
        self.addCleanup(lab.write, self.path, '0')

    def _refused(self, number: int, value: str) -> None:
        exc = self.assertRaises(OSError, lab.write, self.path, value)
        self.assertEqual(number, exc.errno)

    def test_vfs_have_their_own_ids_and_answer(self) -> None:
        lab.write(self.path, '2')
        vfs = [function for function in lab.functions().values()
               if function.pf == self.pf.id]
        self.assertEqual([f'{self.pf.id}/vf0', f'{self.pf.id}/vf1'],
                         sorted(function.id for function in vfs))
        for vf in vfs:
            self.assertEqual(self.pf.vendor, vf.vendor)
            # Their own registers have no ids (SR-IOV specification), which
            # is no fault.
            with open(f'/sys/bus/pci/devices/{vf.address}/config',
                      'rb') as file:
                config = file.read()
            self.assertEqual(b'\xff' * 4, config[:4])
            self.assertFalse(config_space.is_dead(config))

    def test_invalid_numbers_of_vfs_are_refused(self) -> None:
        self._refused(errno.ERANGE, '5')
        self._refused(errno.EINVAL, 'x')
        lab.write(self.path, '2')
        self._refused(errno.EBUSY, '4')
        lab.write(self.path, '2')
