# SPDX-License-Identifier: Apache-2.0
"""NVSwitches of a host, and GPUs that they connect.

A GPU that is connected by NVSwitches waits for the fabric manager: until that
has activated a partition with the GPU, CUDA in a guest fails to start with
error 802, "system not yet initialized" (NVIDIA, Fabric Manager User Guide;
NVIDIA/kubevirt-gpu-device-plugin #133).

The names of the ids are those of the PCI ID Repository, version 2026.10.24.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from gpgpu_plugin.domain import pci

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


def observed(functions: Iterable[pci.PCIFunction],
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


def refusal(function: pci.PCIFunction) -> str | None:
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
