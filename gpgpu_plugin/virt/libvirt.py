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

import os
import typing
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from lxml import etree
from nova.virt.libvirt import config as libvirt_config
from nova.virt.libvirt import driver
from nova.virt.libvirt import utils as nova_utils

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.host import base
from gpgpu_plugin.virt import exception as virt_exception
from gpgpu_plugin.virt import mixin

_UPPER_HALF = 0x10


class GpuLibvirtDriver(mixin.GpuMixin, driver.LibvirtDriver):
    """``compute_driver = gpgpu.GpuLibvirtDriver``."""

    gpu_host = 'local'

    def _get_guest_config(self, instance: typing.Any, network_info: typing.Any,
                          image_meta: typing.Any, disk_info: typing.Any,
                          rescue: typing.Any = None,
                          block_device_info: typing.Any = None,
                          context: typing.Any = None,
                          mdevs: typing.Any = None, *args: typing.Any,
                          **kwargs: typing.Any) -> typing.Any:
        """Nova's domain, with hostdevs for each GPU of the instance.

        Nova builds a domain here for spawn, hard reboot (so power-on and the
        host's boot), rescue, and both ends of a resize. Suspend would save a
        domain; it is refused.

        :param mdevs: UUIDs of the mdevs that Nova found in the domain before;
            ours are there once, as they are now
        """
        attachments = self.gpu_attachments(instance)
        ours = self.gpu_tracker.assignments.uuids_of_instance(instance.uuid)
        guest = super()._get_guest_config(
            instance, network_info, image_meta, disk_info, rescue,
            block_device_info, context,
            [each for each in mdevs or () if each not in ours], *args,
            **kwargs)
        for number, each in enumerate(attachments):
            for device in hostdevs(each, number, guest.os_mach_type):
                guest.add_device(device)
        if attachments and _wants_display(instance.flavor):
            show(guest.devices)
        return guest

    def unrescue(self, context: typing.Any, instance: typing.Any) -> None:
        """Nova's, which takes the domain that it saved at the rescue.

        The host may have been rebooted since, and its buses numbered anew:
        an old address may be somebody else's card.

        :raises GPUDomainStale: nothing was done
        """
        cards = {address for each in self.gpu_attachments(instance)
                 for address in each.functions}
        if cards:
            saved = _saved_hostdevs(instance) - {
                each.address for each in instance.get_pci_devices()}
            if cards != saved:
                raise virt_exception.GPUDomainStale(
                    instance=instance.uuid, saved=_listed(saved),
                    held=_listed(cards))
        super().unrescue(context, instance)


class GpuLibvirtFakeDriver(GpuLibvirtDriver):
    """``compute_driver = gpgpu.GpuLibvirtFakeDriver``: real guests, and the
    GPUs of a fake machine, which they hold and do not see."""

    gpu_host = 'fake'

    def gpu_attachments(self, instance: typing.Any) -> list[base.Attachment]:
        """None: there is nothing to put into a domain."""
        return []


class _HostdevMdev(libvirt_config.LibvirtConfigGuestHostdevMDEV):
    """Nova's, which can be the guest's display.

    :ivar display: needs a graphics device, such as ``[vnc] enabled`` gives
    """

    display = False

    def format_dom(self) -> typing.Any:
        """Nova's element with the attribute added."""
        dom = super().format_dom()
        if self.display:
            dom.set('display', 'on')
        return dom


def _wants_display(flavor: typing.Any) -> bool:
    return request.from_extra_specs(
        flavor.extra_specs).display is request.Display.ON


def show(devices: Iterable[typing.Any]) -> None:
    """Make the first of our mdevs the display.

    :param devices: of a domain
    :raises Invalid: there is none
    """
    mdev = next((device for device in devices
                 if isinstance(device, _HostdevMdev)), None)
    if mdev is None:
        raise exception.Invalid(
            field='extra spec gpgpu:display', value='on',
            expected='off, as none of the instance\'s GPUs is an mdev')
    mdev.display = True


class _HostdevPCI(libvirt_config.LibvirtConfigGuestHostdevPCI):
    """Nova's, with a place in the guest.

    :ivar place: attributes of the guest's ``<address type='pci'/>``; None:
        libvirt finds one
    """

    place: dict[str, str] | None = None

    def format_dom(self) -> typing.Any:
        """Nova's element with the address added."""
        dom = super().format_dom()
        if self.place is not None:
            etree.SubElement(dom, 'address', type='pci', domain='0x0000',
                             **self.place)
        return dom


def hostdevs(attachment: base.Attachment, number: int,
             machine_type: str | None,
             ) -> Iterator[libvirt_config.LibvirtConfigGuestHostdev]:
    """What a domain has for one GPU of an instance."""
    if attachment.mdev is not None:
        mdev = _HostdevMdev()
        mdev.uuid = attachment.mdev
        yield mdev
    yield from _functions(attachment.functions, number, machine_type)


def _functions(card: Sequence[str], number: int,
               machine_type: str | None) -> Iterator[_HostdevPCI]:
    """A card's functions.

    Several of them go into one slot of the guest, as its driver expects.
    libvirt puts what has no address around what has one, and adds the root
    ports that it needs; so the number of the card is enough to find a slot
    that nothing else asked for: a bus of its own below PCIe, else the upper
    half of bus 0.
    """
    for function, address in enumerate(card):
        host = pci.PCIAddress.parse(address)
        device = _HostdevPCI()
        # The backend binds and gives back; libvirt must not do so beside it.
        device.managed = 'no'
        device.domain = f'{host.domain:04x}'
        device.bus = f'{host.bus:02x}'
        device.slot = f'{host.device:02x}'
        device.function = f'{host.function:x}'
        if len(card) > 1:
            bus, slot = ((number + 1, 0) if _has_pcie(machine_type)
                         else (0, _UPPER_HALF + number))
            device.place = {'bus': f'0x{bus:02x}', 'slot': f'0x{slot:02x}',
                            'function': f'0x{function:x}'}
            if function == 0:
                device.place['multifunction'] = 'on'
        yield device


def _saved_hostdevs(instance: typing.Any) -> set[str]:
    """Addresses of the PCI devices in the domain saved at a rescue."""
    xml = nova_utils.load_file(os.path.join(
        nova_utils.get_instance_path(instance), 'unrescue.xml'))
    return {
        str(pci.PCIAddress(*(int(place.get(name), 16) for name in (
            'domain', 'bus', 'slot', 'function'))))
        for place in etree.fromstring(xml).findall(
            "./devices/hostdev[@type='pci']/source/address")}


def _listed(addresses: Iterable[str]) -> str:
    return ', '.join(sorted(addresses)) or 'none'


def _has_pcie(machine_type: str | None) -> bool:
    """Whether a machine type of QEMU, such as ``pc-q35-7.2``, has PCIe."""
    return machine_type is not None and (
        'q35' in machine_type or machine_type.startswith('virt'))
