# SPDX-License-Identifier: Apache-2.0
"""Hardware that a reset leaves as it was, or kills.

The kernel offers these resets all the same, so nobody else says so. Sources:
NVIDIA/open-gpu-kernel-modules #1353, tinygrad #18199 and drivers/pci/quirks.c
(FLR of GB202 GPUs); Dstack-TEE/dstack #1048 (session state of
Hopper GPUs); amd/MxGPU-Virtualization #25 (MI300X).
"""

from __future__ import annotations

from gpgpu_plugin.domain import pci

_HANGS = 'an FLR can hang this GPU until the next power cycle'
_KEEPS = ('an FLR keeps state of the session with the firmware of this GPU, '
          'which a reset of the bus clears')
_KILLS = ('this GPU does not answer after a reset until its host is booted '
          'again')

# By vendor and the begin of the device id: GH100, GB100 to GB110; GB202.
_FLR = {
    ('10de', '23'): _KEEPS, ('10de', '29'): _KEEPS, ('10de', '31'): _KEEPS,
    ('10de', '2b85'): _HANGS, ('10de', '2b87'): _HANGS,
    ('10de', '2b8c'): _HANGS, ('10de', '2bb'): _HANGS}
_ANY = {('1002', '74a'): _KILLS, ('1002', '75a'): _KILLS}


def reason(function: pci.PCIFunction, *, alone: bool) -> str | None:
    """Return why a function must not be reset, or why that proves nothing.

    VFs have ids of their own, and are reset well.

    :returns: None: no problem is known
    :param alone: whether the function is reset on its own (FLR) instead of
        its whole card
    """
    broken = {**_FLR, **_ANY} if alone else _ANY
    return next(
        (why for (vendor, device), why in broken.items()
         if function.pf is None and function.vendor == vendor
         and (function.device or '').startswith(device)), None)
