# SPDX-License-Identifier: Apache-2.0
"""GPUs and vGPUs in guests of libvirt."""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import nova.conf
from lxml import etree
from nova import objects
from nova.virt import configdrive
from nova.virt.libvirt import config as libvirt_config
from nova.virt.libvirt import driver
from nova.virt.libvirt import guest as libvirt_guest
from nova.virt.libvirt import utils as nova_utils
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.doctor import host as host_drifts
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.host import base
from gpgpu_plugin.virt import exception as virt_exception
from gpgpu_plugin.virt import guest_file
from gpgpu_plugin.virt import guests as guests_mod
from gpgpu_plugin.virt import mixin

LOG = logging.getLogger(__name__)
CONF = nova.conf.CONF

_UPPER_HALF = 0x10


class GpuLibvirtDriver(mixin.GPUMixin, driver.LibvirtDriver):
    """``compute_driver = gpgpu.GpuLibvirtDriver``."""

    gpu_host = 'local'

    def _gpu_owner_records(
            self, node_uuid: str) -> tuple[tracker_api.OwnerRecords, ...]:
        return (guests_mod.OtherDomains(
            self._host, lambda: {
                assignment.address
                for assignment in self.gpu_tracker.assigned()}),
            *super()._gpu_owner_records(node_uuid))

    def _gpu_domains(self) -> tuple[host_drifts.GuestDevices, ...] | None:
        return guests_mod.guests(self._host)

    def _gpu_devices(self, instance_uuid: str) -> frozenset[str] | None:
        return guests_mod.devices(self._host.get_guest(
            objects.Instance(uuid=instance_uuid)).get_xml_desc())

    def _gpu_guests(self) -> base.Guests | None:
        """Return libvirt's guests, after those of an earlier process."""
        guests = guests_mod.LibvirtGuests(
            self._uri(), CONF.libvirt.virt_type, hostdevs)
        if CONF.gpgpu_compute.scrub_guest_path is not None:
            guests.end_all()
        return guests

    def _get_guest_config(
            self, instance: nova_types.Instance, network_info: object,
            image_meta: object, disk_info: object, rescue: object = None,
            block_device_info: object = None,
            context: nova_types.Context | None = None,
            mdevs: Iterable[str] | None = None, *args: object,
            **kwargs: object) -> libvirt_config.LibvirtConfigGuest:
        """Return Nova's domain, with hostdevs for the instance's GPUs.

        Nova builds a domain here for spawn, hard reboot (so for power-on and
        the host's boot), rescue, and on both hosts of a resize. Suspend would
        save a domain; it is refused.

        :param mdevs: UUIDs of the mdevs in the previous domain; those of
            assignments are left out, as they are added here
        """
        attachments = self.gpu_attachments(instance)
        # The UUID of an mdev is that of its assignment.
        own = {assignment.uuid
               for assignment in self.gpu_tracker.assigned(instance.uuid)}
        guest = super()._get_guest_config(
            instance, network_info, image_meta, disk_info, rescue,
            block_device_info, context,
            [mdev for mdev in mdevs or () if mdev not in own], *args,
            **kwargs)
        for number, attachment in enumerate(attachments):
            for device in hostdevs(attachment, number, guest.os_mach_type):
                guest.add_device(device)
        if attachments and instance.flavor.extra_specs.get(
                request.DISPLAY) == request.Display.ON:
            show(guest.devices)
        return guest

    def init_host(self, host: str) -> None:
        """Start as before, then read where running guests have their GPUs."""
        super().init_host(host)
        try:
            self._gpu_read_guests()
        except Exception:
            LOG.exception('Cannot read where guests of %s have their GPUs; '
                          'each is read again when it starts', host)

    def _gpu_read_guests(self) -> None:
        tracker = self.gpu_tracker
        if not tracker.assigned():
            return
        found: dict[str, tuple[str, ...]] = {}
        try:
            for guest in self._host.list_guests():
                if assigned := tracker.assigned(guest.uuid):
                    found |= guest_file.addresses(guest.get_xml_desc(), (
                        (assignment, tracker.attachment(assignment))
                        for assignment in assigned))
        finally:
            tracker.place(found)

    def _create_guest(
            self, context: nova_types.Context, xml: str,
            instance: nova_types.Instance, power_on: bool = True,
            pause: bool = False,
            post_xml_callback: Callable[[], None] | None = None,
            ) -> libvirt_guest.Guest:
        """Create a domain, and send where its GPUs are before it starts.

        Nova creates all domains here: spawn, hard reboot, rescue and unrescue,
        and both hosts of a resize.
        """
        def defined() -> None:
            self._gpu_defined(instance)
            if post_xml_callback is not None:
                post_xml_callback()
        return super()._create_guest(
            context, xml, instance, power_on=power_on, pause=pause,
            post_xml_callback=defined)

    def _gpu_defined(self, instance: nova_types.Instance) -> None:
        """Send where a domain has its GPUs; the guest starts in any case."""
        assigned = self._gpu_of_guest(instance)
        attachments = self.gpu_attachments(instance)
        if not attachments:
            return
        try:
            found = guest_file.addresses(
                self._host.get_guest(instance).get_xml_desc(),
                zip(assigned, attachments, strict=True))
        except Exception:
            LOG.exception('Cannot read where instance %s has its GPUs',
                          instance.uuid, instance=instance)
            found = {assignment.uuid: () for assignment in assigned}
        self.gpu_tracker.place(found)

    def _create_configdrive(
            self, context: nova_types.Context, instance: nova_types.Instance,
            injection_info: driver.InjectionInfo, rescue: bool = False,
            ) -> None:
        """Create the config drive, with a file about the guest's GPUs.

        Nova calls it when libvirt has the domain and the guest is not started.
        It writes no config drive again that is there.
        """
        path = CONF.gpgpu_compute.config_drive_file
        attachments = (self.gpu_attachments(instance)
                       if path and configdrive.required_by(instance) else [])
        if attachments:
            domain = self._host.get_guest(instance).get_xml_desc()
            injection_info = injection_info._replace(files=[
                *(injection_info.files or ()), (path, guest_file.content(
                    domain, zip(self._gpu_of_guest(instance), attachments,
                                strict=True)))])
        super()._create_configdrive(context, instance, injection_info, rescue)

    def unrescue(self, context: nova_types.Context,
                 instance: nova_types.Instance) -> None:
        """Restore the domain that Nova saved at the rescue.

        The host may have been rebooted since and its buses renumbered, so that
        a saved address may belong to another instance's GPU.

        :raises GPUOperationFailed: nothing was changed
        """
        with self._gpu_working(instance):
            self._check_saved_domain(instance)
            super().unrescue(context, instance)

    def _check_saved_domain(self, instance: nova_types.Instance) -> None:
        assigned = {address for attachment in self.gpu_attachments(instance)
                    for address in attachment.functions}
        if not assigned:
            return
        saved = _saved_hostdevs(instance) - {
            device.address for device in instance.get_pci_devices()}
        if assigned != saved:
            raise virt_exception.GPUDomainStale(
                instance=instance.uuid, saved=_listed(saved),
                assigned=_listed(assigned),
                remedy='hard reboot the instance, which makes its domain anew')


class GpuLibvirtFakeDriver(GpuLibvirtDriver):
    """Real guests with GPUs of a fake machine, which they do not see.

    ``compute_driver = gpgpu.GpuLibvirtFakeDriver``.
    """

    gpu_host = 'fake'

    def gpu_attachments(
            self, instance: nova_types.Instance) -> list[base.Attachment]:
        """Return nothing: a domain cannot have fake GPUs."""
        return []

    def _gpu_devices(self, instance_uuid: str) -> frozenset[str] | None:
        return None

    def _gpu_guests(self) -> base.Guests | None:
        return None


class _HostdevMdev(libvirt_config.LibvirtConfigGuestHostdevMDEV):
    """Nova's mdev hostdev, which can be the guest's display, too.

    :ivar display: whether it is the display; it needs a graphics device
        (``[vnc] enabled``)
    """

    display = False

    def format_dom(self) -> etree.Element:
        """Return Nova's element with the attribute added."""
        dom = super().format_dom()
        if self.display:
            dom.set('display', 'on')
        return dom


def show(devices: Iterable[object]) -> None:
    """Make the first of the plugin's mdevs the display of the guest.

    :param devices: of a domain
    :raises Invalid: none of them is an mdev of the plugin
    """
    mdev = next((device for device in devices
                 if isinstance(device, _HostdevMdev)), None)
    if mdev is None:
        raise exception.Invalid(
            field='extra spec gpgpu:display', value='on',
            expected='off, as none of the instance\'s GPUs is an mdev')
    mdev.display = True


class _HostdevPCI(libvirt_config.LibvirtConfigGuestHostdevPCI):
    """Nova's PCI hostdev, with an address in the guest.

    :ivar guest_address: attributes of ``<address type='pci'/>``; None:
        libvirt chooses one
    """

    guest_address: dict[str, str] | None = None

    def format_dom(self) -> etree.Element:
        """Return Nova's element with the address added."""
        dom = super().format_dom()
        if self.guest_address is not None:
            etree.SubElement(dom, 'address', type='pci', domain='0x0000',
                             **self.guest_address)
        return dom


def hostdevs(attachment: base.Attachment, number: int,
             machine_type: str | None,
             ) -> Iterator[libvirt_config.LibvirtConfigGuestHostdev]:
    """Return the devices of a domain for one GPU of an instance."""
    if attachment.mdev is not None:
        mdev = _HostdevMdev()
        mdev.uuid = attachment.mdev
        yield mdev
    yield from _functions(attachment.functions, number, machine_type)


def _functions(addresses: Sequence[str], number: int,
               machine_type: str | None) -> Iterator[_HostdevPCI]:
    """Return the hostdevs of a GPU's functions.

    Several of them go into one slot of the guest, as its driver expects.
    libvirt places devices without an address around those with one, and adds
    the root ports that it needs. Therefore the number of the GPU suffices to
    find a free slot: a bus of its own below PCIe, otherwise the upper half of
    bus 0.

    :param number: number of the GPU among the instance's GPUs
    """
    for function, address in enumerate(addresses):
        host = pci.PCIAddress.parse(address)
        device = _HostdevPCI()
        # The backend binds and unbinds; libvirt must not do so beside it.
        device.managed = 'no'
        device.domain = f'{host.domain:04x}'
        device.bus = f'{host.bus:02x}'
        device.slot = f'{host.device:02x}'
        device.function = f'{host.function:x}'
        if len(addresses) > 1:
            device.guest_address = _guest_address(
                number, function, machine_type)
        yield device


def _guest_address(number: int, function: int,
                   machine_type: str | None) -> dict[str, str]:
    bus, slot = ((number + 1, 0) if _has_pcie(machine_type)
                 else (0, _UPPER_HALF + number))
    address = {'bus': f'0x{bus:02x}', 'slot': f'0x{slot:02x}',
               'function': f'0x{function:x}'}
    if function == 0:
        address['multifunction'] = 'on'
    return address


def _saved_hostdevs(instance: nova_types.Instance) -> set[str]:
    """Return the addresses of PCI devices in the domain saved at a rescue."""
    xml = nova_utils.load_file(os.path.join(
        nova_utils.get_instance_path(instance), 'unrescue.xml'))
    return {
        str(pci.PCIAddress(*(int(source.get(name), 16) for name in (
            'domain', 'bus', 'slot', 'function'))))
        for source in etree.fromstring(xml).findall(
            "./devices/hostdev[@type='pci']/source/address")}


def _listed(addresses: Iterable[str]) -> str:
    return ', '.join(sorted(addresses)) or 'none'


def _has_pcie(machine_type: str | None) -> bool:
    """Return whether a QEMU machine type, such as pc-q35-7.2, has PCIe."""
    return machine_type is not None and (
        'q35' in machine_type or machine_type.startswith('virt'))
