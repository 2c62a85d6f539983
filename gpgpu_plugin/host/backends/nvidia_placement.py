# SPDX-License-Identifier: Apache-2.0
"""Placement of a vGPU in its GPU's framebuffer, through NVIDIA's driver.

In mixed-size mode a vGPU fits only at some placements. Unless it is given one,
the driver chooses a placement itself; the remaining capacity would then differ
from what the conductor calculated. Source: NVIDIA vGPU software user guide,
"vGPU Placements for GPUs in Mixed-Size Mode". ``placement_id`` reads ``Not
Applicable`` while no guest uses the vGPU; while one does, it cannot be
changed.
"""

from __future__ import annotations

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.host import base
from gpgpu_plugin.host.discovery import vgpu_sysfs

LOG = logging.getLogger(__name__)


def set_placement(access: base.Access, device: base.HostDevice,
                  folder: str) -> None:
    """Set the placement of an existing vGPU, if the device has one.

    Drivers older than mixed-size mode have no ``placement_id``; they choose
    the placement themselves.

    :param folder: folder of the vGPU, relative to the root of sysfs
    :raises HostError: the driver refuses it, or reports another placement
    :raises HalfPrepared: the privileged helper does not start
    """
    if device.placement_id is None:
        return
    path = f'{folder}/{vgpu_sysfs.PLACEMENT}'
    wanted = str(device.placement_id)
    found = access.sysfs.read(f'{access.sysfs.root}/{path}')
    if found is None:
        LOG.warning('%s: the driver has no %s, so placement %s of the vGPU '
                    'cannot be set; the driver chooses one',
                    device.address, path, wanted)
        return
    if found == wanted:
        return
    with base.changing():
        access.binder.write(path, wanted)
    found = access.sysfs.read(f'{access.sysfs.root}/{path}') or ''
    if found.isdecimal() and found != wanted:
        raise exception.HostError(
            path=device.address,
            reason=f'the vGPU is at placement {found} after {wanted} was '
                   f'set')
