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
"""vGPUs that are mdevs: made for one holding, removed after it.

The UUID of an mdev is that of the assignment, so that it belongs to one
holding for ever. libvirt is not asked, and nothing is defined in it.
Source: Linux, Documentation/driver-api/vfio-mediated-device.rst.
"""

from __future__ import annotations

import os

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.host.backends import nvidia_placement
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import vgpu_sysfs


class MdevBackend(base.Backend):
    """On a card, or on a VF of it that takes one mdev."""

    order = 10

    def handles(self, device: base.HostDevice) -> bool:
        if pci.function_id_of(device.stable_id) != device.stable_id:
            return True
        return device.vgpu_type is not None and bool(
            self.access.sysfs.names(
                f'{self._parent(device)}/{vgpu_sysfs.MDEV_TYPES}'))

    def prepare(self, device: base.HostDevice) -> None:
        self._check(device)
        type_id, available = self._type(device)
        if self._made(device) == type_id:
            self._place(device)
            return
        path = (
            f'{vgpu_sysfs.PARENTS}/{device.address}/{vgpu_sysfs.MDEV_TYPES}/'
            f'{type_id}'
        )
        if available == 0:
            raise exception.NoDriverCapacity(
                path=device.address,
                reason=f'it has no room for another {device.vgpu_type} '
                       f'({type_id}), though it should')
        self.access.binder.write(f'{path}/create', device.assignment_uuid)
        if self._made(device) != type_id:
            raise exception.HostError(
                path=device.address,
                reason=f'no mdev {device.assignment_uuid} of type {type_id} '
                       f'is there after it was made')
        self._place(device)

    def _place(self, device: base.HostDevice) -> None:
        nvidia_placement.place(self.access, device,
                      f'bus/mdev/devices/{device.assignment_uuid}')

    def release(self, device: base.HostDevice) -> None:
        if self._made(device) is None:
            return
        self.access.binder.write(
            f'bus/mdev/devices/{device.assignment_uuid}/remove', '1')
        if self._made(device) is not None:
            raise exception.HostError(
                path=device.assignment_uuid,
                reason='the mdev is still there after it was removed')

    def clean(self, device: base.HostDevice) -> base.CleanVerdict:
        self.release(device)
        return base.CleanVerdict(
            passed=True,
            evidence=f'mdev {device.assignment_uuid} is removed')

    def attachment(self, device: base.HostDevice) -> base.Attachment:
        if self._made(device) is None:
            raise exception.HostError(
                path=device.address,
                reason=f'mdev {device.assignment_uuid} is not there')
        return base.Attachment(mdev=device.assignment_uuid)

    def _parent(self, device: base.HostDevice) -> str:
        return (
            f'{self.access.sysfs.root}/{vgpu_sysfs.PARENTS}/{device.address}'
        )

    def _check(self, device: base.HostDevice) -> None:
        """Make sure that the card at the address is the one that is meant.

        :raises HostError: it is another one, or none
        """
        card = pci.function_id_of(device.stable_id)
        function = scanner.scan_function(self.access.sysfs, device.address)
        if function is None or function.id != card:
            raise exception.HostError(
                path=device.address, reason=f'{card} is not there')

    def _type(self, device: base.HostDevice) -> tuple[str, int | None]:
        """What the driver calls the type now, which may change with it, and
        how many more of it can be made.

        :raises HostError: it has no such type
        """
        try:
            types = vgpu_sysfs.mdev_types(
                self.access.sysfs, self._parent(device), empty=False)
        except OSError as exc:
            raise exception.HostError(
                path=device.address,
                reason=f'its types cannot be read: {exc.strerror}') from None
        for each, available in types:
            if each.name == device.vgpu_type:
                return each.type_id, available
        names = ', '.join(each.name for each, _ in types) or 'none'
        raise exception.HostError(
            path=device.address,
            reason=f'it has no type {device.vgpu_type}, but {names}: is its '
                   f'driver loaded?')

    def _made(self, device: base.HostDevice) -> str | None:
        """What the driver calls the type of the mdev; None: there is none.

        :raises HostError: it is another card's, or about to go
        """
        path = (f'{self.access.sysfs.root}/bus/mdev/devices/'
                f'{device.assignment_uuid}')
        if not device.assignment_uuid:
            return None
        if not os.path.lexists(path):
            # The kernel takes it from the bus at once, and from its parent
            # when nobody has it open any more.
            if os.path.lexists(
                    f'{self._parent(device)}/{device.assignment_uuid}'):
                raise exception.HostError(
                    path=device.address,
                    reason=f'mdev {device.assignment_uuid} is being removed, '
                           f'and a process still has it open')
            return None
        parent = os.path.basename(os.path.dirname(os.path.realpath(path)))
        if parent != device.address:
            raise exception.HostError(
                path=device.address,
                reason=f'mdev {device.assignment_uuid} is on {parent}')
        return self.access.sysfs.link(f'{path}/mdev_type') or 'unknown'
