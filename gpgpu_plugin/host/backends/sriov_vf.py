# SPDX-License-Identifier: Apache-2.0
"""vGPUs that are plain VFs, which have no types."""

from __future__ import annotations

from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import vgpu_type
from gpgpu_plugin.host import base
from gpgpu_plugin.host.backends import whole_function


class SriovVFBackend(whole_function.WholeFunctionBackend):
    """Backend that assigns plain VFs, as whole functions."""

    order = 300

    def handles(self, device: base.HostDevice) -> bool:
        # A VF without its vendor's driver is no vGPU of a vendor's type.
        return (vgpu_type.is_of_plain_vfs(device.vgpu_type)
                and pci.pf_of(device.stable_id) is not None)
