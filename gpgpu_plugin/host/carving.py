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
"""What sysfs says of vGPUs: the types of a function, and what is there.

Sources: Linux, Documentation/ABI/testing/sysfs-bus-vfio-mdev; NVIDIA vGPU
software user guide (``nvidia/creatable_vgpu_types`` and
``nvidia/current_vgpu_type`` of a VF, kernel 6.8 and later).
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Collection
from collections.abc import Iterable

from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu_type
from gpgpu_plugin.host import sysfs as sysfs_mod

PARENTS = 'class/mdev_bus'
MDEV_TYPES = 'mdev_supported_types'
CURRENT = 'nvidia/current_vgpu_type'
CREATABLE = 'nvidia/creatable_vgpu_types'
NO_TYPE = '0'
_PCI_API = 'vfio-pci'

_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


def look(sysfs: sysfs_mod.Sysfs, folder: str,
         names: Collection[str]) -> dict[str, object]:
    """The fields of a PCIFunction that tell of vGPUs on it.

    :param names: what is in the function's folder
    :raises OSError: something is there and cannot be read
    """
    if MDEV_TYPES in names:
        mdevs = tuple(sorted(filter(_UUID.fullmatch, names)))
        return {'vgpu_seats': pci.SEAT_MDEV, 'carved': mdevs,
                'vgpu_types': mdev_types(sysfs, folder, empty=not mdevs)}
    current = (sysfs.read(f'{folder}/{CURRENT}') if 'nvidia' in names
               else None)
    if current is None:
        return {}
    if current != NO_TYPE:
        # What else could be carved is not what is asked here.
        return {'vgpu_seats': pci.SEAT_VF, 'carved': (current,),
                'vgpu_types': None}
    return {'vgpu_seats': pci.SEAT_VF,
            'vgpu_types': creatable(sysfs, folder)}


def mdev_types(sysfs: sysfs_mod.Sysfs, folder: str, *, empty: bool,
               ) -> tuple[vgpu_type.VGPUType, ...]:
    """Types below ``mdev_supported_types``, by name.

    :param empty: whether the function has no mdev, so that what is
        available now is what fits at most
    :raises OSError: something is there and cannot be read
    """
    found = []
    for type_id in sysfs.names(f'{folder}/{MDEV_TYPES}'):
        path = f'{folder}/{MDEV_TYPES}/{type_id}'
        # Others, such as vfio-ccw, are no PCI devices to a guest.
        if sysfs.read(f'{path}/device_api') not in (None, _PCI_API):
            continue
        available = sysfs.read(f'{path}/available_instances')
        found.append(vgpu_type.from_mdev(
            type_id, sysfs.read(f'{path}/name'),
            sysfs.read(f'{path}/description'),
            int(available) if empty and available else None))
    return tuple(sorted(found, key=lambda each: each.name))


def creatable(sysfs: sysfs_mod.Sysfs, folder: str,
              ) -> tuple[vgpu_type.VGPUType, ...]:
    """Types that a VF can be given now, by name.

    :raises OSError: they cannot be read
    """
    return vgpu_type.from_creatable(
        sysfs.read(f'{folder}/{CREATABLE}') or '')


def gather(functions: Iterable[pci.PCIFunction]) -> list[pci.PCIFunction]:
    """The functions, with the types of VFs at their PF.

    A VF says what is possible now; only if no VF of the PF has a vGPU that is
    all that the card can be carved into. VFs that know no types are parts of
    the card as they are, one of so many.
    """
    functions = list(functions)
    vfs: dict[str, list[pci.PCIFunction]] = collections.defaultdict(list)
    for each in functions:
        if each.pf is not None:
            vfs[each.pf].append(each)
    return [
        dataclasses.replace(each, vgpu_seats=pci.SEAT_VF,
                            vgpu_types=_types_of(vfs[each.id]))
        if each.id in vfs and pci.can_be_gpu(each.class_code)
        # They are the card's, and said there.
        else dataclasses.replace(each, vgpu_types=())
        if each.pf is not None and each.vgpu_types != ()
        else each for each in functions]


def _types_of(vfs: list[pci.PCIFunction],
              ) -> tuple[vgpu_type.VGPUType, ...] | None:
    if all(vf.vgpu_seats is None for vf in vfs):
        return (vgpu_type.VGPUType(
            name=f'vf{len(vfs)}', type_id=str(len(vfs)),
            max_instances=len(vfs)),)
    if any(vf.carved for vf in vfs):
        return None
    types = next(vf.vgpu_types for vf in vfs if vf.vgpu_seats is not None)
    return None if types is None else tuple(
        dataclasses.replace(
            each, max_instances=None if each.max_instances is None
            else min(each.max_instances, len(vfs))) for each in types)
