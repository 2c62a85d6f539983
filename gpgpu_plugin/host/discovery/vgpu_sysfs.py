# SPDX-License-Identifier: Apache-2.0
"""Reading of vGPUs in sysfs: types, existing vGPUs, driver reports.

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
from collections.abc import Mapping

from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod

PARENTS = 'class/mdev_bus'
MDEV_TYPES = 'mdev_supported_types'
AVAILABLE = 'available_instances'
CURRENT = 'nvidia/current_vgpu_type'
CREATABLE_VGPU_TYPES = 'nvidia/creatable_vgpu_types'
PLACEMENT = 'nvidia/placement_id'
NO_TYPE = '0'
_PCI_API = 'vfio-pci'

_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservedVGPUs:
    """The vGPUs of one function, as sysfs shows them.

    :ivar driver_capacity: None: the driver does not report its capacity
    """

    capability: vgpu.VGPUCapability
    driver_capacity: vgpu.DriverCapacity | None = None


def read_vgpus(sysfs: sysfs_mod.Sysfs, folder: str,
               names: Collection[str]) -> ObservedVGPUs | None:
    """Return the vGPUs of a function.

    :param names: names in the function's folder
    :returns: None: the function's driver has no vGPUs
    :raises OSError: an attribute exists and cannot be read
    """
    if MDEV_TYPES in names:
        return _read_mdevs(sysfs, folder, names)
    current = (sysfs.read(f'{folder}/{CURRENT}') if 'nvidia' in names
               else None)
    if current is None:
        return None
    if current != NO_TYPE:
        # The driver lists what this VF could be instead; that is no report.
        return ObservedVGPUs(capability=vgpu.VGPUCapability(
            mechanism=vgpu.VGPUMechanism.VF, types=None,
            existing_vgpus=(current,)))
    types = creatable_vgpu_types(sysfs, folder)
    return ObservedVGPUs(
        capability=vgpu.VGPUCapability(
            mechanism=vgpu.VGPUMechanism.VF, types=types),
        driver_capacity=vgpu.DriverCapacity(
            available={listed.name: None for listed in types}))


def _read_mdevs(sysfs: sysfs_mod.Sysfs, folder: str,
                names: Collection[str]) -> ObservedVGPUs:
    mdevs = tuple(sorted(filter(_UUID.fullmatch, names)))
    found = mdev_types(sysfs, folder, empty=not mdevs)
    return ObservedVGPUs(
        capability=vgpu.VGPUCapability(
            mechanism=vgpu.VGPUMechanism.MDEV,
            types=tuple(listed for listed, _ in found),
            existing_vgpus=mdevs),
        driver_capacity=vgpu.DriverCapacity(
            existing=mdevs, available={
                listed.name: available for listed, available in found}))


def read_driver_capacity(
    sysfs: sysfs_mod.Sysfs, address: str, stable_id: str
) -> tuple[str, vgpu.DriverCapacity | None]:
    """Return the driver's report on what it can create on a GPU now.

    :param address: of the GPU or of a VF of it
    :param stable_id: of an mdev row or a VF of it
    :returns: the GPU's stable id, and its driver's report, if there is one
    :raises OSError: an attribute exists and cannot be read
    """
    pf_id = pci.pf_of(stable_id)
    if pf_id is None:
        found = _read(sysfs, f'{sysfs.root}/{PARENTS}/{address}')
        return (pci.function_id_of(stable_id),
                found.driver_capacity if found is not None else None)
    pf = sysfs.link(f'{sysfs.devices}/{address}/physfn')
    vfs = {
        f'{pf_id}{pci.VF}{name.removeprefix("virtfn")}':
            _read(sysfs, f'{sysfs.devices}/{pf}/{name}')
        for name in sysfs.names(f'{sysfs.devices}/{pf}')
        if name.startswith('virtfn')}
    return pf_id, _capacity_of_vfs(vfs)


def _read(sysfs: sysfs_mod.Sysfs, folder: str) -> ObservedVGPUs | None:
    return read_vgpus(sysfs, folder, sysfs.names(folder))


def _capacity_of_vfs(vfs: Mapping[str, ObservedVGPUs | None],
                     ) -> vgpu.DriverCapacity | None:
    """Return the driver's report from all VFs of a GPU.

    A free VF lists the types that it can be given, but not for how many VFs
    each type is available.

    :param vfs: by stable id
    :returns: None: no VF is free
    """
    used = {stable_id for stable_id, vf in vfs.items()
            if vf is not None and vf.capability.existing_vgpus}
    reports = [vf.driver_capacity for stable_id, vf in vfs.items()
               if vf is not None and vf.driver_capacity is not None
               and stable_id not in used]
    if not reports:
        return None
    return vgpu.DriverCapacity(
        existing=tuple(sorted(used)),
        available={name: None for report in reports
                   for name, count in sorted(report.available.items())
                   if count != 0})


def mdev_types(sysfs: sysfs_mod.Sysfs, folder: str, *, empty: bool,
               ) -> tuple[tuple[vgpu.VGPUType, int | None], ...]:
    """Return the types below ``mdev_supported_types``, sorted by name.

    :param empty: whether the function has no mdev: only then the number of
        available instances is the maximum
    :returns: types, and how many more vGPUs of them can be created now
    :raises OSError: an attribute exists and cannot be read
    """
    found = []
    for type_id in sysfs.names(f'{folder}/{MDEV_TYPES}'):
        path = f'{folder}/{MDEV_TYPES}/{type_id}'
        # Others, such as vfio-ccw, are not PCI devices for a guest.
        if sysfs.read(f'{path}/device_api') not in (None, _PCI_API):
            continue
        text = sysfs.read(f'{path}/{AVAILABLE}')
        available = int(text) if text else None
        found.append((vgpu.type_from_mdev(
            type_id, sysfs.read(f'{path}/name'),
            sysfs.read(f'{path}/description'),
            available if empty else None), available))
    return tuple(sorted(found, key=lambda found: found[0].name))


def creatable_vgpu_types(sysfs: sysfs_mod.Sysfs, folder: str,
                         ) -> tuple[vgpu.VGPUType, ...]:
    """Return the types that a VF can be given now, sorted by name.

    :raises OSError: they cannot be read
    """
    return vgpu.types_from_sysfs(
        sysfs.read(f'{folder}/{CREATABLE_VGPU_TYPES}') or '')


def gather(functions: Iterable[pci.PCIFunction],
           observed: Mapping[str, ObservedVGPUs],
           ) -> dict[str, ObservedVGPUs]:
    """Return the vGPUs of functions by stable id, types of VFs at their PF.

    ``creatable_vgpu_types`` of a VF lists what is possible now. Only while no
    VF of the PF has a vGPU, this is everything that the GPU can be partitioned
    into. VFs without types are the parts themselves; their type is named after
    their number.

    :param observed: vGPUs as read, by stable id of the function
    """
    functions = list(functions)
    vfs: dict[str, list[str]] = collections.defaultdict(list)
    for function in functions:
        if function.pf is not None:
            vfs[function.pf].append(function.id)
    result = {}
    for function in functions:
        found = observed.get(function.id)
        if function.id in vfs and pci.can_be_gpu(function.class_code):
            result[function.id] = _of_pf(found, {
                vf: observed.get(vf) for vf in vfs[function.id]})
        elif found is not None:
            result[function.id] = found if function.pf is None else (
                ObservedVGPUs(capability=dataclasses.replace(
                    found.capability, types=())))
    return result


def _of_pf(found: ObservedVGPUs | None,
           vfs: Mapping[str, ObservedVGPUs | None]) -> ObservedVGPUs:
    """Return the vGPUs of a PF from those of its VFs."""
    return ObservedVGPUs(
        capability=vgpu.VGPUCapability(
            mechanism=vgpu.VGPUMechanism.VF,
            types=_types_of(list(vfs.values())),
            existing_vgpus=(found.capability.existing_vgpus
                            if found is not None else ())),
        driver_capacity=_capacity_of_vfs(vfs))


def _types_of(vfs: Collection[ObservedVGPUs | None],
              ) -> tuple[vgpu.VGPUType, ...] | None:
    known = [vf.capability for vf in vfs if vf is not None]
    if not known:
        return (vgpu.type_of_plain_vfs(len(vfs)),)
    # mdev parents list all types at all times; while they have mdevs only
    # how many fit is not listed. VFs with a type list nothing.
    occupied = [vf for vf in known if vf.existing_vgpus]
    types = (occupied or known)[0].types
    return None if types is None else tuple(
        dataclasses.replace(
            listed, max_instances=None if listed.max_instances is None
            else min(listed.max_instances, len(vfs))) for listed in types)
