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
"""Passthrough: a guest gets a whole physical GPU."""

from __future__ import annotations

from gpgpu_plugin.host import base
from gpgpu_plugin.host.backends import whole_function


class PassthroughBackend(whole_function.WholeFunctionBackend):
    """Backend that assigns whole GPUs."""

    def handles(self, device: base.HostDevice) -> bool:
        return device.is_passthrough
