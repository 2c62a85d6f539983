# SPDX-License-Identifier: Apache-2.0
"""PCI devices that Nova itself assigns, and its tracker."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from collections.abc import Iterable

import os_resource_classes
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.conf import devices as devices_conf
from nova.objects import fields
from nova.pci import devspec
from nova.pci import whitelist
from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
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
                vgpus: vgpu.VGPUCapability | None) -> str | None:
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


# -- Records of Nova about PCI devices that it assigned to guests.
#
# They outlive ``[pci] device_spec``: Nova keeps the record of an assigned
# device that the option no longer covers until its guest is gone, running or
# stopped.


_FREE = (fields.PciDeviceStatus.AVAILABLE, fields.PciDeviceStatus.REMOVED,
         fields.PciDeviceStatus.DELETED)


class NovaPCIRecords:
    """GPUs of one compute node that Nova's PCI tracker has in use.

    :param node_uuid: UUID of the compute node
    """

    def __init__(self, node_uuid: str) -> None:
        self._node_uuid = node_uuid
        self._reported: dict[str, str] = {}

    def owners(self, scan: scanner.Scan) -> dict[str, str]:
        """Return how Nova has functions of this host in use, by address.

        A GPU is in use if a VF or a companion of it is.

        :param scan: of the whole host
        :raises Exception: Nova's database did not answer
        """
        used = self._used()
        reasons = {function.address: reason for function in scan.functions
                   if (reason := used.get(function.address)) is not None}
        self._reported = dict(reasons)
        by_id = {function.id: function for function in scan.functions}
        found = dict(reasons)
        for function in scan.functions:
            if function.address in reasons and function.pf in by_id:
                found.setdefault(by_id[function.pf].address,
                                 reasons[function.address])
            for companion in function.companions:
                if companion in reasons:
                    found.setdefault(function.address, reasons[companion])
        return found

    def changed(self) -> bool:
        """Return whether Nova no longer has a GPU in use that was reported.

        Ask Nova's database only if there was one.
        """
        if not self._reported:
            return False
        used = self._used()
        return any(used.get(address) != reason
                   for address, reason in self._reported.items())

    def _used(self) -> dict[str, str]:
        context = nova_context.get_admin_context()
        try:
            node = objects.ComputeNode.get_by_uuid(context, self._node_uuid)
        except nova_exception.ComputeHostNotFound:
            # It has never run.
            return {}
        return {
            device.address: _reason(device)
            for device in objects.PciDeviceList.get_by_compute_node(
                context, node.id)
            if device.status not in _FREE}


def _reason(device: objects.PciDevice) -> str:
    if device.instance_uuid is None:
        # A VF whose PF is in use, or the reverse.
        return 'Nova ([pci] device_spec, in use)'
    return (f'Nova ([pci] device_spec, assigned to instance '
            f'{device.instance_uuid})')


# -- Resource tracker of Nova's compute manager.
#
# Its methods are private to Nova, so the signatures of those that the plugin
# wraps are checked when nova-compute starts.


_WRAPPED = ('resize_claim', 'delete_allocation_for_evacuated_instance')


def tracker_of(virtapi: object) -> nova_types.NovaResourceTracker:
    """Return the resource tracker of Nova's compute manager.

    :raises ConfigInvalid: this Nova has none, or its methods have other
        parameters
    """
    tracker = getattr(getattr(virtapi, '_compute', None), 'rt', None)
    for name in _WRAPPED:
        method = getattr(tracker, name, None)
        expected = _parameters(
            getattr(nova_types.NovaResourceTracker, name))[1:]
        found = [] if method is None else _parameters(method)
        if found != expected:
            raise exception.ConfigInvalid(
                option='compute_driver',
                reason=f'method {name} of Nova\'s resource tracker has '
                       f'parameters ({", ".join(found)}), and this version '
                       f'of gpgpu_plugin works with ({", ".join(expected)}). '
                       f'Install a version of Nova that it supports')
    return typing.cast('nova_types.NovaResourceTracker', tracker)


def _parameters(method: Callable[..., object]) -> list[str]:
    return list(inspect.signature(method).parameters)
