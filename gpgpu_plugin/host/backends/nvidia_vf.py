# SPDX-License-Identifier: Apache-2.0
"""vGPUs that are VFs with a type, which NVIDIA's VFIO driver sets.

A VF has no name that ends with an assignment, as an mdev has. Therefore the
baseline notes which assignment sets its type before the type is set. The VF is
not touched for any other assignment. A cleaning clears the type whichever
assignment it was. Between two assignments a VF is reset, and its driver is
unbound and bound again, so that the driver keeps no state of the former guest.
The VF stays bound to that driver; libvirt does not bind it to another one.
Sources: NVIDIA vGPU software user guide, "Creating an NVIDIA
vGPU on a Linux with KVM hypervisor that uses a vendor-specific VFIO
framework"; NVIDIA's program sriov-manage, which unbinds and binds VFs in the
same way.
"""

from __future__ import annotations

from gpgpu_plugin import exception
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.host.backends import nvidia_placement
from gpgpu_plugin.host.cleaning import ladder
from gpgpu_plugin.host.cleaning import steps
from gpgpu_plugin.host.discovery import config_space
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import vgpu_sysfs


class NvidiaVFBackend(base.Backend):
    """Backend that sets and clears the vGPU type of a VF."""

    order = 200

    def handles(self, device: base.HostDevice) -> bool:
        # A cleaning after a restore of the database names no type.
        return ((not device.is_passthrough or device.cleaning is not None)
                and self._current_type(device) is not None)

    def prepare(self, device: base.HostDevice) -> None:
        ladder.check_idle(device.stable_id)
        vf = self._vf(device)
        current = self._current_type(device)
        if current != vgpu_sysfs.NO_TYPE:
            self._check_owner(device, current)
        else:
            wanted = self._type_id(device)
            baselines = self.access.baselines
            baselines.record(
                vf.id, device.assignment_uuid, self._shape(vf),
                had_guest=device.restored)
            # The id may differ from the one noted before, as after an upgrade
            # of the driver.
            baselines.note(vf.id, {'type': wanted})
            self._set_type(device, wanted)
        nvidia_placement.set_placement(
            self.access, device, f'bus/pci/devices/{device.address}')

    def release(self, device: base.HostDevice) -> None:
        vf = self._vf(device)
        if vf.used_by == device_rules.DeviceUser.VFIO:
            raise exception.HostError(
                path=device.address, reason='a process still has it open')
        current = self._current_type(device)
        if current == vgpu_sysfs.NO_TYPE:
            return
        self._check_owner(device, current)
        self._set_type(device, vgpu_sysfs.NO_TYPE)

    def clean(self, device: base.HostDevice) -> base.CleanVerdict:
        before = self._vf(device)
        self.release(device)
        return base.CleanVerdict(steps=device.steps, results=ladder.clean(
            steps.Target(device=device, access=self.access,
                         functions=(before,), read=lambda: (self._vf(device),),
                         after_reset=lambda: self._bind_again(
                            device, before))))

    def _bind_again(self, device: base.HostDevice,
                    vf: pci.PCIFunction) -> None:
        # Unbinding waits while a process has the VF open; release checked
        # that none has.
        self.access.binder.reprobe(vf)
        current = self._current_type(device)
        if current != vgpu_sysfs.NO_TYPE:
            raise exception.HostError(
                path=device.address,
                reason=f'its vGPU type is {current} after its driver was '
                       f'bound again')
        # The same type, if somebody sets it later, is not the plugin's.
        self.access.baselines.note(device.stable_id, {})

    def attachment(self, device: base.HostDevice) -> base.Attachment:
        self._vf(device)
        current = self._current_type(device)
        if current in (None, vgpu_sysfs.NO_TYPE):
            raise exception.HostError(
                path=device.address, reason='it has no vGPU type')
        self._check_owner(device, current)
        return base.Attachment(functions=(device.address,))

    def _vf(self, device: base.HostDevice) -> pci.PCIFunction:
        """Return the VF that is at the device's address.

        :raises HostError: another one or none is there, or it does not answer
        """
        vf = scanner.scan_function(self.access.sysfs, device.address)
        if vf is None or vf.id != device.stable_id:
            raise exception.HostError(
                path=device.address,
                reason=f'{device.stable_id} is not there')
        if vf.fault:
            raise exception.HostError(path=device.address, reason=vf.fault)
        return vf

    def _shape(self, vf: pci.PCIFunction) -> dict[str, str]:
        return config_space.shape(self.access.binder.config(vf))

    def _folder(self, device: base.HostDevice) -> str:
        return f'{self.access.sysfs.devices}/{device.address}'

    def _current_type(self, device: base.HostDevice) -> str | None:
        return self.access.sysfs.read(
            f'{self._folder(device)}/{vgpu_sysfs.CURRENT}')

    def _check_owner(self, device: base.HostDevice,
                     current: str | None) -> None:
        """Check that the VF's type was set for the device's assignment.

        When the VF is cleaned, it no longer has one.

        :raises HostError: it was set for another assignment, or by somebody
            else
        """
        assignment = (
            device.assignment_uuid if device.cleaning is None else None)
        if current != self.access.baselines.notes(
                device.stable_id, assignment).get('type'):
            raise exception.HostError(
                path=device.address,
                reason=f'it has vGPU type {current}, which was not set for '
                + (f'assignment {assignment}' if assignment else 'a server'))

    def _type_id(self, device: base.HostDevice) -> str:
        """Return the driver's id of a type that the VF can be given now.

        :raises NoDriverCapacity: the VF cannot be given the type
        """
        types = vgpu_sysfs.creatable_vgpu_types(
            self.access.sysfs, self._folder(device)
        )
        for listed in types:
            if listed.name == device.vgpu_type:
                return listed.type_id
        names = ', '.join(listed.name for listed in types) or 'none'
        raise exception.NoDriverCapacity(
            path=device.address,
            reason=f'its driver creates no vGPU of type {device.vgpu_type} '
                   f'now, only {names}')

    def _set_type(self, device: base.HostDevice, type_id: str) -> None:
        self.access.binder.write(
            f'bus/pci/devices/{device.address}/{vgpu_sysfs.CURRENT}', type_id)
        found = self._current_type(device)
        if found != type_id:
            raise exception.HostError(
                path=device.address,
                reason=f'its vGPU type is {found} after {type_id} was set')
