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
"""vGPUs that are VFs as the hardware made them: passed through as they are."""

from __future__ import annotations

from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import vgpu_type
from gpgpu_plugin.host import base
from gpgpu_plugin.host.backends import passthrough


class SriovVFBackend(passthrough.PassthroughBackend):
    """A VF goes to a guest as a whole card does."""

    order = 30

    def handles(self, device: base.HostDevice) -> bool:
        # A vendor's type is nothing that the bare VF is: its driver is
        # missing.
        return (device.vgpu_type is not None
                and vgpu_type.is_of_plain_vfs(device.vgpu_type)
                and pci.pf_of(device.stable_id) is not None)
