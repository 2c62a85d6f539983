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

A card goes with all its functions (gpgpu_plugin.domain.gpu). One that was
designated for passthrough stays bound when no guest has it.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpgpu_plugin import exception
from gpgpu_plugin.domain import gpu as card_mod
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.vfio import binding

# What must be the same after a reset; a VF's number may differ only with it.
_IDENTITY = ('id', 'vendor', 'device', 'subsystem_vendor', 'subsystem',
             'revision', 'class_code', 'serial', 'dsn')


class PassthroughBackend(base.Backend):
    """Binds before a guest, gives back after it, resets between two."""

    order = 90

    def __init__(self, access: base.Access) -> None:
        super().__init__(access)
        self._baselines = access.baselines
        self._sysfs = access.sysfs
        self._binder = access.binder
        self._is_designated = access.is_designated

    def handles(self, device: base.HostDevice) -> bool:
        return device.vgpu_type is None

    def prepare(self, device: base.HostDevice) -> None:
        card = self._card(device)
        if card[0].iommu_group is None:
            raise exception.HostNotReady(
                path=device.address,
                reason='it is in no IOMMU group: is the IOMMU on (firmware: '
                       'VT-d or AMD-Vi; kernel: intel_iommu=on)?')
        if card[0].used_by in ('mdev', 'vf'):
            raise exception.HostError(
                path=device.address,
                reason='vGPUs are carved out of it, so it cannot be given '
                       'whole')
        shapes = [self._shape(each) for each in card]
        for each, shape in zip(card, shapes, strict=True):
            self._baselines.record(
                each.id, device.assignment_uuid, shape,
                {'driver': each.driver})
        for each in card:
            self._binder.bind(each)

    def release(self, device: base.HostDevice) -> None:
        card = self._card(device)
        if card[0].used_by == 'vfio':
            # Unbinding would wait until it is closed.
            raise exception.HostError(
                path=device.address, reason='a process still has it open')
        for each in card:
            if self._is_designated(each):
                self._binder.bind(each)
            else:
                self._binder.unbind(each)

    def clean(self, device: base.HostDevice) -> base.CleanVerdict:
        try:
            before = self._card(device)[0]
            self.release(device)
            self._binder.reset(before)
            card = self._card(device)
            changed = _changes(before, card[0]) + [
                f'{each.address}: since before the guest, {difference}'
                for each in card for difference in (
                    self._baselines.differences(
                        each.id, device.cleaning or device.assignment_uuid,
                        self._shape(each)))]
            if not changed:
                self._give_back(device, card)
        except exception.HostNotReady:
            raise
        except exception.HostError as exc:
            return base.CleanVerdict(passed=False, evidence=str(exc))
        return base.CleanVerdict(
            passed=not changed, evidence='; '.join(
                changed or [f'{device.address} was reset, and is the same']))

    def _give_back(self, device: base.HostDevice,
                   card: Iterable[pci.PCIFunction]) -> None:
        """Let the host's drivers have what they had before the guest, so
        that vGPUs can be carved out of it again."""
        for each in card:
            driver = self._baselines.notes(
                each.id, device.assignment_uuid).get('driver')
            if driver not in (None, binding.VFIO) and (
                    not self._is_designated(each)):
                self._binder.give_back(each)

    def _shape(self, function: pci.PCIFunction) -> dict[str, str]:
        return config_space.shape(self._binder.config(function))

    def attachment(self, device: base.HostDevice) -> base.Attachment:
        return base.Attachment(functions=tuple(
            each.address for each in self._card(device)))

    def _card(self, device: base.HostDevice) -> tuple[pci.PCIFunction, ...]:
        """The device and its companions, once it is sure that it is this one
        and goes to nobody else with them.

        :raises HostError: another device, or none, is at the address, or it
            does not answer, or shares an IOMMU group
        """
        card = scanner.scan_card(self._sysfs, device.address)
        if not card or card[0].id != device.stable_id:
            raise exception.HostError(
                path=device.address,
                reason=f'{device.stable_id} is not there')
        problem = card_mod.passthrough_refusal(card[0])
        if problem is not None:
            raise exception.HostError(path=device.address, reason=problem)
        return card


def _changes(before: pci.PCIFunction, after: pci.PCIFunction) -> list[str]:
    """What of a function is not as it was before the reset."""
    return [f'{name} was {getattr(before, name)}, is {getattr(after, name)}'
            for name in _IDENTITY
            if getattr(before, name) != getattr(after, name)]
