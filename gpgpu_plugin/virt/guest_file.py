# SPDX-License-Identifier: Apache-2.0
"""The file on a config drive that says where a guest's GPUs are."""

from __future__ import annotations

import json
from collections.abc import Iterable

from lxml import etree

from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.objects import claim as claim_obj

_ADDRESS = ('domain', 'bus', 'slot', 'function')


def content(domain: str, devices: Iterable[
        tuple[claim_obj.Assignment, base.Attachment]]) -> str:
    """Return the file for a guest, as JSON.

    :param domain: XML that libvirt has of the domain
    """
    places = _places(domain)
    return json.dumps({'gpus': [{
        'variant': assignment.variant,
        'vgpu_type': (None if assignment.vgpu_type == naming.PASSTHROUGH
                      else assignment.vgpu_type),
        'addresses': [places[name] for name in (
            *attachment.functions, attachment.mdev) if name in places],
    } for assignment, attachment in devices]}) + '\n'


def addresses(domain: str, devices: Iterable[
        tuple[claim_obj.Assignment, base.Attachment]],
        ) -> dict[str, tuple[str, ...]]:
    """Return the addresses in the guest by UUID of the assignment.

    :param domain: XML that libvirt has of the domain
    :returns: empty for a device of which a function has no address
    """
    places = _places(domain)
    found = {}
    for assignment, attachment in devices:
        names = [*attachment.functions, *filter(None, [attachment.mdev])]
        found[assignment.uuid] = tuple(
            places[name] for name in names
        ) if all(name in places for name in names) else ()
    return found


def _places(domain: str) -> dict[str | None, str]:
    """Return addresses in the guest by address on the host or mdev UUID."""
    found: dict[str | None, str] = {}
    for device in etree.fromstring(domain).findall('./devices/hostdev'):
        source = device.find('./source/address')
        guest = device.find("./address[@type='pci']")
        if source is None or guest is None:
            continue
        found[source.get('uuid') or _address(source)] = _address(guest)
    return found


def _address(element: etree.Element) -> str:
    return str(pci.PCIAddress(*(
        int(element.get(name, '0'), 16) for name in _ADDRESS)))
