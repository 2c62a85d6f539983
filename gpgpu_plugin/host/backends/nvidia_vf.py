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
"""vGPUs that are VFs to which the vendor's VFIO driver was told a type.

A VF has no name of its own that ends with a holding, so which holding set its
type is written down before it is set; another one leaves it alone.
Between two holdings a VF is reset, and the driver gives it up and takes it
again, so that nothing which the driver knew of the last one is left. It stays
bound to that driver; libvirt does not bind it to another one.
Sources: NVIDIA vGPU software user guide, "Creating an NVIDIA vGPU on a Linux
with KVM hypervisor that uses a vendor-specific VFIO framework"; NVIDIA's
program sriov-manage, which unbinds and binds VFs in the same way.
"""

from __future__ import annotations

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.host.backends import nvidia_placement
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import vgpu_sysfs


class NvidiaVFBackend(base.Backend):
    """Sets a VF's type, and takes it back."""

    order = 20

    def handles(self, device: base.HostDevice) -> bool:
        return (device.vgpu_type is not None
                and self._current(device) is not None)

    def prepare(self, device: base.HostDevice) -> None:
        function = self._vf(device)
        current = self._current(device)
        if current != vgpu_sysfs.NO_TYPE:
            self._check_own(device, current)
            self._place(device)
            return
        wanted = self._type_id(device)
        baselines = self.access.baselines
        baselines.record(
            function.id, device.assignment_uuid, self._shape(function))
        # The number may be another one than before, as after an upgrade of
        # the driver.
        baselines.note(
            function.id, device.assignment_uuid, {'type': wanted})
        self._set(device, wanted)
        self._place(device)

    def _place(self, device: base.HostDevice) -> None:
        nvidia_placement.place(self.access, device,
                      f'bus/pci/devices/{device.address}')

    def release(self, device: base.HostDevice) -> None:
        function = self._vf(device)
        if function.used_by == 'vfio':
            raise exception.HostError(
                path=device.address, reason='a process still has it open')
        current = self._current(device)
        if current == vgpu_sysfs.NO_TYPE:
            return
        self._check_own(device, current)
        self._set(device, vgpu_sysfs.NO_TYPE)

    def clean(self, device: base.HostDevice) -> base.CleanVerdict:
        before = self._vf(device)
        self.release(device)
        self.access.binder.reset(before)
        # No guest has it open, for which the kernel would wait: release saw
        # that.
        self.access.binder.reprobe(before)
        current = self._current(device)
        if current != vgpu_sysfs.NO_TYPE:
            raise exception.HostError(
                path=device.address,
                reason=f'its type is {current} after its driver took it '
                       f'again')
        after = self._vf(device)
        changed = [
            f'since before the guest, {each}'
            for each in self.access.baselines.differences(
                after.id, device.cleaning or device.assignment_uuid,
                self._shape(after))]
        return base.CleanVerdict(passed=not changed, evidence='; '.join(
            changed or [f'{device.address} has no type, was reset and '
                        f'probed again, and is the same']))

    def attachment(self, device: base.HostDevice) -> base.Attachment:
        self._vf(device)
        current = self._current(device)
        if current in (None, vgpu_sysfs.NO_TYPE):
            raise exception.HostError(
                path=device.address, reason='it has no vGPU type')
        self._check_own(device, current)
        return base.Attachment(functions=(device.address,))

    def _vf(self, device: base.HostDevice) -> pci.PCIFunction:
        """The VF, once it is sure that it is this one.

        :raises HostError: another one, or none, is at the address
        """
        function = scanner.scan_function(self.access.sysfs, device.address)
        if function is None or function.id != device.stable_id:
            raise exception.HostError(
                path=device.address,
                reason=f'{device.stable_id} is not there')
        if function.fault:
            raise exception.HostError(
                path=device.address, reason=function.fault)
        return function

    def _shape(self, function: pci.PCIFunction) -> dict[str, str]:
        return config_space.shape(self.access.binder.config(function))

    def _folder(self, device: base.HostDevice) -> str:
        return f'{self.access.sysfs.devices}/{device.address}'

    def _current(self, device: base.HostDevice) -> str | None:
        return self.access.sysfs.read(
            f'{self._folder(device)}/{vgpu_sysfs.CURRENT}')

    def _check_own(self, device: base.HostDevice,
                   current: str | None) -> None:
        """Make sure that the VF's type is what this holding was to set.

        :raises HostError: it is not
        """
        if current != self.access.baselines.notes(
                device.stable_id, device.assignment_uuid).get('type'):
            raise exception.HostError(
                path=device.address,
                reason=f'it has type {current}, which this holding did not '
                       f'set')

    def _type_id(self, device: base.HostDevice) -> str:
        """What the driver calls the type now.

        :raises NoDriverCapacity: the VF cannot be given it
        """
        types = vgpu_sysfs.creatable_vgpu_types(
            self.access.sysfs, self._folder(device)
        )
        for each in types:
            if each.name == device.vgpu_type:
                return each.type_id
        raise exception.NoDriverCapacity(
            path=device.address,
            reason=f'it cannot be given type {device.vgpu_type} now, but '
                   f'{", ".join(each.name for each in types) or "none"}')

    def _set(self, device: base.HostDevice, type_id: str) -> None:
        self.access.binder.write(
            f'bus/pci/devices/{device.address}/{vgpu_sysfs.CURRENT}', type_id)
        found = self._current(device)
        if found != type_id:
            raise exception.HostError(
                path=device.address,
                reason=f'its type is {found} after {type_id} was set')
