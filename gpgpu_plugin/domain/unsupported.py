# SPDX-License-Identifier: Apache-2.0
"""Hardware that no guest can use as a whole.

An operator who has a remedy of their own says so in the variant
(``unsupported_ok``).
"""

from __future__ import annotations

from gpgpu_plugin.domain import broken_resets
from gpgpu_plugin.domain import nvswitch
from gpgpu_plugin.domain import pci


def reason(function: pci.PCIFunction) -> str | None:
    """Return why no guest can use a whole function, if known.

    VFs are usable: those of NVIDIA's GPUs have no NVLink, and those of AMD's
    driver gim are reset well.
    """
    if function.pf is not None:
        return None
    kills = broken_resets.reason(function, alone=False)
    if kills is not None:
        # Each guest's start and each cleaning is such a reset.
        return f'{kills}; VFs of its vendor\'s driver are not affected'
    return nvswitch.refusal(function)


def refusal(function: pci.PCIFunction, variant: str) -> str | None:
    """Return the reason, with what an operator can do about it.

    :param variant: name of the variant that the function matches
    """
    known = reason(function)
    return None if known is None else (
        f'{known}. If you have a remedy, "gpgpu-manage variant set {variant} '
        f'--unsupported-ok" offers it')
