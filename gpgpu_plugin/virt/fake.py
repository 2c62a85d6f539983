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
"""Fake GPUs: real Nova, no hypervisor, no hardware."""

from __future__ import annotations

import os

import nova.conf
from nova.virt import fake

from gpgpu_plugin.host import base
from gpgpu_plugin.host import fake as fake_backend
from gpgpu_plugin.virt import mixin

CONF = nova.conf.CONF


class GpuFakeDriver(mixin.GpuMixin, fake.FakeDriverWithoutFakeNodes):
    """``compute_driver = gpgpu.GpuFakeDriver``."""

    def gpu_backend(self, host: str) -> base.Backend:
        """The machine that the configuration gives the host."""
        machine = CONF.gpgpu_fake.machines.get(host, CONF.gpgpu_fake.machine)
        return fake_backend.FakeBackend.for_machine(
            machine, os.path.join(CONF.gpgpu.state_path, 'machines', host))
