# SPDX-License-Identifier: Apache-2.0
"""Guests of libvirt: those for cleanings, and others that have GPUs.

A scrub guest is a transient domain that ends with its connection, so none
outlives nova-compute. libvirt gives QEMU access to the card's VFIO files, and
confines QEMU as it does with the guests of tenants.
"""

from __future__ import annotations

import contextlib
import threading
import time
import typing
import uuid
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator

from lxml import etree
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.virt.libvirt import config as libvirt_config
from nova.virt.libvirt import host as nova_host
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin import vfio
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.doctor import host as host_drifts
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.host.discovery import scanner

LOG = logging.getLogger(__name__)

_Domain = typing.Any
_Stream = typing.Any
"""libvirt.virDomain and virStream, which have no types."""

MACHINE = 'q35'

_PREFIX = 'gpgpu-scrub-'
_OUTPUT = 64 * 1024
_CHUNK = 4096
_ENDING = 60.0
"""Seconds within which a domain must have ended."""

_KERNEL = 'console=ttyS0 quiet panic=-1'

Hostdevs = Callable[
    [base.Attachment, int, str],
    Iterable[libvirt_config.LibvirtConfigGuestHostdev]]


def is_scrub_guest(name: str) -> bool:
    """Return whether a domain of this name is a scrub guest."""
    return name.startswith(_PREFIX)


class LibvirtGuests(base.Guests):
    """Guests of the libvirt on this host.

    :param uri: that of Nova's connection
    :param virt_type: ``kvm`` or ``qemu``
    :param hostdevs: returns the devices of a domain for an attachment
    """

    def __init__(self, uri: str, virt_type: str, hostdevs: Hostdevs) -> None:
        self._uri = uri
        self._virt_type = virt_type
        self._hostdevs = hostdevs

    def run(self, guest: base.Guest, seconds: float,
            until: Callable[[str], bool]) -> base.EndedGuest:
        """Boot a guest on a connection of its own."""
        with contextlib.ExitStack() as at_end:
            try:
                domain, stream = self._start(guest, at_end)
            except nova_host.libvirt.libvirtError as exc:
                raise exception.HostNotReady(
                    path=guest.functions[0],
                    reason=f'its scrub guest cannot be started: {exc}',
                ) from exc
            return _wait(domain, stream, seconds, until)

    def _start(self, guest: base.Guest, at_end: contextlib.ExitStack,
               ) -> tuple[_Domain, _Stream]:
        """Start a guest; return its domain and the stream of its console.

        :param at_end: ends it
        :raises libvirtError: libvirt does not answer, or refuses
        """
        libvirt = nova_host.libvirt
        connection = libvirt.open(self._uri)
        at_end.callback(connection.close)
        # It waits for its console, so that nothing is lost.
        domain = connection.createXML(
            self._xml(guest), libvirt.VIR_DOMAIN_START_AUTODESTROY
            | libvirt.VIR_DOMAIN_START_PAUSED)
        at_end.callback(_end, domain, guest.functions[0])
        stream = connection.newStream()
        domain.openConsole(None, stream)
        domain.resume()
        return domain, stream

    def end_all(self) -> None:
        """End guests of a process that has died.

        libvirt does so itself, unless it was restarted meanwhile.

        Never raises.
        """
        libvirt = nova_host.libvirt
        try:
            connection = libvirt.open(self._uri)
            try:
                for domain in connection.listAllDomains():
                    if is_scrub_guest(domain.name()):
                        LOG.warning('Ending %s, which an earlier nova-compute '
                                    'has left', domain.name())
                        _end(domain, domain.name())
            finally:
                connection.close()
        except (libvirt.libvirtError, exception.HostError) as exc:
            LOG.warning('Cannot end the scrub guests that an earlier '
                        'nova-compute may have left: %s', exc)

    def _xml(self, guest: base.Guest) -> str:
        domain = etree.Element('domain', type=self._virt_type)
        domain_uuid = str(uuid.uuid4())
        # libvirt may still list an earlier guest of the card, which has ended.
        _add(domain, 'name',
             f'{_PREFIX}{guest.functions[0]}-{domain_uuid[:8]}')
        _add(domain, 'uuid', domain_uuid)
        _add(domain, 'memory', str(guest.memory_mib), unit='MiB')
        _add(domain, 'vcpu', '1')
        system = _add(domain, 'os')
        _add(system, 'type', 'hvm', arch='x86_64', machine=MACHINE)
        _add(system, 'kernel', guest.kernel)
        _add(system, 'initrd', guest.initrd)
        _add(system, 'cmdline', f'{_KERNEL} {guest.command_line}')
        features = _add(domain, 'features')
        _add(features, 'acpi')
        _add(features, 'apic')
        if self._virt_type == 'kvm':
            # A BAR of many GiB needs the host's width of addresses.
            _add(domain, 'cpu', mode='host-passthrough')
        for event in ('on_poweroff', 'on_reboot', 'on_crash'):
            _add(domain, event, 'destroy')
        devices = _add(domain, 'devices')
        _add(devices, 'controller', type='usb', model='none')
        _add(devices, 'memballoon', model='none')
        _add(_add(devices, 'serial', type='pty'), 'target', port='0')
        for hostdev in self._hostdevs(
                base.Attachment(functions=guest.functions), 0, MACHINE):
            element = hostdev.format_dom()
            # The BIOS would run the card's option ROM before the kernel.
            _add(element, 'rom', bar='off')
            devices.append(element)
        return str(etree.tostring(domain, encoding='unicode'))


def _add(parent: etree._Element, name: str, text: str | None = None,
         **attributes: str) -> etree._Element:
    element = etree.SubElement(parent, name, attributes)
    element.text = text
    return element


def _wait(domain: _Domain, stream: _Stream, seconds: float,
          until: Callable[[str], bool]) -> base.EndedGuest:
    """Wait until a guest closes its console, its time is up, or ``until``."""
    libvirt = nova_host.libvirt
    late = threading.Event()

    def end() -> None:
        late.set()
        # It may have ended just now; else _end says why it has not.
        with contextlib.suppress(libvirt.libvirtError):
            domain.destroy()
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    output = ''
    try:
        for data in _received(stream):
            output = (output + data)[-_OUTPUT:]
            if until(output):
                break
    except libvirt.libvirtError as exc:
        # So may the console end when its guest does.
        LOG.debug('The console of a scrub guest: %s', exc)
    finally:
        timer.cancel()
    return base.EndedGuest(output=output, in_time=not late.is_set())


def _received(stream: _Stream) -> Iterator[str]:
    """Yield what a console says, until it is closed."""
    while data := stream.recv(_CHUNK):
        yield data.decode(errors='replace')


def _end(domain: _Domain, address: str) -> None:
    """End a domain, and wait until it has ended.

    :raises HostError: it may go on
    """
    libvirt = nova_host.libvirt
    until = time.monotonic() + _ENDING
    try:
        with contextlib.suppress(libvirt.libvirtError):
            # It may be about to end by itself.
            domain.destroy()
        while domain.isActive():
            if time.monotonic() >= until:
                raise exception.HostError(
                    path=address, reason=f'its scrub guest still runs '
                                         f'{_ENDING:g} s after its end')
            time.sleep(0.1)
    except libvirt.libvirtError as exc:
        if exc.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise exception.HostError(
                path=address, reason=f'its scrub guest cannot be ended: '
                                     f'{exc}') from exc


# -- GPUs in libvirt's domains that neither Nova nor the plugin assigned.
#
# An operator may have defined such a domain, or Nova may have lost the record
# of its own guest. For a stopped guest, the domain's XML is the only record of
# its GPU.


def is_instance(uuid: str) -> bool:
    """Return whether Nova has, or had, an instance of this UUID.

    :raises Exception: Nova's database does not answer
    """
    try:
        objects.Instance.get_by_uuid(
            nova_context.get_admin_context(read_deleted='yes'), uuid,
            expected_attrs=[])
    except nova_exception.InstanceNotFound:
        return False
    return True


class OtherDomains:
    """GPUs of libvirt domains to which the plugin did not assign them.

    libvirt is asked only if a function is bound to a VFIO driver and not
    assigned.

    :param host: Nova's connection to libvirt
    :param assigned: returns the addresses of this host's assignments
    """

    def __init__(self, host: nova_types.LibvirtHost,
                 assigned: Callable[[], Collection[str]],
                 is_instance: Callable[[str], bool] = is_instance) -> None:
        self._host = host
        self._assigned = assigned
        self._is_instance = is_instance
        self._reported: dict[str, str] = {}

    def owners(self, scan: scanner.Scan) -> dict[str, str]:
        """Return the domains that have functions of this host, by address.

        :param scan: of the whole host
        :raises Exception: libvirt or Nova's database does not answer
        """
        unexplained = {
            function.address for function in scan.functions
            if vfio.is_vfio(function.driver)}.difference(self._assigned())
        self._reported = self._find(unexplained) if unexplained else {}
        return dict(self._reported)

    def changed(self) -> bool:
        """Return whether a reported domain no longer has its function.

        libvirt is not asked if ``owners`` reported none.
        """
        return bool(self._reported) and (
            self._find(self._reported) != self._reported)

    def _find(self, addresses: Collection[str]) -> dict[str, str]:
        return {
            address: f'libvirt domain {domain.name} ({domain.uuid})'
            for domain in self._host.list_guests(only_running=False)
            for address, is_managed in _hostdevs(domain.get_xml_desc())
            if address in addresses
            and not is_scrub_guest(domain.name)
            and (is_managed or not self._is_instance(domain.uuid))}


def guests(host: nova_types.LibvirtHost) -> tuple[host_drifts.GuestDevices,
                                                  ...]:
    """Return all domains with host devices, but those of cleanings.

    :raises Exception: libvirt does not answer
    """
    found = (
        host_drifts.GuestDevices(
            uuid=domain.uuid, name=domain.name,
            functions=tuple(address for address, _ in _hostdevs(xml)),
            mdevs=tuple(_mdevs(xml)))
        for domain in host.list_guests(only_running=False)
        if not is_scrub_guest(domain.name)
        for xml in (domain.get_xml_desc(),))
    return tuple(guest for guest in found if guest.functions or guest.mdevs)


def devices(xml: str) -> frozenset[str]:
    """Return the addresses and mdev UUIDs of a domain's host devices."""
    return frozenset(
        (*(address for address, _ in _hostdevs(xml)), *_mdevs(xml)))


def _mdevs(xml: str) -> Iterator[str]:
    """Yield the UUID of each mdev."""
    for source in etree.fromstring(xml).findall(
            "./devices/hostdev[@type='mdev']/source/address"):
        yield source.get('uuid')


def _hostdevs(xml: str) -> Iterator[tuple[str, bool]]:
    """Yield the address of each PCI function, and whether libvirt binds it.

    libvirt does not bind functions that the plugin assigned.
    """
    for hostdev in etree.fromstring(xml).findall(
            "./devices/hostdev[@type='pci']"):
        source = hostdev.find('./source/address')
        yield (str(pci.PCIAddress(*(int(source.get(name), 16) for name in (
            'domain', 'bus', 'slot', 'function')))),
            hostdev.get('managed') != 'no')
