#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""The backend of fake machines: real scanner, fake kernel."""

from __future__ import annotations

import pathlib

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.host import fake_kernel
from gpgpu_plugin.host import machine as machine_mod
from gpgpu_plugin.host import scanner
from gpgpu_plugin.host import sysfs as sysfs_mod
from gpgpu_plugin.host import watch

_VFIO = 'vfio-pci'


class FakeBackend(base.Backend):
    """Hands out the functions of a tree of gpgpu_plugin.host.machine.

    Prepare binds the function to vfio-pci, release gives it back to no
    driver; cleaning is a reset and a look whether it is still the same.

    :ivar kernel: to make the machine fail, in tests
    """

    def __init__(self, root: str) -> None:
        self.kernel = fake_kernel.FakeKernel(root)
        self._sysfs = sysfs_mod.Sysfs(root)
        self._watch: watch.Watch | None = None

    @classmethod
    def for_machine(cls, name: str, folder: str) -> FakeBackend:
        """The machine in a folder, built there if it is not yet.

        A tree that is there is kept as it is, as hardware outlives a
        restart of nova-compute.

        :raises NotFound: no such machine
        """
        machine = machine_mod.load(name)
        if not (pathlib.Path(folder) / 'bus/pci/devices').is_dir():
            machine_mod.build(machine, folder)
        return cls(folder)

    def scan(self) -> scanner.Scan:
        scan = scanner.scan(self._sysfs)
        if self._watch is not None:
            self._watch.close()
        self._watch = watch.Watch(self._sysfs, scan.functions)
        return scan

    def discover(self, scan: scanner.Scan) -> tuple[pci.PCIFunction, ...]:
        return tuple(function for function in scan.functions
                     if scanner.can_be_gpu(function.class_code))

    def changed(self) -> bool:
        return self._watch is None or self._watch.changed()

    def prepare(self, device: base.HostDevice) -> None:
        driver = self._driver(device)
        if driver == _VFIO:
            return
        self._write(f'bus/pci/devices/{device.address}/driver_override',
                    _VFIO)
        if driver is not None:
            self._write(f'bus/pci/drivers/{driver}/unbind', device.address)
        self._write(f'bus/pci/drivers/{_VFIO}/bind', device.address)

    def release(self, device: base.HostDevice) -> None:
        driver = self._driver(device)
        self._write(f'bus/pci/devices/{device.address}/driver_override', '')
        if driver == _VFIO:
            self._write(f'bus/pci/drivers/{driver}/unbind', device.address)

    def clean(self, device: base.HostDevice) -> base.CleanVerdict:
        try:
            self.release(device)
            self._write(f'bus/pci/devices/{device.address}/reset', '1')
            self._driver(device)
        except exception.HostError as exc:
            return base.CleanVerdict(passed=False, evidence=str(exc))
        return base.CleanVerdict(
            passed=True, evidence=f'{device.address} was reset')

    def _driver(self, device: base.HostDevice) -> str | None:
        """The bound driver, once it is sure that it is this device's.

        :raises HostError: another device, or none, is at the address
        """
        function = scanner.look(self._sysfs, device.address)
        if function is None or function.id != device.stable_id:
            raise exception.HostError(
                path=device.address,
                reason=f'{device.stable_id} is not there')
        if function.fault:
            raise exception.HostError(
                path=device.address, reason=function.fault)
        return function.driver

    def _write(self, path: str, value: str) -> None:
        try:
            self.kernel.write(path, value)
        except OSError as exc:
            raise exception.HostError(
                path=path, reason=f'cannot write {value!r}: {exc.strerror}',
            ) from None
