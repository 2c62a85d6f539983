# SPDX-License-Identifier: Apache-2.0
"""Ids and fields of PCI configuration space and VPD.

Source: PCI Express Base Specification, capability structures; ids as in the
kernel's include/uapi/linux/pci_regs.h.
"""

from __future__ import annotations

import functools
import re
import struct
import typing
from collections.abc import Iterator

from gpgpu_plugin.host.discovery import sysfs as sysfs_mod

HEADER = 0x40
# Without and with PCIe's extended capabilities.
CONVENTIONAL = 0x100
SIZE = 0x1000
_CAP_POINTER = 0x34
_CAP_EXPRESS = 0x10
_EXT_FIRST = 0x100
_EXT_DSN = 0x0003
UPSTREAM_PORT = 5
# Resources of Vital Product Data (PCI Local Bus Specification 3.0, appendix
# I), and how many bytes are read: reading it is slow.
VPD_NAME = 0x82
VPD_R = 0x90
VPD_END = 0x78
VPD_READ = 1024


def is_dead(config: bytes) -> bool:
    """Return whether the device does not answer: every read gives ones.

    Ids alone do not prove it: those of a VF read ffff (SR-IOV specification).
    """
    header = config[:HEADER]
    return bool(header) and header.count(0xff) == len(header)


def port_type(config: bytes) -> int | None:
    """Return the device/port type of the PCIe capability; None: unknown."""
    for number, offset in _capabilities(config):
        if number == _CAP_EXPRESS:
            return (config[offset + 2] >> 4) & 0xf
    return None


def serial_number(config: bytes) -> str | None:
    """Return the PCIe Device Serial Number, ``xx-xx-xx-xx-xx-xx-xx-xx``."""
    at = serial_number_at(config)
    return None if at is None else config[at:at + 8][::-1].hex('-')


def serial_number_at(config: bytes) -> int | None:
    """Return the offset of the eight bytes of the Device Serial Number."""
    for number, offset in _extended_capabilities(config):
        if number == _EXT_DSN and offset + 12 <= len(config):
            return offset + 4
    return None


def shape(config: bytes) -> dict[str, str]:
    """Return fields that neither a guest nor a reset changes, in hex.

    They are ids, the serial number, the kinds of BARs, and the capabilities
    with their offsets.

    :param config: as root reads it; others get the header only
    :returns: by name of the field
    """
    if len(config) < HEADER:
        return {}
    found = {name: config[start:end][::-1].hex() for name, (start, end) in {
        'vendor': (0, 2), 'device': (2, 4), 'revision': (8, 9),
        'class': (9, 12), 'header type': (14, 15),
        'subsystem vendor': (44, 46), 'subsystem': (46, 48),
        'interrupt pin': (61, 62)}.items()}
    # The bits below the address are read-only. In the upper half of a 64-bit
    # BAR all bits belong to the address.
    kinds = []
    offset = 0x10
    while offset < 0x28:
        kinds.append(f'{config[offset] & 0xf:x}')
        offset += 8 if config[offset] & 0x7 == 0x4 else 4
    found['kinds of BARs'] = ' '.join(kinds)
    found['capabilities'] = ' '.join(
        f'{number:02x}@{at:02x}' for number, at in _capabilities(config))
    found['extended capabilities'] = ' '.join(
        f'{number:04x}@{at:03x}'
        for number, at in _extended_capabilities(config))
    serial = serial_number(config)
    if serial is not None:
        found['serial number'] = serial
    return found


def _capabilities(config: bytes) -> Iterator[tuple[int, int]]:
    """Yield ids and offsets of capabilities; garbage ends the list."""
    offset = config[_CAP_POINTER] & 0xfc if len(config) >= HEADER else 0
    for _ in range(48):
        if offset < HEADER or offset + 4 > len(config):
            return
        yield config[offset], offset
        offset = config[offset + 1] & 0xfc


def _extended_capabilities(config: bytes) -> Iterator[tuple[int, int]]:
    """Yield ids and offsets of extended capabilities, until garbage."""
    offset = _EXT_FIRST
    for _ in range(960):
        if offset < _EXT_FIRST or offset + 4 > len(config):
            return
        header, = struct.unpack_from('<I', config, offset)
        if header in (0, 0xffffffff):
            return
        yield header & 0xffff, offset
        offset = header >> 20 & 0xffc


def vpd_serial(vpd: bytes) -> str | None:
    """Return the SN keyword of the read-only part of VPD."""
    content = next((content for tag, content in vpd_resources(vpd)
                    if tag == VPD_R), b'')
    for keyword, value in vpd_fields(content):
        if keyword == b'SN':
            return value.decode('ascii', 'replace').strip('\0 ') or None
    return None


def vpd_resources(vpd: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tags and contents of large resources; garbage ends the list."""
    offset = 0
    while offset + 3 <= len(vpd):
        tag = vpd[offset]
        if not tag & 0x80:
            if tag >> 3 == VPD_END >> 3:
                return
            offset += 1 + (tag & 0x7)
            continue
        length = int.from_bytes(vpd[offset + 1:offset + 3], 'little')
        yield tag, vpd[offset + 3:offset + 3 + length]
        offset += 3 + length


def vpd_fields(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keywords and values of the fields that a resource has whole."""
    offset = 0
    while offset + 3 <= len(content):
        length = content[offset + 2]
        if offset + 3 + length > len(content):
            return
        yield (content[offset:offset + 2],
               content[offset + 3:offset + 3 + length])
        offset += 3 + length


# -- Ids of a PCI function.
#
# ``modalias`` has all but the revision in one attribute, which the kernel
# writes from what it keeps in memory (pci_uevent in drivers/pci/pci-driver.c
# and modalias_show in drivers/pci/pci-sysfs.c, format of file2alias.c).
# ``uevent`` has them too, but some kernels read it under the lock of the
# device, which a driver holds while it waits for a guest to close the device.


_MODALIAS = re.compile(
    'pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})'
    'sv0000([0-9A-F]{4})sd0000([0-9A-F]{4})'
    'bc([0-9A-F]{2})sc([0-9A-F]{2})i([0-9A-F]{2})')


class PCIIds(typing.NamedTuple):
    """Ids in lower-case hexadecimal digits; None: unknown."""

    vendor: str | None
    device: str | None
    subsystem_vendor: str | None
    subsystem: str | None
    revision: str | None
    class_code: str | None


def read_ids(folder: sysfs_mod.Folder, attempt: sysfs_mod.Attempt) -> PCIIds:
    """Return the ids of a function.

    :param folder: the function's
    """
    revision = attempt('revision', _read, folder, 'revision')
    try:
        found = _parsed(folder.read('modalias') or '', revision)
    except OSError:
        found = None
    if found is not None:
        return found
    # A recording of a host does not have it.
    vendor, device, subsystem_vendor, subsystem, class_code = (
        attempt(name, _read, folder, name)
        for name in ('vendor', 'device', 'subsystem_vendor',
                     'subsystem_device', 'class'))
    return PCIIds(vendor, device, subsystem_vendor, subsystem, revision,
                  class_code)


@functools.lru_cache(maxsize=1024)
def _parsed(modalias: str, revision: str | None) -> PCIIds | None:
    match = _MODALIAS.fullmatch(modalias)
    if match is None:
        return None
    vendor, device, subsystem_vendor, subsystem, *code = (
        part.lower() for part in match.groups())
    return PCIIds(vendor, device, subsystem_vendor, subsystem, revision,
                  ''.join(code))


def _read(folder: sysfs_mod.Folder, name: str) -> str | None:
    text = folder.read(name)
    return None if text is None else _digits(text)


@functools.lru_cache(maxsize=1024)
def _digits(text: str) -> str:
    return f'{int(text, 16):0{len(text.removeprefix("0x"))}x}'
