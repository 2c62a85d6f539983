# SPDX-License-Identifier: Apache-2.0
"""Labels of slots and onboard devices in the SMBIOS table of a host.

Source: DMTF DSP0134, System Management BIOS Reference Specification 3.7: 6.1
(structures), 7.10 (type 9, System Slots) and 7.42 (type 41, Onboard Devices
Extended Information).

Firmware wrote the table, and nobody verified it: what contradicts itself is
left out, so that a label is unknown rather than wrong.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

TABLE = 'firmware/dmi/tables/DMI'
"""The table, below the root of sysfs; only root can read it."""

LARGEST = 1 << 20
"""Bytes of a table that are read; tables of servers have a few KiB."""

_SLOT = 9
_ONBOARD = 41
_END = 127
_HEADER = 4
_STRINGS_END = b'\0\0'

# Fields of a slot, by distance from its header (7.10). The first ones are in
# all versions, an address since 2.6, peers since 3.2.
_SLOT_USAGE = 0x07
_SLOT_ADDRESS = 0x0d
_SLOT_PEERS = 0x12
_PEER = struct.Struct('<HBBB')
# Other, unknown, in use. A device in a slot that firmware calls "available"
# or "unavailable" is not what firmware had in mind.
_USED = (1, 2, 4)

_ONBOARD_TYPE = 0x05
_ONBOARD_ADDRESS = 0x07
_ENABLED = 0x80

_ADDRESS = struct.Struct('<HBB')
_UNKNOWN_SEGMENT = 0xffff
_UNKNOWN = 0xff

MAX_LENGTH = 128
"""Characters of a label; a longer one is left out."""

_PLACEHOLDERS = ('', 'default string', 'n/a', 'none', 'not specified',
                 'to be filled by o.e.m.', 'unknown')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labels:
    """Labels that firmware gives to PCI functions.

    :ivar slots: of slots, by the address of the function in the slot, or of
        the bridge that leads to it
    :ivar onboard: of devices on the mainboard, by address
    """

    slots: Mapping[str, str] = dataclasses.field(default_factory=dict)
    onboard: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def find(self, path: Sequence[str]) -> str | None:
        """Return the label of a function, else that of the nearest slot.

        Functions of one device are in one slot. A card with a switch of its
        own is in the slot of the switch.

        :param path: addresses from the root port to the function
        """
        if not path:
            return None
        *bridges, own = path
        for address in (own, f'{own.rpartition(".")[0]}.0'):
            label = self.slots.get(address) or self.onboard.get(address)
            if label is not None:
                return label
        return next((self.slots[bridge] for bridge in reversed(bridges)
                     if bridge in self.slots), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Statement:
    """A label and the functions for which one structure states it.

    :ivar addresses: empty: the structure does not say, or says that it is not
        in use
    """

    label: str
    is_slot: bool
    addresses: frozenset[str]


def selected(table: bytes) -> bytes:
    """Return a table that has only the structures with labels.

    Others have serial numbers of the host.
    """
    return b''.join(table[begin:end] for kind, begin, _, end
                    in _structures(table) if kind in (_SLOT, _ONBOARD))


def labels(table: bytes) -> Labels:
    """Return the labels in a table, without those that are ambiguous.

    A label is ambiguous if several structures give it to different functions,
    and a function's labels are if there are several.
    """
    statements = list(_statements(table))
    places: dict[str, set[frozenset[str]]] = {}
    names: dict[str, set[str]] = {}
    for statement in statements:
        places.setdefault(statement.label, set()).add(statement.addresses)
        for address in statement.addresses:
            names.setdefault(address, set()).add(statement.label)
    certain = [
        (statement, address) for statement in statements
        for address in statement.addresses
        if len(places[statement.label]) == 1 and len(names[address]) == 1]
    return Labels(
        slots=_by_address(certain, is_slot=True),
        onboard=_by_address(certain, is_slot=False))


def _by_address(certain: Iterable[tuple[_Statement, str]], *,
                is_slot: bool) -> dict[str, str]:
    return {address: statement.label for statement, address in certain
            if statement.is_slot == is_slot}


def _structures(table: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the whole structures of a table, until one is malformed.

    :returns: type, where the structure begins, where its strings begin, and
        where it ends
    """
    begin = 0
    while begin + _HEADER <= len(table):
        kind, length = table[begin], table[begin + 1]
        strings = begin + length
        end = table.find(_STRINGS_END, strings)
        if length < _HEADER or end < 0 or kind == _END:
            return
        end += len(_STRINGS_END)
        yield kind, begin, strings, end
        begin = end


def _statements(table: bytes) -> Iterator[_Statement]:
    for kind, begin, strings, end in _structures(table):
        if kind not in (_SLOT, _ONBOARD):
            continue
        fields = table[begin:strings]
        label = _string(table[strings:end], _byte(fields, _HEADER))
        if label is None:
            continue
        found = (_slot_addresses if kind == _SLOT
                 else _onboard_addresses)(fields)
        yield _Statement(label=label, is_slot=kind == _SLOT,
                         addresses=frozenset(filter(None, found)))


def _byte(fields: bytes, at: int) -> int:
    """Return a byte; 0: an older version of the structure lacks it."""
    return fields[at] if at < len(fields) else 0


def _string(strings: bytes, number: int) -> str | None:
    """Return a string by its number, which begins at 1.

    :returns: None: there is none, or it says nothing
    """
    found = strings.split(b'\0', number)
    if not 0 < number < len(found):
        return None
    text = found[number - 1].decode('utf-8', 'replace').strip()
    is_label = (len(text) <= MAX_LENGTH
                and text.casefold() not in _PLACEHOLDERS)
    return text if is_label else None


def _slot_addresses(fields: bytes) -> Iterator[str | None]:
    """Yield the addresses in a slot, which has several if it is bifurcated."""
    if _byte(fields, _SLOT_USAGE) not in _USED:
        return
    yield _address(fields, _SLOT_ADDRESS)
    for number in range(_byte(fields, _SLOT_PEERS)):
        yield _address(fields, _SLOT_PEERS + 1 + number * _PEER.size)


def _onboard_addresses(fields: bytes) -> Iterator[str | None]:
    if _byte(fields, _ONBOARD_TYPE) & _ENABLED:
        yield _address(fields, _ONBOARD_ADDRESS)


def _address(fields: bytes, at: int) -> str | None:
    """Return a PCI address; None: it is missing or unknown.

    Where firmware knows none it writes ones, or zeros: a host bridge, which is
    in no slot.
    """
    if at + _ADDRESS.size > len(fields):
        return None
    segment, bus, devfn = _ADDRESS.unpack_from(fields, at)
    if (segment == _UNKNOWN_SEGMENT or _UNKNOWN in (bus, devfn)
            or not (segment or bus or devfn)):
        return None
    return f'{segment:04x}:{bus:02x}:{devfn >> 3:02x}.{devfn & 7}'
