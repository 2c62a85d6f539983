# SPDX-License-Identifier: Apache-2.0
"""GPUs in libvirt's domains that neither Nova nor the plugin assigned.

An operator may have defined such a domain, or Nova may have lost the record of
its own guest. For a stopped guest, the domain's XML is the only record of its
GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator

from lxml import etree
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects

from gpgpu_plugin import vfio
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.doctor import host as host_drifts
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.virt import scrub_guest


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
            and not scrub_guest.is_scrub_guest(domain.name)
            and (is_managed or not self._is_instance(domain.uuid))}


def guests(host: nova_types.LibvirtHost) -> tuple[host_drifts.Guest, ...]:
    """Return all domains with host devices, but those of cleanings.

    :raises Exception: libvirt does not answer
    """
    found = (
        host_drifts.Guest(
            uuid=domain.uuid, name=domain.name,
            functions=tuple(address for address, _ in _hostdevs(xml)),
            mdevs=tuple(_mdevs(xml)))
        for domain in host.list_guests(only_running=False)
        if not scrub_guest.is_scrub_guest(domain.name)
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
