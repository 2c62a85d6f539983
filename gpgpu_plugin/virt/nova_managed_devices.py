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
from nova.pci import devspec
from nova.pci import whitelist

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.objects import admin

_DEVICE_SPEC = '[pci] device_spec'
_MDEV_TYPES = '[devices] enabled_mdev_types'


class NovaManagedDevices:
    """What the configuration of this nova-compute lets Nova give away.

    :param conf: Nova's
    :raises nova.exception.PciConfigInvalidSpec: Nova cannot read it either
    """

    def __init__(self, conf: typing.Any) -> None:
        self._specs = whitelist.Whitelist(conf.pci.device_spec)
        self._types: dict[str, list[str]] = {}
        if conf.devices.enabled_mdev_types:
            devices_conf.register_dynamic_opts(conf)
            self._types = {
                name: conf[f'mdev_{name}'].device_addresses
                for name in conf.devices.enabled_mdev_types}

    def __bool__(self) -> bool:
        return bool(self._specs.specs or self._types)

    def options(self, functions: Iterable[pci.PCIFunction],
                ) -> dict[str, str]:
        """The options that cover functions of this host, by address.

        :param functions: all of the host
        """
        functions = tuple(functions)
        pfs = {each.id: each for each in functions}
        found = ((each.address, self._option(each, pfs.get(each.pf or '')))
                 for each in functions)
        return {address: option for address, option in found
                if option is not None}

    def _option(self, function: pci.PCIFunction,
                pf: pci.PCIFunction | None) -> str | None:
        if _is_known(function.address) and self._specs.device_assignable({
                'vendor_id': function.vendor, 'product_id': function.device,
                'address': function.address,
                'parent_addr': pf.address if pf is not None else None,
                'capabilities': {}}):
            return _DEVICE_SPEC
        # A scan tells the types of VFs of their PF, also while these have
        # mdevs. Where they cannot be told they are no mdev types.
        offered = {each.type_id for each in (pf or function).vgpu_types or ()}
        for name, addresses in self._types.items():
            if name in offered and (
                    not addresses or function.address in addresses):
                return f'{_MDEV_TYPES} = {name}'
        return None

    def check(self, devices: Iterable[admin.DeviceInfo],
              functions: Iterable[pci.PCIFunction],
              resource_classes: Iterable[str]) -> None:
        """Refuse what both Nova and the plugin would give away.

        :param devices: of this host, as the conductor knows them
        :param functions: of this host, as the scan sees them
        :param resource_classes: of the host's groups
        :raises ConfigInvalid: naming the option, the device and its variant
        """
        options = self.options(functions)
        for device in devices:
            if device.variant is not None and device.address in options:
                raise exception.ConfigInvalid(
                    option=options[device.address],
                    reason=f'it covers {device.address} '
                           f'({device.vendor}:{device.device}), which is '
                           f'{device.variant} of gpgpu_plugin: Nova would '
                           f'give it away as well. Take it out of there, or '
                           f'delete the variant')
        if self._types and os_resource_classes.VGPU in resource_classes:
            raise exception.ConfigInvalid(
                option=_MDEV_TYPES,
                reason='a variant of gpgpu_plugin has the resource class '
                       'VGPU, which Nova then gives away itself. Give the '
                       'variant another class, or leave the option empty')


def _is_known(address: str) -> bool:
    """Whether Nova knows such PCI devices.

    It gives away none of a wider domain, and no parent of mdevs that is no
    PCI function.
    """
    try:
        return pci.PCIAddress.parse(address).domain <= int(
            devspec.MAX_DOMAIN)
    except exception.Invalid:
        return False
