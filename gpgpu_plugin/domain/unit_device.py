# SPDX-License-Identifier: Apache-2.0
"""Which device a unit of a claim gets: the GPU, a VF or an mdev row.

The claim and the plan of a drain (domain.what_if) select units of GPUs; this
is the rule of both for what comes next.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import group as group_mod
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.allocation import offer


def of_unit(group: group_mod.GroupCapacity, unit: offer.Selection,
            taken: Collection[str]) -> group_mod.Device:
    """Return the device of a unit; an mdev row may be new.

    :param taken: ids of devices that other units of the claim got
    """
    gpu = next(gpu for gpu in group.gpus if gpu.id == unit.gpu_id)
    if unit.vgpu_type == naming.PASSTHROUGH:
        return gpu
    free = (group.free_vfs(gpu) if gpu.has_vf_vgpus
            else group.free_mdev_rows(gpu))
    found = next((device for device in free if device.id not in taken), None)
    return found or group_mod.Device(
        id=free_mdev_id(gpu.id, {
            *taken, *(child.id for child in group.children[gpu.id])}),
        parent_id=gpu.id, kind=device_rules.DeviceKind.MDEV)


def free_mdev_id(gpu_id: str, existing: Collection[str]) -> str:
    """Return the stable id of a new mdev row of a GPU.

    :param existing: stable ids of the rows that exist
    """
    ids = (pci.mdev_row_id(gpu_id, number) for number in itertools.count())
    return next(mdev_id for mdev_id in ids if mdev_id not in existing)
