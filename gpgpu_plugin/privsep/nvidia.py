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
