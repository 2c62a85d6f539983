# SPDX-License-Identifier: Apache-2.0
"""Anonymous serial numbers for recordings.

A serial number is replaced by a count of the different ones so far. Equal
numbers stay equal and different ones stay different. The original cannot be
guessed, as it could be from a hash of a vendor's consecutive numbers.
"""

from __future__ import annotations

from gpgpu_plugin.host.discovery import config_space

# Keywords of the read-only part of VPD that say which product it is. Others
# may identify the very card, or its owner.
_KEPT = (b'PN', b'EC', b'MN')
_SERIAL = b'SN'


class SerialNumbers:
    """The serial numbers of one recording, and their replacements."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def config(self, config: bytes) -> bytes:
        """Return configuration space with another Device Serial Number."""
        at = config_space.serial_number_at(config)
        if at is None:
            return config
        serial = config[at:at + 8]
        # These mean "no number" and identify nothing.
        if serial in (bytes(8), b'\xff' * 8):
            return config
        return (config[:at] + self._number(serial).to_bytes(8, 'little')
                + config[at + 8:])

    def vpd(self, vpd: bytes) -> bytes:
        """Return Vital Product Data with another serial number.

        Apart from it, only the product's name and the keywords of _KEPT
        remain.
        """
        made = bytearray()
        for tag, content in config_space.vpd_resources(vpd):
            if tag == config_space.VPD_R:
                content = b''.join(
                    keyword + bytes([len(value)]) + value
                    for keyword, value in map(
                        self._field, config_space.vpd_fields(content))
                    if keyword in (*_KEPT, _SERIAL))
            elif tag != config_space.VPD_NAME:
                continue
            made += bytes([tag]) + len(content).to_bytes(2, 'little')
            made += content
        return bytes(made) + bytes([config_space.VPD_END]) if made else b''

    def _field(self, field: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        keyword, value = field
        if keyword != _SERIAL or not value.strip(b'\0 '):
            return field
        digits = b'%0*d' % (len(value), self._number(value))
        return keyword, digits[-len(value):]

    def _number(self, serial: bytes) -> int:
        return self._numbers.setdefault(serial, len(self._numbers) + 1)
