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
"""PCI configuration space: the few fields that sysfs has no attribute for.

Source: PCI Express Base Specification, capability structures; ids as in the
kernel's include/uapi/linux/pci_regs.h.
"""

from __future__ import annotations

import struct

HEADER = 0x40
_CAP_POINTER = 0x34
_CAP_EXPRESS = 0x10
_EXT_FIRST = 0x100
_EXT_DSN = 0x0003
UPSTREAM_PORT = 5


def is_dead(config: bytes) -> bool:
    """Whether nothing answers: every read gives ones.

    Ids alone tell nothing: those of a VF read ffff (SR-IOV specification).
    """
    header = config[:HEADER]
    return bool(header) and header.count(0xff) == len(header)


def port_type(config: bytes) -> int | None:
    """Device/port type of the PCIe capability; None if it cannot be told."""
    offset = config[_CAP_POINTER] & 0xfc if len(config) >= 64 else 0
    for _ in range(48):
        if offset < 64 or offset + 4 > len(config):
            return None
        if config[offset] == _CAP_EXPRESS:
            return (config[offset + 2] >> 4) & 0xf
        offset = config[offset + 1] & 0xfc
    return None


def serial_number(config: bytes) -> str | None:
    """PCIe Device Serial Number as ``xx-xx-xx-xx-xx-xx-xx-xx``."""
    offset = _EXT_FIRST
    for _ in range(960):
        if offset < _EXT_FIRST or offset + 12 > len(config):
            return None
        header, = struct.unpack_from('<I', config, offset)
        if header in (0, 0xffffffff):
            return None
        if header & 0xffff == _EXT_DSN:
            return config[offset + 4:offset + 12][::-1].hex('-')
        offset = header >> 20 & 0xffc
    return None


def vpd_serial(vpd: bytes) -> str | None:
    """The SN keyword of the read-only part of Vital Product Data."""
    offset = 0
    while offset + 3 <= len(vpd):
        tag = vpd[offset]
        if not tag & 0x80:
            if tag >> 3 == 0x0f:
                return None
            offset += 1 + (tag & 0x7)
            continue
        length = int.from_bytes(vpd[offset + 1:offset + 3], 'little')
        if tag == 0x90:
            return _keyword(vpd[offset + 3:offset + 3 + length], b'SN')
        offset += 3 + length
    return None


def _keyword(fields: bytes, wanted: bytes) -> str | None:
    offset = 0
    while offset + 3 <= len(fields):
        length = fields[offset + 2]
        if fields[offset:offset + 2] == wanted:
            value = fields[offset + 3:offset + 3 + length]
            return value.decode('ascii', 'replace').strip('\0 ') or None
        offset += 3 + length
    return None
