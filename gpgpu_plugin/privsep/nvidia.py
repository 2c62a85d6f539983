# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's program that creates VFs, which its driver refuses to others."""

from __future__ import annotations

from gpgpu_plugin import privsep
from gpgpu_plugin.privsep import guard
from gpgpu_plugin.privsep import sysfs

SRIOV_MANAGE = '/usr/lib/nvidia/sriov-manage'


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def make_vfs(address: str) -> None:
    """Create all VFs that a GPU can have.

    Source: NVIDIA vGPU software user guide, "Preparing the Virtual Function
    for an NVIDIA vGPU": only this program creates them.

    :raises OSError: the program failed or is not installed, or the function
        is not on a GPU's card
    """
    guard.check_card(sysfs.SYSFS_ROOT, address)
    privsep.run(SRIOV_MANAGE, '-e', address)
