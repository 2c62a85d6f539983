# SPDX-License-Identifier: Apache-2.0
"""Fake GPUs for a real Nova without hypervisor and hardware."""

from __future__ import annotations

from nova.virt import fake

from gpgpu_plugin.virt import mixin


class GpuFakeDriver(mixin.GPUMixin, fake.FakeDriverWithoutFakeNodes):
    """``compute_driver = gpgpu.GpuFakeDriver``."""

    gpu_host = 'fake'
