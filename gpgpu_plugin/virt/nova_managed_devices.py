# SPDX-License-Identifier: Apache-2.0
"""Devices that Nova itself assigns to instances."""

from __future__ import annotations

from collections.abc import Iterable

import os_resource_classes
from nova.conf import devices as devices_conf
from nova.pci import devspec
from nova.pci import whitelist
from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.objects import admin

_DEVICE_SPEC = '[pci] device_spec'
_MDEV_TYPES = '[devices] enabled_mdev_types'


class NovaManagedDevices:
    """Devices that Nova manages by the configuration of this nova-compute.

    :param conf: Nova's
    :raises nova.exception.PciConfigInvalidSpec: Nova's own option is malformed
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._specs = whitelist.Whitelist(conf.pci.device_spec)
        self._types: dict[str, list[str]] = {}
        if conf.devices.enabled_mdev_types:
            devices_conf.register_dynamic_opts(conf)
            self._types = {
                name: conf[f'mdev_{name}'].device_addresses
                for name in conf.devices.enabled_mdev_types}

    def __bool__(self) -> bool:
        return bool(self._specs.specs or self._types)

    def options(self, scan: scanner.Scan) -> dict[str, str]:
        """Return the options that cover functions of this host, by address.

        :param scan: of the whole host
        """
        pfs = {function.id: function for function in scan.functions}
        found = {}
        for function in scan.functions:
            pf = pfs.get(function.pf or '')
            option = self._option(
                function, pf, scan.vgpu_capabilities.get((pf or function).id))
            if option is not None:
                found[function.address] = option
        return found

    def _option(self, function: pci.PCIFunction, pf: pci.PCIFunction | None,
                vgpus: capability.VGPUCapability | None) -> str | None:
        if _is_known(function.address) and self._specs.device_assignable({
                'vendor_id': function.vendor, 'product_id': function.device,
                'address': function.address,
                'parent_addr': pf.address if pf is not None else None,
                'capabilities': {}}):
            return _DEVICE_SPEC
        # A scan lists the types of VFs at their PF, also while these have
        # mdevs. Where they are not listed they are no mdev types.
        types = vgpus.types if vgpus is not None else None
        offered = {listed.type_id for listed in types or ()}
        for name, addresses in self._types.items():
            if name in offered and (
                    not addresses or function.address in addresses):
                return f'{_MDEV_TYPES} = {name}'
        return None

    def check(self, devices: Iterable[admin.DeviceInfo],
              scan: scanner.Scan,
              resource_classes: Iterable[str]) -> None:
        """Refuse to start if both Nova and the plugin would assign a device.

        :param devices: of this host, as the conductor knows them
        :param scan: of this host
        :param resource_classes: of the host's groups
        :raises ConfigInvalid: the message names the option, the device and its
            variant
        """
        options = self.options(scan)
        for device in devices:
            if device.variant is not None and device.address in options:
                raise exception.ConfigInvalid(
                    option=options[device.address],
                    reason=f'it covers {device.address} '
                           f'({device.vendor}:{device.device}), which is '
                           f'{device.variant} of gpgpu_plugin: Nova would '
                           f'assign it, too. Remove it from the option, or '
                           f'delete the variant')
        if self._types and os_resource_classes.VGPU in resource_classes:
            raise exception.ConfigInvalid(
                option=_MDEV_TYPES,
                reason='a variant of gpgpu_plugin has the resource class '
                       'VGPU, which Nova then offers itself. Give the '
                       'variant another class, or leave the option empty')


def _is_known(address: str) -> bool:
    """Return whether Nova can assign a device with such an address.

    It can assign neither a device with a wider PCI domain nor a parent of
    mdevs that is not a PCI function.
    """
    try:
        return pci.PCIAddress.parse(address).domain <= int(
            devspec.MAX_DOMAIN)
    except exception.Invalid:
        return False
