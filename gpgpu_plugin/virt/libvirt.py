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
"""Whole GPUs in guests of libvirt."""

from __future__ import annotations

import typing

from nova.virt.libvirt import config as libvirt_config
from nova.virt.libvirt import driver

from gpgpu_plugin.domain import pci
from gpgpu_plugin.virt import mixin


class GpuLibvirtDriver(mixin.GpuMixin, driver.LibvirtDriver):
    """``compute_driver = gpgpu.GpuLibvirtDriver``."""

    gpu_backend = 'passthrough'

    def _get_guest_config(self, instance: typing.Any, *args: typing.Any,
                          **kwargs: typing.Any) -> typing.Any:
        """Nova's domain, with a hostdev for each device of the instance.

        Nova builds a domain here for spawn, hard reboot (so power-on and the
        host's boot), rescue, and both ends of a resize. Suspend would save a
        domain; it is refused.
        """
        guest = super()._get_guest_config(instance, *args, **kwargs)
        for address in self.gpu_addresses(instance):
            guest.add_device(_hostdev(address))
        return guest


def _hostdev(address: str) -> libvirt_config.LibvirtConfigGuestHostdevPCI:
    place = pci.PCIAddress.parse(address)
    device = libvirt_config.LibvirtConfigGuestHostdevPCI()
    # The backend binds and gives back; libvirt must not do so beside it.
    device.managed = 'no'
    device.domain = f'{place.domain:04x}'
    device.bus = f'{place.bus:02x}'
    device.slot = f'{place.device:02x}'
    device.function = f'{place.function:x}'
    return device
