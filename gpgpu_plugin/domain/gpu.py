# SPDX-License-Identifier: Apache-2.0
"""PCI functions that go to a guest together, and why some cannot.

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
from gpgpu_plugin.domain import health
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu

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
                        mechanism: vgpu.VGPUMechanism | None,
                        ) -> str | None:
    """Return why no guest can get the function or a vGPU of it, if known.

    A GPU with vGPUs stays with the host. It may be the host's display and
    share an IOMMU group, since its mdevs and VFs have groups of their own.

    :param mechanism: how the function's driver exposes vGPUs; None: it has
        none
    """
    is_vgpu = (function.pf is not None
               and mechanism == vgpu.VGPUMechanism.VF)
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


# -- NVSwitches of a host, and GPUs that they connect.
#
# A GPU that is connected by NVSwitches waits for the fabric manager: until
# that has activated a partition with the GPU, CUDA in a guest fails to start
# with error 802, "system not yet initialized" (NVIDIA, Fabric Manager User
# Guide; NVIDIA/kubevirt-gpu-device-plugin #133).
#
# The names of the ids are those of the PCI ID Repository, version 2026.10.24.


_NVIDIA = '10de'
# Bridge, of another kind than those of PCI.
_CLASS = '0680'

# The NVSwitches of these boards are no PCI functions. HGX B200 (two ids), HGX
# B200 168GB, B100 (two ids), B300 SXM6.
_ALWAYS = frozenset({'2901', '290a', '2909', '2920', '29bc', '3182'})
# GPUs of boards with NVSwitches and of boards of two or four GPUs without
# any, by one id; among them those whose name does not say for which board.
_ON_BOARDS = frozenset({
    # V100 SXM3.
    '1db8',
    # A100 SXM4 (40GB, 80GB, 64GB), A800 SXM4 (40GB, 80GB).
    '20b0', '20b2', '20b3', '20bd', '20f3',
    # H20 NVL16 (two ids), H800, H20B, H20, H20 HBM3e.
    '230c', '230e', '2324', '2328', '2329', '232c',
    # H100 SXM5 (80GB, 64GB, 96GB, 94GB), H200 SXM, H100, H100 96GB.
    '2330', '2337', '2338', '2339', '2335', '2336', '233d'})

_NEEDS = ('CUDA starts in a guest only after the fabric manager has activated '
          'a partition that contains this GPU, which gpgpu_plugin cannot do')


def observed_nvswitches(functions: Iterable[pci.PCIFunction],
                        ) -> list[pci.PCIFunction]:
    """Return the functions with the number of NVSwitches of their host.

    Only NVIDIA's GPUs get it. It is unknown if no NVSwitch is among the
    functions, but one whose ids could not be read.

    :param functions: all functions of a host
    """
    found = list(functions)
    switches = sum(map(_is_switch, found))
    number = (None if not switches and any(map(_may_be_switch, found))
              else switches)
    return [
        dataclasses.replace(function, nvswitches=number)
        if function.vendor == _NVIDIA and function.pf is None
        and pci.can_be_gpu(function.class_code) else function
        for function in found]


def _is_switch(function: pci.PCIFunction) -> bool:
    return (function.vendor == _NVIDIA
            and (function.class_code or '').startswith(_CLASS))


def _may_be_switch(function: pci.PCIFunction) -> bool:
    """Return whether what is unknown of a function leaves it possible.

    A parent of mdevs that is no PCI function has no ids.
    """
    return (':' in function.address and function.pf is None
            and function.vendor in (None, _NVIDIA)
            and (function.class_code is None
                 or function.class_code.startswith(_CLASS)))


def nvswitch_refusal(function: pci.PCIFunction) -> str | None:
    """Return why a guest cannot use a whole GPU, if known.

    :returns: None: no NVSwitch connects the GPU
    """
    if function.vendor != _NVIDIA:
        return None
    if function.device in _ALWAYS:
        return f'it is on a board with NVSwitches: {_NEEDS}'
    if function.device not in _ON_BOARDS or function.nvswitches == 0:
        return None
    if function.nvswitches is None:
        return ('it is unknown whether its host has NVSwitches (a PCI '
                'function there cannot be read, or its nova-compute is older '
                f'than gpgpu-conductor). Behind NVSwitches, {_NEEDS}')
    return f'its host has {function.nvswitches} NVSwitches: {_NEEDS}'


# -- Hardware that no guest can use as a whole.
#
# An operator who has a remedy of their own says so in the variant
# (``unsupported_ok``).


def unsupported_reason(function: pci.PCIFunction) -> str | None:
    """Return why no guest can use a whole function, if known.

    VFs are usable: those of NVIDIA's GPUs have no NVLink, and those of AMD's
    driver gim are reset well.
    """
    if function.pf is not None:
        return None
    kills = health.broken_reset_reason(function, alone=False)
    if kills is not None:
        # Each guest's start and each cleaning is such a reset.
        return f'{kills}; VFs of its vendor\'s driver are not affected'
    return nvswitch_refusal(function)


def unsupported_refusal(function: pci.PCIFunction, variant: str) -> str | None:
    """Return the reason, with what an operator can do about it.

    :param variant: name of the variant that the function matches
    """
    known = unsupported_reason(function)
    return None if known is None else (
        f'{known}. If you have a remedy, "gpgpu-manage variant set {variant} '
        f'--unsupported-ok" offers it')
