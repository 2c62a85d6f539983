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
"""Which functions go to a guest together, and what stands in the way.

A card is what sits in one slot. Its sound or USB function goes with its GPU;
two GPUs of a slot are cards of their own unless they share an IOMMU group,
which VFIO gives to one user only (Linux, Documentation/driver-api/vfio.rst).
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


def relate(functions: Iterable[pci.PCIFunction | None],
           ) -> list[pci.PCIFunction]:
    """The functions with what they are to each other.

    :param functions: by address; None for what could not be looked at
    """
    found = [each for each in functions if each is not None]
    slots: dict[str, list[pci.PCIFunction]] = collections.defaultdict(list)
    groups: dict[int, list[pci.PCIFunction]] = collections.defaultdict(list)
    for each in found:
        # A VF is a card of its own, wherever its number places it.
        if each.pf is None:
            slots[each.address.rpartition('.')[0]].append(each)
        if each.iommu_group is not None:
            groups[each.iommu_group].append(each)
    part_of = {
        address: lead for slot in slots.values() if len(slot) > 1
        for address, lead in _leads(slot).items()}
    return [_related(each, part_of, slots, groups) for each in found]


def unassignable_reason(function: pci.PCIFunction,
                        mechanism: capability.VGPUMechanism | None,
                        ) -> str | None:
    """Return why no guest can have the function or a vGPU of it, if known.

    A GPU with vGPUs stays the host's: it may be the host's display and share
    an IOMMU group, since its mdevs and VFs have groups of their own.

    :param mechanism: how the function's driver exposes vGPUs; None: not at
        all
    """
    is_vgpu = (function.pf is not None
               and mechanism == capability.VGPUMechanism.VF)
    if mechanism and not is_vgpu:
        return _excluded_reason(function)
    return passthrough_refusal(function)


def passthrough_refusal(function: pci.PCIFunction) -> str | None:
    """Return why no guest can have the whole function, if known."""
    excluded = _excluded_reason(function)
    if excluded is not None:
        return excluded
    if function.used_by == device_rules.DeviceUser.BOOT_VGA:
        return 'it is the display that the host booted with'
    if function.iommu_foreign_members:
        return (
            f'its IOMMU group {function.iommu_group} also holds '
            f'{", ".join(function.iommu_foreign_members)}, no part of the card'
        )
    return None


def _excluded_reason(function: pci.PCIFunction) -> str | None:
    if function.fault:
        return function.fault
    if function.owner:
        return f'it is given away by {function.owner}'
    if function.part_of:
        return f'it is a function of the card {function.part_of}'
    return None


def _leads(slot: Sequence[pci.PCIFunction]) -> dict[str, str]:
    """By the address of a companion, that of the function it goes with."""
    gpus = [each for each in slot if pci.can_be_gpu(each.class_code)]
    first = (gpus or slot)[0]
    leads = {}
    for each in slot:
        if each not in gpus:
            lead = first
        elif each.iommu_group is None:
            lead = each
        else:
            lead = next(gpu for gpu in gpus
                        if gpu.iommu_group == each.iommu_group)
        if lead is not each:
            leads[each.address] = lead.address
    return leads


def _related(function: pci.PCIFunction, part_of: Mapping[str, str],
             slots: Mapping[str, Sequence[pci.PCIFunction]],
             groups: Mapping[int, Sequence[pci.PCIFunction]],
             ) -> pci.PCIFunction:
    slot: Sequence[pci.PCIFunction] = ()
    if function.pf is None:
        slot = slots[function.address.rpartition('.')[0]]
    group = function.iommu_group
    members = groups[group] if group is not None else ()
    if len(slot) < 2 and len(members) < 2:
        return function
    companions = [each for each in slot
                  if part_of.get(each.address) == function.address]
    return dataclasses.replace(
        function, part_of=part_of.get(function.address),
        companions=tuple(each.address for each in companions),
        iommu_group_members=tuple(each.address for each in members
                                  if each is not function),
        iommu_foreign_members=_foreign([function, *companions], groups)
        if pci.can_be_gpu(function.class_code) else ())


def _foreign(card: Sequence[pci.PCIFunction],
             groups: Mapping[int, Sequence[pci.PCIFunction]],
             ) -> tuple[str, ...]:
    own = {each.address for each in card}
    return tuple(sorted({
        member.address for each in card if each.iommu_group is not None
        for member in groups[each.iommu_group]
        if member.address not in own
        and not pci.is_bridge(member.class_code)}))
