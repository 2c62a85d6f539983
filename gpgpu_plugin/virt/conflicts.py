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

import os_resource_classes
from nova.conf import devices as devices_conf
from nova.pci import whitelist

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.objects import view

_MDEV_TYPES = '[devices] enabled_mdev_types'


def asked(conf: typing.Any) -> bool:
    """Whether Nova gives away any devices of its own."""
    return bool(conf.pci.device_spec or conf.devices.enabled_mdev_types)


def check(conf: typing.Any, devices: Iterable[view.DeviceView],
          functions: Iterable[pci.PCIFunction],
          resource_classes: Iterable[str]) -> None:
    """Refuse what both Nova and the plugin would give away.

    :param devices: of this host, as the conductor knows them
    :param functions: of this host, as the scan sees them
    :param resource_classes: of the host's groups
    :raises ConfigInvalid: naming the option, the device and its variant
    """
    managed = [each for each in devices if each.variant is not None]
    _check_device_spec(conf, managed)
    if conf.devices.enabled_mdev_types:
        _check_mdev_types(conf, managed, {
            each.address: each.mdev_types for each in functions})
        if os_resource_classes.VGPU in resource_classes:
            raise exception.ConfigInvalid(
                option=_MDEV_TYPES,
                reason='a variant of gpgpu_plugin has the resource class '
                       'VGPU, which Nova then gives away itself. Give the '
                       'variant another class, or leave the option empty')


def _check_device_spec(conf: typing.Any,
                       devices: Iterable[view.DeviceView]) -> None:
    specs = whitelist.Whitelist(conf.pci.device_spec)
    for device in devices:
        if specs.device_assignable({
                'vendor_id': device.vendor, 'product_id': device.device,
                'address': device.address, 'capabilities': {}}):
            raise _covers('[pci] device_spec', device)


def _check_mdev_types(conf: typing.Any, devices: Iterable[view.DeviceView],
                      types: dict[str, tuple[str, ...]]) -> None:
    devices_conf.register_dynamic_opts(conf)
    for device in devices:
        for name in conf.devices.enabled_mdev_types:
            addresses = conf[f'mdev_{name}'].device_addresses
            if name in types.get(device.address, ()) and (
                    not addresses or device.address in addresses):
                raise _covers(f'{_MDEV_TYPES} = {name}', device)


def _covers(option: str,
            device: view.DeviceView) -> exception.ConfigInvalid:
    return exception.ConfigInvalid(
        option=option,
        reason=f'it covers {device.address} '
               f'({device.vendor}:{device.device}), which is '
               f'{device.variant} of gpgpu_plugin: Nova would give it away '
               f'as well. Take it out of there, or delete the variant')
