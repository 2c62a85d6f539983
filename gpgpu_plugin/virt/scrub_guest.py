# SPDX-License-Identifier: Apache-2.0
"""Guests of libvirt that get a card while it is being cleaned.

A guest is a transient domain that ends with its connection, so none outlives
nova-compute. libvirt gives QEMU access to the card's VFIO files, and confines
QEMU as it does with the guests of tenants.
"""

from __future__ import annotations

import contextlib
import threading
import time
import typing
import uuid
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

from lxml import etree
from nova.virt.libvirt import config as libvirt_config
from nova.virt.libvirt import host as nova_host
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.host import base
from gpgpu_plugin.host import guest as guest_mod

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
    """Return whether a domain of this name is a guest of this module."""
    return name.startswith(_PREFIX)


class LibvirtGuests(guest_mod.Guests):
    """Guests of the libvirt on this host.

    :param uri: that of Nova's connection
    :param virt_type: ``kvm`` or ``qemu``
    :param hostdevs: returns the devices of a domain for an attachment
    """

    def __init__(self, uri: str, virt_type: str, hostdevs: Hostdevs) -> None:
        self._uri = uri
        self._virt_type = virt_type
        self._hostdevs = hostdevs

    def run(self, guest: guest_mod.Guest, seconds: float,
            until: Callable[[str], bool]) -> guest_mod.Ended:
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

    def _start(self, guest: guest_mod.Guest, at_end: contextlib.ExitStack,
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

    def _xml(self, guest: guest_mod.Guest) -> str:
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
          until: Callable[[str], bool]) -> guest_mod.Ended:
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
    return guest_mod.Ended(output=output, in_time=not late.is_set())


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
