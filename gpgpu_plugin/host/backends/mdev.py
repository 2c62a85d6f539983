# SPDX-License-Identifier: Apache-2.0
"""vGPUs that are mdevs: created for one assignment, removed after it.

The UUID of an mdev is that of the assignment, so an mdev never belongs to
another one. The plugin writes to sysfs itself; libvirt defines no node device.
Source: Linux, Documentation/driver-api/vfio-mediated-device.rst.
"""

from __future__ import annotations

import os

from gpgpu_plugin import exception
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.host.backends import nvidia_placement
from gpgpu_plugin.host.cleaning import steps
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import vgpu_sysfs


class MdevBackend(base.Backend):
    """Backend that creates mdevs on a GPU, or one on each of its VFs."""

    order = 100

    def handles(self, device: base.HostDevice) -> bool:
        if pci.function_id_of(device.stable_id) != device.stable_id:
            return True
        # The cleaning of a VF after a restore of the database names no type.
        may_have_one = not device.is_passthrough or (
            device.cleaning is not None
            and pci.pf_of(device.stable_id) is not None)
        return may_have_one and bool(self.access.sysfs.names(
            f'{self._parent(device)}/{vgpu_sysfs.MDEV_TYPES}'))

    def prepare(self, device: base.HostDevice) -> None:
        self._check_parent(device)
        type_id, available = self._type(device)
        if self._existing_type(device) != type_id:
            self._create(device, type_id, available)
        nvidia_placement.set_placement(
            self.access, device, f'bus/mdev/devices/{device.assignment_uuid}')

    def release(self, device: base.HostDevice) -> None:
        if self._existing_type(device) is None:
            return
        self.access.binder.write(
            f'bus/mdev/devices/{device.assignment_uuid}/remove', '1')
        if self._existing_type(device) is not None:
            raise exception.HostError(
                path=device.address,
                reason=f'mdev {device.assignment_uuid} is still there after '
                       f'it was removed')

    def clean(self, device: base.HostDevice) -> base.CleanVerdict:
        self.release(device)
        facts = steps.host_driver_facts(
            self.access.sysfs, self._parent(device))
        return base.CleanVerdict(
            steps=cleaning.OF_MDEVS, results=(cleaning.StepResult(
                step=cleaning.HOST_DRIVER, outcome=cleaning.StepOutcome.PASSED,
                reason=f'mdev {device.assignment_uuid} is removed, and driver '
                       f'{facts["driver"]} {facts["version"]} manages its '
                       f'memory', facts=facts),))

    def attachment(self, device: base.HostDevice) -> base.Attachment:
        if self._existing_type(device) is None:
            raise exception.HostError(
                path=device.address,
                reason=f'mdev {device.assignment_uuid} is not there')
        return base.Attachment(mdev=device.assignment_uuid)

    def _create(self, device: base.HostDevice, type_id: str,
                available: int | None) -> None:
        if available == 0:
            raise exception.NoDriverCapacity(
                path=device.address,
                reason=f'the driver creates no more vGPUs of type '
                       f'{device.vgpu_type} ({type_id}), though the '
                       f'conductor counted on one')
        self.access.binder.write(
            f'{vgpu_sysfs.PARENTS}/{device.address}/{vgpu_sysfs.MDEV_TYPES}/'
            f'{type_id}/create', device.assignment_uuid)
        if self._existing_type(device) != type_id:
            raise exception.HostError(
                path=device.address,
                reason=f'mdev {device.assignment_uuid} of type {type_id} is '
                       f'not there after it was created')

    def _parent(self, device: base.HostDevice) -> str:
        return (
            f'{self.access.sysfs.root}/{vgpu_sysfs.PARENTS}/{device.address}'
        )

    def _check_parent(self, device: base.HostDevice) -> None:
        """Check that the device's own GPU or VF is at the address.

        :raises HostError: another one or none is there
        """
        parent_id = pci.function_id_of(device.stable_id)
        function = scanner.scan_function(self.access.sysfs, device.address)
        if function is None or function.id != parent_id:
            raise exception.HostError(
                path=device.address, reason=f'{parent_id} is not there')

    def _type(self, device: base.HostDevice) -> tuple[str, int | None]:
        """Return the driver's id of the type and how many more it creates.

        The id is read each time, since it may differ between versions of the
        driver.

        :raises HostError: the driver has no such type
        """
        try:
            types = vgpu_sysfs.mdev_types(
                self.access.sysfs, self._parent(device), empty=False)
        except OSError as exc:
            raise exception.HostError(
                path=device.address,
                reason=f'its vGPU types cannot be read: {exc.strerror}',
            ) from None
        for listed, available in types:
            if listed.name == device.vgpu_type:
                return listed.type_id, available
        names = ', '.join(listed.name for listed, _ in types) or 'none'
        raise exception.HostError(
            path=device.address,
            reason=f'it has no vGPU type {device.vgpu_type}, only {names}: '
                   f"is the vendor's driver loaded?")

    def _existing_type(self, device: base.HostDevice) -> str | None:
        """Return the driver's id of the type that the assignment's mdev has.

        :returns: None: there is no mdev
        :raises HostError: the mdev is on another GPU, or is being removed
        """
        path = (f'{self.access.sysfs.root}/bus/mdev/devices/'
                f'{device.assignment_uuid}')
        if not device.assignment_uuid:
            return None
        if not os.path.lexists(path):
            self._check_removed(device)
            return None
        parent = os.path.basename(os.path.dirname(os.path.realpath(path)))
        if parent != device.address:
            raise exception.HostError(
                path=device.address,
                reason=f'mdev {device.assignment_uuid} is on {parent}')
        return self.access.sysfs.link(f'{path}/mdev_type') or 'unknown'

    def _check_removed(self, device: base.HostDevice) -> None:
        """Check that no removal of the mdev is unfinished.

        The kernel removes an mdev from the bus at once, but from its parent
        only when no process has it open any more.
        """
        if os.path.lexists(
                f'{self._parent(device)}/{device.assignment_uuid}'):
            raise exception.HostError(
                path=device.address,
                reason=f'mdev {device.assignment_uuid} is being removed, and '
                       f'a process still has it open')
