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
"""The backend of whole PCI functions, bound to vfio-pci for a guest.

VFIO gives an IOMMU group to one user only (Linux,
Documentation/driver-api/vfio.rst): a card's functions that share its group are
bound with it, and a card whose group also holds something else is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.host import scanner
from gpgpu_plugin.host import sysfs as sysfs_mod
from gpgpu_plugin.host import watch
from gpgpu_plugin.privsep import sysfs as privsep_sysfs

VFIO = 'vfio-pci'
_BRIDGE = '06'
# What must be the same after a reset; a VF's number may differ only with it.
_IDENTITY = ('id', 'vendor', 'device', 'subsystem_vendor', 'subsystem',
             'revision', 'class_code', 'serial', 'dsn')


class PassthroughBackend(base.Backend):
    """Binds before a guest, gives back after it, resets between two.

    :param root: of sysfs
    :param write: writes a value to a path relative to that root, as the
        kernel takes it; raises OSError
    """

    def __init__(self, root: str,
                 write: Callable[[str, str], None]) -> None:
        self._sysfs = sysfs_mod.Sysfs(root)
        self._write_attribute = write
        self._watch: watch.Watch | None = None

    @classmethod
    def for_host(cls, conf: cfg.ConfigOpts, host: str) -> PassthroughBackend:
        root = conf.gpgpu.sysfs_root
        return cls(root, functools.partial(privsep_sysfs.write, root))

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
        function = self._look(device)
        if function.used_by == 'boot_vga':
            raise exception.HostError(
                path=device.address,
                reason='it is the display that the host booted with')
        for each in self._group(function):
            self._bind(each)

    def release(self, device: base.HostDevice) -> None:
        for each in self._group(self._look(device)):
            self._unbind(each)

    def clean(self, device: base.HostDevice) -> base.CleanVerdict:
        try:
            before = self._look(device)
            if before.used_by == 'vfio':
                raise exception.HostError(
                    path=device.address,
                    reason='a process still has it open')
            self.release(device)
            # The kernel itself resets nothing but this function: a bus reset
            # is refused (ENOTTY) where anything else is on the bus.
            self._write(f'bus/pci/devices/{device.address}/reset', '1')
            after = self._look(device)
        except exception.HostError as exc:
            return base.CleanVerdict(passed=False, evidence=str(exc))
        changed = [
            f'{name} was {getattr(before, name)}, is {getattr(after, name)}'
            for name in _IDENTITY
            if getattr(before, name) != getattr(after, name)]
        return base.CleanVerdict(
            passed=not changed, evidence='; '.join(
                changed or [f'{device.address} was reset, and is the same']))

    # -- one function -------------------------------------------------------

    def _look(self, device: base.HostDevice) -> pci.PCIFunction:
        """The device, once it is sure that it is this one.

        :raises HostError: another device, or none, is at the address, or it
            does not answer
        """
        function = scanner.look(self._sysfs, device.address)
        if function is None or function.id != device.stable_id:
            raise exception.HostError(
                path=device.address,
                reason=f'{device.stable_id} is not there')
        if function.fault:
            raise exception.HostError(
                path=device.address, reason=function.fault)
        return function

    def _group(self, function: pci.PCIFunction) -> list[pci.PCIFunction]:
        """The function, and those of its card that share its IOMMU group.

        :raises HostError: the group also holds a foreign device
        """
        found = [function]
        if function.iommu_group is None:
            return found
        card = function.address.rpartition('.')[0]
        for address in sorted(self._sysfs.names(
                f'{self._sysfs.root}/kernel/iommu_groups/'
                f'{function.iommu_group}/devices')):
            member = scanner.look(self._sysfs, address)
            if address == function.address or member is None or (
                    member.class_code or '').startswith(_BRIDGE):
                continue
            if (address.rpartition('.')[0] != card
                    or member.pf != function.pf):
                raise exception.HostError(
                    path=function.address,
                    reason=f'its IOMMU group {function.iommu_group} also '
                           f'holds {address}, which is no part of the card')
            found.append(member)
        return found

    def _bind(self, function: pci.PCIFunction) -> None:
        if function.driver == VFIO:
            return
        self._write(f'bus/pci/devices/{function.address}/driver_override',
                    VFIO)
        if function.driver is not None:
            self._write(f'bus/pci/drivers/{function.driver}/unbind',
                        function.address)
        self._write(f'bus/pci/drivers/{VFIO}/bind', function.address)

    def _unbind(self, function: pci.PCIFunction) -> None:
        self._write(
            f'bus/pci/devices/{function.address}/driver_override', '')
        if function.driver == VFIO:
            self._write(f'bus/pci/drivers/{VFIO}/unbind', function.address)

    def _write(self, path: str, value: str) -> None:
        try:
            self._write_attribute(path, value)
        except OSError as exc:
            raise exception.HostError(
                path=path, reason=f'cannot write {value!r}: {exc.strerror}',
            ) from None
