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
"""Assignment of whole PCI functions, bound to vfio-pci.

This is the common part of the backends for whole GPUs and plain VFs. A GPU is
assigned with all functions that belong to it (gpgpu_plugin.domain.gpu). A
function that was designated stays bound to vfio-pci while no guest has it.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpgpu_plugin import exception
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.vfio import binding

# What must be the same after a reset. A VF's number is a part of its id.
_IDENTITY = ('id', 'vendor', 'device', 'subsystem_vendor', 'subsystem',
             'revision', 'class_code', 'serial', 'dsn')


class WholeFunctionBackend(base.Backend):
    """Backend that binds functions to vfio-pci and resets them afterwards."""

    def prepare(self, device: base.HostDevice) -> None:
        functions = self._functions(device)
        if functions[0].iommu_group is None:
            raise exception.HostNotReady(
                path=device.address,
                reason='it is in no IOMMU group: is the IOMMU on (firmware: '
                       'VT-d or AMD-Vi; kernel: intel_iommu=on)?')
        if functions[0].used_by in (
                device_rules.DeviceUser.MDEV, device_rules.DeviceUser.VF):
            raise exception.HostError(
                path=device.address,
                reason='vGPUs exist on it, so it cannot be passed through '
                       'whole')
        # Every configuration space is read before the first driver is
        # unbound: a function that cannot be read is left as it is.
        shapes = [self._shape(function) for function in functions]
        for function, shape in zip(functions, shapes, strict=True):
            self.access.baselines.record(
                function.id, device.assignment_uuid, shape,
                {'driver': function.driver})
        for function in functions:
            self.access.binder.bind(function)

    def release(self, device: base.HostDevice) -> None:
        functions = self._functions(device)
        if functions[0].used_by == device_rules.DeviceUser.VFIO:
            # Unbinding would wait until it is closed.
            raise exception.HostError(
                path=device.address, reason='a process still has it open')
        for function in functions:
            if self.access.is_designated(function):
                self.access.binder.bind(function)
            else:
                self.access.binder.unbind(function)

    def clean(self, device: base.HostDevice) -> base.CleanVerdict:
        try:
            changes = self._reset_and_compare(device)
        except exception.HostNotReady:
            raise
        except exception.HostError as exc:
            return base.CleanVerdict(passed=False, evidence=str(exc))
        return base.CleanVerdict(
            passed=not changes, evidence='; '.join(
                changes or [
                    f'{device.address} was reset and matches its baseline']))

    def attachment(self, device: base.HostDevice) -> base.Attachment:
        return base.Attachment(functions=tuple(
            function.address for function in self._functions(device)))

    def _reset_and_compare(self, device: base.HostDevice) -> list[str]:
        """Reset the device; return the changes by the reset and the guest."""
        before = self._functions(device)[0]
        self.release(device)
        self.access.binder.reset(before)
        functions = self._functions(device)
        changes = _changes(before, functions[0]) + [
            f'{function.address} differs from its baseline: {difference}'
            for function in functions
            for difference in self.access.baselines.differences(
                function.id, device.cleaning or device.assignment_uuid,
                self._shape(function))]
        if not changes:
            self._give_back(device, functions)
        return changes

    def _give_back(self, device: base.HostDevice,
                   functions: Iterable[pci.PCIFunction]) -> None:
        """Bind functions to the drivers that they had before the guest.

        After that a vGPU driver can create vGPUs on the GPU again.
        """
        for function in functions:
            driver = self.access.baselines.notes(
                function.id, device.assignment_uuid).get('driver')
            if driver not in (None, binding.VFIO) and (
                    not self.access.is_designated(function)):
                self.access.binder.give_back(function)

    def _shape(self, function: pci.PCIFunction) -> dict[str, str]:
        return config_space.shape(self.access.binder.config(function))

    def _functions(self, device: base.HostDevice,
                   ) -> tuple[pci.PCIFunction, ...]:
        """Return the device's function and its companions.

        :raises HostError: another device or none is at the address, or it does
            not answer, the host needs it, or it shares an IOMMU group
        """
        functions = scanner.scan_card(self.access.sysfs, device.address)
        if not functions or functions[0].id != device.stable_id:
            raise exception.HostError(
                path=device.address,
                reason=f'{device.stable_id} is not there')
        refusal = gpu_rules.passthrough_refusal(functions[0])
        if refusal is not None:
            raise exception.HostError(path=device.address, reason=refusal)
        return functions


def _changes(before: pci.PCIFunction, after: pci.PCIFunction) -> list[str]:
    """Return how the identity of a function differs after the reset."""
    return [f'{name} was {getattr(before, name)}, is {getattr(after, name)}'
            for name in _IDENTITY
            if getattr(before, name) != getattr(after, name)]
