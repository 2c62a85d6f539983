# SPDX-License-Identifier: Apache-2.0
"""Contract of a kernel with PCI and VFIO, fake or real.

The same tests run on the fake kernel (tests/unit) and inside a booted Linux
(tests/vfio_lab), so that the fake one cannot drift from the real one.
"""

from __future__ import annotations

import contextlib
import errno
import typing
from collections.abc import Iterator

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host import local
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs

VFIO = 'bus/pci/drivers/vfio-pci'


class PassthroughContract:
    """Tests for a test case that sets the attributes annotated here.

    :ivar root: of sysfs
    :ivar gpus: two unused functions in different slots
    """

    root: str
    backend: local.LocalHost
    gpus: list[pci.PCIFunction]
    assertEqual: typing.Any
    assertRaises: typing.Any
    assertIn: typing.Any
    assertTrue: typing.Any
    assertFalse: typing.Any
    assertIsNone: typing.Any

    def write(self, path: str, value: str) -> None:
        """Write an attribute as the plugin does. :raises OSError:"""
        raise NotImplementedError

    @contextlib.contextmanager
    def opened(self, gpu: pci.PCIFunction) -> Iterator[None]:
        """Let a process have the device open through VFIO."""
        raise NotImplementedError

    # -- helpers ------------------------------------------------------------

    @staticmethod
    def device(gpu: pci.PCIFunction) -> host_base.HostDevice:
        return host_base.HostDevice(
            assignment_uuid='a', stable_id=gpu.id, address=gpu.address)

    def scan_gpu(self, gpu: pci.PCIFunction) -> pci.PCIFunction:
        found = scanner.scan_function(sysfs.Sysfs(self.root), gpu.address)
        assert found is not None
        return found

    def refused(self, number: int, path: str, value: str) -> None:
        exc = self.assertRaises(OSError, self.write, path, value)
        self.assertEqual(errno.errorcode[number],
                         errno.errorcode[exc.errno], path)

    def attribute(self, name: str, gpu: int = 0) -> str:
        return f'bus/pci/devices/{self.gpus[gpu].address}/{name}'

    # -- the kernel ---------------------------------------------------------

    def test_bound_function_is_unbound_again(self) -> None:
        address = self.gpus[0].address
        self.refused(errno.ENODEV, f'{VFIO}/bind', address)
        self.write(self.attribute('driver_override'), 'vfio-pci')
        self.write(f'{VFIO}/bind', address)
        self.assertEqual('vfio-pci', self.scan_gpu(self.gpus[0]).driver)
        self.refused(errno.EBUSY, f'{VFIO}/bind', address)
        self.write(f'{VFIO}/unbind', address)
        self.assertIsNone(self.scan_gpu(self.gpus[0]).driver)
        self.refused(errno.ENODEV, f'{VFIO}/unbind', address)
        self.write(self.attribute('driver_override'), '')
        self.refused(errno.ENODEV, f'{VFIO}/bind', address)

    def test_write_to_missing_device_or_driver_is_refused(self) -> None:
        self.refused(errno.ENODEV, f'{VFIO}/bind', '0000:ff:1f.7')
        self.refused(errno.ENOENT, 'bus/pci/drivers/none/bind',
                     self.gpus[0].address)
        self.refused(errno.ENOENT,
                     'bus/pci/devices/0000:ff:1f.7/reset', '1')

    def test_reset_accepts_only_1(self) -> None:
        self.write(self.attribute('reset'), '1')
        self.refused(errno.EINVAL, self.attribute('reset'), '0')

    def test_remove_accepts_only_numbers(self) -> None:
        self.refused(errno.EINVAL, self.attribute('remove'), 'x')
        self.write(self.attribute('remove'), '0')
        self.assertEqual(self.gpus[0].id, self.scan_gpu(self.gpus[0]).id)

    def test_probe_binds_overridden_driver(self) -> None:
        address = self.gpus[0].address
        self.write('bus/pci/drivers_probe', address)
        self.assertIsNone(self.scan_gpu(self.gpus[0]).driver)
        self.write(self.attribute('driver_override'), 'vfio-pci')
        for _ in range(2):
            self.write('bus/pci/drivers_probe', address)
            self.assertEqual('vfio-pci', self.scan_gpu(self.gpus[0]).driver)
        self.write(self.attribute('driver_override'), '')
        self.assertEqual('vfio-pci', self.scan_gpu(self.gpus[0]).driver)
        self.write(f'{VFIO}/unbind', address)

    # -- the backend --------------------------------------------------------

    def test_prepare_and_release_are_idempotent(self) -> None:
        for _ in range(2):
            self.backend.prepare(self.device(self.gpus[0]))
            self.assertEqual('vfio-pci', self.scan_gpu(self.gpus[0]).driver)
            self.assertIsNone(self.scan_gpu(self.gpus[0]).used_by)
        for _ in range(2):
            self.backend.release(self.device(self.gpus[0]))
            # No driver of the host may meet what the guest left.
            self.assertEqual('vfio-pci', self.scan_gpu(self.gpus[0]).driver)

    def test_other_device_at_the_address_is_refused(self) -> None:
        wrong = host_base.HostDevice(
            assignment_uuid='a', stable_id=self.gpus[1].id,
            address=self.gpus[0].address)
        for method in (self.backend.prepare, self.backend.release):
            exc = self.assertRaises(exception.HostError, method, wrong)
            self.assertIn(self.gpus[1].id, str(exc))
        self.assertFalse(self.backend.clean(wrong).passed)

    def test_clean_device_is_unbound_when_it_is_given_back(self) -> None:
        self.backend.prepare(self.device(self.gpus[0]))
        verdict = self.backend.clean(self.device(self.gpus[0]))
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertEqual('vfio-pci', self.scan_gpu(self.gpus[0]).driver)
        self.backend.give_back(self.device(self.gpus[0]))
        self.assertIsNone(self.scan_gpu(self.gpus[0]).driver)

    def test_config_space_has_ids_of_sysfs(self) -> None:
        for gpu in self.gpus:
            shape = config_space.shape(self.backend.binder.config(gpu))
            self.assertEqual(
                (gpu.vendor, gpu.device, gpu.revision, gpu.class_code,
                 gpu.subsystem_vendor, gpu.subsystem),
                tuple(shape[name] for name in (
                    'vendor', 'device', 'revision', 'class',
                    'subsystem vendor', 'subsystem')))
            self.assertTrue(shape['capabilities'])

    def test_open_device_is_not_cleaned(self) -> None:
        gpu = self.gpus[0]
        self.backend.prepare(self.device(gpu))
        with self.opened(gpu):
            self.assertEqual('vfio', self.scan_gpu(gpu).used_by)
            exc = self.assertRaises(
                exception.HostNotReady, self.backend.clean, self.device(gpu))
            self.assertIn('open', str(exc))
        self.assertIsNone(self.scan_gpu(gpu).used_by)
        self.assertTrue(self.backend.clean(self.device(gpu)).passed)

    def test_change_of_driver_is_noticed(self) -> None:
        self.backend.scan()
        self.assertFalse(self.backend.changed())
        self.backend.prepare(self.device(self.gpus[0]))
        self.assertTrue(self.backend.changed())
        self.backend.scan()
        self.backend.clean(self.device(self.gpus[0]))
        self.backend.give_back(self.device(self.gpus[0]))
        self.assertTrue(self.backend.changed())

    def test_removed_device_is_refused(self) -> None:
        gpu = self.gpus[1]
        self.backend.prepare(self.device(gpu))
        self.write(self.attribute('remove', 1), '1')
        self.assertIsNone(
            scanner.scan_function(sysfs.Sysfs(self.root), gpu.address)
        )
        for method in (self.backend.prepare, self.backend.release):
            exc = self.assertRaises(
                exception.HostError, method, self.device(gpu))
            self.assertIn('is not there', str(exc))
        self.assertFalse(self.backend.clean(self.device(gpu)).passed)
