# SPDX-License-Identifier: Apache-2.0
"""Passthrough: a guest gets a whole physical GPU."""

from __future__ import annotations

from gpgpu_plugin.host import base
from gpgpu_plugin.host.backends import whole_function


class PassthroughBackend(whole_function.WholeFunctionBackend):
    """Backend that assigns whole GPUs."""

    order = 400

    def handles(self, device: base.HostDevice) -> bool:
        return device.is_passthrough
