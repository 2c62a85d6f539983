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
"""Where in its card's framebuffer a vGPU is to be, told to NVIDIA's driver.

In mixed-size mode a vGPU of a size fits at some places only, and the driver
takes one itself unless it is told: then what still fits would be another
thing than what the conductor reckons.
Source: NVIDIA vGPU software user guide, "vGPU Placements for GPUs in
Mixed-Size Mode". ``placement_id`` reads ``Not Applicable`` while no guest
uses the vGPU; then it cannot be changed.
"""

from __future__ import annotations

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.host import base
from gpgpu_plugin.host.discovery import vgpu_sysfs

LOG = logging.getLogger(__name__)


def place(access: base.Access, device: base.HostDevice, folder: str) -> None:
    """Put a vGPU, which is there, where it is to be.

    Drivers before mixed-size mode cannot be told; then theirs decides.

    :param folder: of the vGPU, relative to the root of sysfs
    :raises HostError: the driver refuses, or has it somewhere else
    """
    if device.placement_id is None:
        return
    path = f'{folder}/{vgpu_sysfs.PLACEMENT}'
    wanted = str(device.placement_id)
    found = access.sysfs.read(f'{access.sysfs.root}/{path}')
    if found is None:
        LOG.warning('%s: the driver cannot be told that the vGPU is to be at '
                    '%s of its card', device.address, wanted)
        return
    if found == wanted:
        return
    access.binder.write(path, wanted)
    found = access.sysfs.read(f'{access.sysfs.root}/{path}') or ''
    if found.isdecimal() and found != wanted:
        raise exception.HostError(
            path=path, reason=f'the vGPU is at {found} after {wanted} was '
                              f'set')
