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
"""Devices that Nova itself would give away, too."""

from __future__ import annotations

import typing
from collections.abc import Iterable

from nova.pci import whitelist

from gpgpu_plugin import exception
from gpgpu_plugin.objects import view


def check_device_spec(conf: typing.Any,
                      devices: Iterable[view.DeviceView]) -> None:
    """Refuse a device with a variant that ``[pci] device_spec`` covers.

    :raises ConfigInvalid: naming the device and both sides
    """
    specs = whitelist.Whitelist(conf.pci.device_spec)
    for device in devices:
        if device.variant is None:
            continue
        if specs.device_assignable({
                'vendor_id': device.vendor, 'product_id': device.device,
                'address': device.address, 'capabilities': {}}):
            raise exception.ConfigInvalid(
                option='[pci] device_spec',
                reason=f'it covers {device.address} '
                       f'({device.vendor}:{device.device}), which is '
                       f'{device.variant} of gpgpu_plugin: Nova would give '
                       f'it away as well. Take it out of there, or delete '
                       f'the variant')
