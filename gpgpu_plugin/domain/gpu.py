# SPDX-License-Identifier: Apache-2.0
"""PCI functions that go to a guest together, and reasons why they cannot.

A card is all functions in one slot. Its sound function goes with its GPU. Two
GPUs in a slot are separate, and other functions stay with the host, unless
they share an IOMMU group, which VFIO gives to one user only (Linux,
Documentation/driver-api/vfio.rst): a USB function of a card shares it, those
of the processor in whose slot an integrated GPU is do not.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import capability

# Multimedia controllers.
_SOUND = '04'

NO_IOMMU = ('it is in no IOMMU group: is the IOMMU on (firmware: VT-d or '
            'AMD-Vi; kernel: intel_iommu=on)?')


def relate(functions: Iterable[pci.PCIFunction | None],
           ) -> list[pci.PCIFunction]:
    """Return the functions with their relations to each other.

    :param functions: by address; None for one that could not be read
    """
    found = [function for function in functions if function is not None]
    slots: dict[str, list[pci.PCIFunction]] = collections.defaultdict(list)
    groups: dict[int, list[pci.PCIFunction]] = collections.defaultdict(list)
    for function in found:
        # A VF stands alone, in whichever slot its number places it.
        if function.pf is None:
            slots[_slot(function)].append(function)
        if function.iommu_group is not None:
            groups[function.iommu_group].append(function)
    part_of = {
        address: lead for slot in slots.values() if len(slot) > 1
        for address, lead in _leads(slot).items()}
    return [_related(function, part_of, slots, groups) for function in found]


def _slot(function: pci.PCIFunction) -> str:
    return function.address.rpartition('.')[0]


def unassignable_reason(function: pci.PCIFunction,
                        mechanism: capability.VGPUMechanism | None,
                        ) -> str | None:
    """Return why no guest can get the function or a vGPU of it, if known.

    A GPU with vGPUs stays with the host. It may be the host's display and
    share an IOMMU group, since its mdevs and VFs have groups of their own.

    :param mechanism: how the function's driver exposes vGPUs; None: it has
        none
    """
    is_vgpu = (function.pf is not None
               and mechanism == capability.VGPUMechanism.VF)
    if mechanism and not is_vgpu:
        return _excluded_reason(function)
    return passthrough_refusal(function)


def passthrough_refusal(function: pci.PCIFunction) -> str | None:
    """Return why no guest can get the function itself, if known."""
    return isolation_refusal(function) or function.vfio_refusal


def isolation_refusal(function: pci.PCIFunction) -> str | None:
    """Return why the function cannot be given to a guest alone, if known."""
    excluded = _excluded_reason(function)
    if excluded is not None:
        return excluded
    if function.used_by == device_rules.DeviceUser.BOOT_VGA:
        return 'it is the display that the host booted with'
    if function.iommu_foreign_members:
        return (
            f'its IOMMU group {function.iommu_group} also contains '
            f'{", ".join(function.iommu_foreign_members)}, not on its card')
    return None


def _excluded_reason(function: pci.PCIFunction) -> str | None:
    if function.fault:
        return function.fault
    if function.owner:
        return f'it is managed by {function.owner}'
    if function.part_of:
        return f'it goes to guests together with {function.part_of}'
    return None


def _leads(slot: Sequence[pci.PCIFunction]) -> dict[str, str]:
    """Return the function that each companion in a slot goes with.

    :returns: addresses by the companion's address
    """
    gpus = [function for function in slot
            if pci.can_be_gpu(function.class_code)]
    groups: dict[int | None, pci.PCIFunction] = {
        gpu.iommu_group: gpu for gpu in reversed(gpus)
        if gpu.iommu_group is not None}
    leads = {}
    for function in slot:
        stays = groups and function.iommu_group is not None and not (
            function.class_code or '').startswith(_SOUND)
        lead = groups.get(function.iommu_group, (
            function if function in gpus or stays else (gpus or slot)[0]))
        if lead is not function:
            leads[function.address] = lead.address
    return leads


def _related(function: pci.PCIFunction, part_of: Mapping[str, str],
             slots: Mapping[str, Sequence[pci.PCIFunction]],
             groups: Mapping[int, Sequence[pci.PCIFunction]],
             ) -> pci.PCIFunction:
    slot = slots[_slot(function)] if function.pf is None else ()
    group = function.iommu_group
    members = groups[group] if group is not None else ()
    if len(slot) < 2 and len(members) < 2:
        return function
    companions = [other for other in slot
                  if part_of.get(other.address) == function.address]
    return dataclasses.replace(
        function, part_of=part_of.get(function.address),
        companions=tuple(other.address for other in companions),
        iommu_group_members=tuple(member.address for member in members
                                  if member is not function),
        iommu_foreign_members=_foreign_members(
            [function, *companions], groups)
        if pci.can_be_gpu(function.class_code) else ())


def _foreign_members(card: Sequence[pci.PCIFunction],
                     groups: Mapping[int, Sequence[pci.PCIFunction]],
                     ) -> tuple[str, ...]:
    own = {function.address for function in card}
    return tuple(sorted({
        member.address for function in card
        if function.iommu_group is not None
        for member in groups[function.iommu_group]
        if member.address not in own
        and not pci.is_bridge(member.class_code)}))
