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
import typing
from collections.abc import Collection
from collections.abc import Iterable

from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import vgpu_type
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod

PARENTS = 'class/mdev_bus'
MDEV_TYPES = 'mdev_supported_types'
AVAILABLE = 'available_instances'
CURRENT = 'nvidia/current_vgpu_type'
CREATABLE = 'nvidia/creatable_vgpu_types'
PLACEMENT = 'nvidia/placement_id'
NO_TYPE = '0'
_PCI_API = 'vfio-pci'

_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


def read_vgpu_fields(sysfs: sysfs_mod.Sysfs, folder: str,
         names: Collection[str]) -> dict[str, object]:
    """The fields of a PCIFunction that tell of vGPUs on it.

    :param names: what is in the function's folder
    :raises OSError: something is there and cannot be read
    """
    if MDEV_TYPES in names:
        mdevs = tuple(sorted(filter(_UUID.fullmatch, names)))
        found = mdev_types(sysfs, folder, empty=not mdevs)
        return {
            'vgpu_mechanism': pci.VGPUMechanism.MDEV,
            'existing_vgpus': mdevs,
            'vgpu_types': tuple(kind for kind, _ in found),
            'driver_capacity': vgpu_type.DriverCapacity(
                existing=mdevs,
                available={kind.name: available for kind, available in found},
            ),
        }
    current = (sysfs.read(f'{folder}/{CURRENT}') if 'nvidia' in names
               else None)
    if current is None:
        return {}
    if current != NO_TYPE:
        # What else could be carved is not what is asked here.
        return {
            'vgpu_mechanism': pci.VGPUMechanism.VF,
            'existing_vgpus': (current,),
            'vgpu_types': None,
        }
    types = creatable_vgpu_types(sysfs, folder)
    return {'vgpu_mechanism': pci.VGPUMechanism.VF, 'vgpu_types': types,
            'driver_capacity': vgpu_type.DriverCapacity(
                available={each.name: None for each in types})}


def read_driver_capacity(sysfs: sysfs_mod.Sysfs, address: str, stable_id: str,
                 ) -> tuple[str, vgpu_type.DriverCapacity | None]:
    """What can be carved out of a card now, beside what is there.

    :param address: of the card or of a VF of it
    :param stable_id: of a vGPU's place on it
    :returns: the card's stable id, and what its driver tells, if it does
    :raises OSError: something is there and cannot be read
    """
    pf_id = pci.pf_of(stable_id)
    if pf_id is None:
        return pci.function_id_of(stable_id), _look(
            sysfs, f'{sysfs.root}/{PARENTS}/{address}').get('driver_capacity')
    pf = sysfs.link(f'{sysfs.devices}/{address}/physfn')
    vfs = []
    for name in sysfs.names(f'{sysfs.devices}/{pf}'):
        if name.startswith('virtfn'):
            found = _look(sysfs, f'{sysfs.devices}/{pf}/{name}')
            vfs.append(
                (
                    f'{pf_id}{pci.VF}{name.removeprefix("virtfn")}',
                    found.get('existing_vgpus', ()),
                    found.get('driver_capacity'),
                )
            )
    return pf_id, _together(vfs)


def _look(sysfs: sysfs_mod.Sysfs, folder: str) -> dict[str, typing.Any]:
    return read_vgpu_fields(sysfs, folder, sysfs.names(folder))


def _together(vfs: Iterable[tuple[
        str, tuple[str, ...], vgpu_type.DriverCapacity | None]],
        ) -> vgpu_type.DriverCapacity | None:
    """What the VFs of a card tell of it: one that is free names what it can
    be given, but not how many of them could be.

    :param vfs: of each its stable id, what it has, and what it tells
    :returns: None: none of them can be asked
    """
    vfs = list(vfs)
    told = [creatable for _, carved, creatable in vfs
            if creatable is not None and not carved]
    if not told:
        return None
    return vgpu_type.DriverCapacity(
        existing=tuple(sorted(name for name, carved, _ in vfs if carved)),
        available={name: None for each in told
              for name, count in sorted(each.available.items()) if count != 0})


def mdev_types(sysfs: sysfs_mod.Sysfs, folder: str, *, empty: bool,
               ) -> tuple[tuple[vgpu_type.VGPUType, int | None], ...]:
    """Types below ``mdev_supported_types``, by name, and how many more of
    each can be made now.

    :param empty: whether the function has no mdev, so that this is what fits
        at most
    :raises OSError: something is there and cannot be read
    """
    found = []
    for type_id in sysfs.names(f'{folder}/{MDEV_TYPES}'):
        path = f'{folder}/{MDEV_TYPES}/{type_id}'
        # Others, such as vfio-ccw, are no PCI devices to a guest.
        if sysfs.read(f'{path}/device_api') not in (None, _PCI_API):
            continue
        text = sysfs.read(f'{path}/{AVAILABLE}')
        available = int(text) if text else None
        found.append((vgpu_type.from_mdev(
            type_id, sysfs.read(f'{path}/name'),
            sysfs.read(f'{path}/description'),
            available if empty else None), available))
    return tuple(sorted(found, key=lambda each: each[0].name))


def creatable_vgpu_types(sysfs: sysfs_mod.Sysfs, folder: str,
              ) -> tuple[vgpu_type.VGPUType, ...]:
    """Types that a VF can be given now, by name.

    :raises OSError: they cannot be read
    """
    return vgpu_type.from_creatable(
        sysfs.read(f'{folder}/{CREATABLE}') or '')


def gather(functions: Iterable[pci.PCIFunction]) -> list[pci.PCIFunction]:
    """The functions, with the types of VFs at their PF.

    creatable_vgpu_types of a VF is what is possible now; only if no VF of the
    PF has a vGPU that is all that the card can be carved into. VFs that know
    no types are parts of the card as they are, one of so many.
    """
    functions = list(functions)
    vfs: dict[str, list[pci.PCIFunction]] = collections.defaultdict(list)
    for each in functions:
        if each.pf is not None:
            vfs[each.pf].append(each)
    return [
        dataclasses.replace(
            each,
            vgpu_mechanism=pci.VGPUMechanism.VF,
            vgpu_types=_types_of(vfs[each.id]),
            driver_capacity=_together(
                (vf.id, vf.existing_vgpus, vf.driver_capacity)
                for vf in vfs[each.id]
            ),
        )
        if each.id in vfs and pci.can_be_gpu(each.class_code)
        # They are the card's, and said there.
        else dataclasses.replace(each, vgpu_types=(), driver_capacity=None)
        if each.pf is not None and each.vgpu_types != ()
        else each
        for each in functions
    ]


def _types_of(vfs: list[pci.PCIFunction],
              ) -> tuple[vgpu_type.VGPUType, ...] | None:
    if all(vf.vgpu_mechanism is None for vf in vfs):
        return (vgpu_type.of_plain_vfs(len(vfs)),)
    # One that has a vGPU says what else is true: mdev parents list all types
    # at all times, and only how many fit is not told then.
    carved = [vf for vf in vfs if vf.existing_vgpus]
    types = next(vf.vgpu_types for vf in carved or vfs
                 if vf.vgpu_mechanism is not None)
    return None if types is None else tuple(
        dataclasses.replace(
            each, max_instances=None if each.max_instances is None
            else min(each.max_instances, len(vfs))) for each in types)
