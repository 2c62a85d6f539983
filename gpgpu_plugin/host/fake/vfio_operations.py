# SPDX-License-Identifier: Apache-2.0
"""VFIO of a fake machine, with the memory of its GPUs.

A reset clears the memory, unless a test says that it does not.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pathlib
from collections.abc import Callable
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin import nvidia
from gpgpu_plugin.host.fake import resets

MEMORY = 2 * 1024 ** 2
_PLACES = 16


class FakeVFIO:
    """Implementation of gpgpu_plugin.host.vfio.operations.VFIO.

    :param root: root of the fake sysfs
    :param note: notes a write, as the kernel does, and may raise OSError
    :ivar outlasting: addresses of GPUs whose memory a reset does not clear
    :ivar sizes: bytes of memory by address; MEMORY for others
    :ivar stuck: addresses of GPUs that do not keep what is written
    :ivar uncleared: addresses of GPUs that never report that they have
        cleared their memory
    :ivar roms: option ROMs by address; the others have none
    """

    def __init__(self, root: str, note: Callable[[str], None]) -> None:
        self._devices = pathlib.Path(root, 'bus/pci/devices')
        self._note = note
        self.outlasting: set[str] = set()
        self.stuck: set[str] = set()
        self.uncleared: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.roms: dict[str, bytes] = {}
        self._content: dict[str, bytearray] = {}

    def content(self, address: str) -> bytearray:
        """Return all bytes of the memory, which a guest may change."""
        return self._content.setdefault(
            address, bytearray(self.memory(address)))

    def reset(self, address: str) -> None:
        """Reset a function: its memory is cleared, and it may die."""
        if address not in self.outlasting:
            self._content.pop(address, None)
        resets.apply((self._devices / address).resolve())

    def hot_reset(self, address: str, functions: Sequence[str]) -> None:
        try:
            self._note(f'bus/pci/devices/{address}/reset')
        except OSError as exc:
            raise exception.HostError(
                path=address,
                reason=f'it cannot be reset: {exc.strerror}') from None
        foreign = set(self._on_bus(address)).difference(functions)
        if foreign:
            raise exception.HostError(
                path=address, reason=f'it cannot be reset: its hot reset '
                f'would also reset {", ".join(sorted(foreign))}, which the '
                f'caller does not name')
        for name in functions:
            self.reset(name)

    def reset_and_wait(self, address: str, functions: Sequence[str],
                       ) -> nvidia.ClearReading:
        vendor, model = (
            (self._devices / address / name).read_text().strip()[2:]
            for name in ('vendor', 'device'))
        architecture = nvidia.architecture(vendor, model)
        if architecture is None:
            raise exception.HostError(
                path=address, reason='nobody can wait until it has cleared '
                f'its memory: no register of {vendor}:{model} is known')
        self.hot_reset(address, functions)
        return nvidia.ClearReading(
            before=1, first=0, boot=nvidia.REGISTERS[architecture].booted,
            clear=0 if address in self.uncleared else nvidia.CLEARED,
            milliseconds=20)

    def _on_bus(self, address: str) -> list[str]:
        """Return the functions on the bus of a function."""
        parent = (self._devices / address).resolve().parent.name
        if not (self._devices / parent).exists():
            # The bus of a host bridge.
            raise exception.HostError(
                path=address, reason='it cannot be reset: '
                + os.strerror(errno.ENODEV))
        bus = address.rpartition(':')[0]
        return [name for name in os.listdir(self._devices)
                if name.startswith(f'{bus}:')]

    def firmware(self, address: str) -> dict[str, str]:
        rom = self.roms.get(address)
        return {'option ROM': hashlib.sha256(rom).hexdigest() if rom else '',
                'VPD': ''}

    def memory(self, address: str) -> int:
        return self.sizes.get(address, MEMORY)

    def write_marks(self, address: str, seed: str) -> tuple[int, int]:
        marks = self._marks(address, seed)
        for place, mark in marks.items():
            self._write(address, place, mark)
        return len(marks), self.find_marks(address, seed)

    def find_marks(self, address: str, seed: str) -> int:
        content = self.content(address)
        return sum(content[place:place + len(mark)] == mark for place, mark
                   in self._marks(address, seed).items())

    def try_marks(self, address: str, seed: str) -> tuple[int, int]:
        result = self.write_marks(address, seed)
        for place, mark in self._marks(address, seed).items():
            self._write(address, place, bytes(len(mark)))
        return result

    def scrub(self, address: str, length: int) -> int:
        self._write(address, 0, bytes(length))
        return self.content(address)[:length].count(0)

    def _write(self, address: str, offset: int, data: bytes) -> None:
        if address not in self.stuck:
            self.content(address)[offset:offset + len(data)] = data

    def _marks(self, address: str, seed: str) -> dict[int, bytes]:
        distance = self.memory(address) // _PLACES
        return {place: hashlib.sha512(f'{seed} {place}'.encode()).digest()
                for place in range(0, distance * _PLACES, distance)
                } if distance else {}
