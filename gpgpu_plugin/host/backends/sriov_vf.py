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
"""vGPUs that are plain VFs, which have no types."""

from __future__ import annotations

from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import vgpu_type
from gpgpu_plugin.host import base
from gpgpu_plugin.host.backends import whole_function


class SriovVFBackend(whole_function.WholeFunctionBackend):
    """Backend that assigns plain VFs, as whole functions."""

    def handles(self, device: base.HostDevice) -> bool:
        # A VF without its vendor's driver is no vGPU of a vendor's type.
        return (vgpu_type.is_of_plain_vfs(device.vgpu_type)
                and pci.pf_of(device.stable_id) is not None)
