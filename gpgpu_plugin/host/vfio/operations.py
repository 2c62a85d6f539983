# SPDX-License-Identifier: Apache-2.0
"""Operations of VFIO on GPUs that no process has open.

It resets a whole card at once, and reaches the memory of a GPU without the
GPU's driver: through the largest memory BAR, which may show a part of it only.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from collections.abc import Sequence

from gpgpu_plugin import nvidia
from gpgpu_plugin import privsep
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.privsep import vfio as privsep_vfio

T = typing.TypeVar('T')

FIRMWARE = ('option ROM', 'VPD')
"""Names of what VFIO.firmware returns: the function's expansion ROM, and its
Vital Product Data."""

SCRUB_LIMIT = privsep_vfio.SCRUB_LIMIT
SCRUB_SECONDS = privsep_vfio.SCRUB_SECONDS


class VFIO(typing.Protocol):
    """Access to GPUs that are bound to a VFIO driver.

    All methods raise HostError if the hardware or the kernel refuses, for
    example since a process has the device open, and HostNotReady if the
    privileged helper does not start.
    """

    def hot_reset(self, address: str, functions: Sequence[str]) -> None:
        """Reset a card.

        It is refused if the reset would also reset what is not on the card.

        :param functions: addresses of all functions of the card
        """

    def reset_and_wait(self, address: str, functions: Sequence[str],
                       ) -> nvidia.ClearReading:
        """Reset a card as hot_reset does, and wait for its GPU.

        It waits until the GPU reports that it has cleared its memory, or for
        privsep.vfio.CLEAR_SECONDS.

        :param address: the GPU
        :returns: what it reported before and after; it may not be cleared
        """

    def firmware(self, address: str) -> dict[str, str]:
        """Return what tells a function's firmware from another one.

        :returns: for FIRMWARE, hashes in hex; empty where it shows none
        """

    def memory(self, address: str) -> int:
        """Return the size of the memory that can be reached.

        :returns: bytes; 0 if the GPU has no memory BAR
        """

    def write_marks(self, address: str, seed: str) -> tuple[int, int]:
        """Write marks into the memory of a GPU.

        :param seed: what the marks are made of
        :returns: how many places were written; how many of them could be read
            back
        """

    def find_marks(self, address: str, seed: str) -> int:
        """Return how many marks of a seed are in the memory of a GPU."""

    def try_marks(self, address: str, seed: str) -> tuple[int, int]:
        """Do as write_marks, and erase the marks after that."""

    def scrub(self, address: str, length: int) -> int:
        """Write all memory of a GPU twice, with zeros in the end.

        :param length: bytes of memory that the GPU has, at most SCRUB_LIMIT
        :returns: how many bytes could be read back right, at least
        """


class PrivilegedVFIO(VFIO):
    """VFIO as the privileged helper uses it."""

    def __init__(self, sysfs: sysfs_mod.Sysfs) -> None:
        self._root = sysfs.root

    def _call(self, function: Callable[..., T], address: str, what: str,
              *args: object) -> T:
        """Call the helper.

        :param what: what cannot be done if it fails
        """
        with binding.translate_errors(address, what):
            return privsep.call(function, self._root, address, *args)

    def hot_reset(self, address: str, functions: Sequence[str]) -> None:
        self._call(privsep_vfio.hot_reset, address, 'it cannot be reset',
                   list(functions))

    def reset_and_wait(self, address: str, functions: Sequence[str],
                       ) -> nvidia.ClearReading:
        return nvidia.ClearReading(*self._call(
            privsep_vfio.reset_and_wait, address,
            'nobody can wait until it has cleared its memory',
            list(functions)))

    def firmware(self, address: str) -> dict[str, str]:
        found = self._call(
            privsep_vfio.firmware, address, 'its firmware cannot be read')
        return dict(zip(FIRMWARE, found, strict=True))

    def memory(self, address: str) -> int:
        size: int = self._call(
            privsep_vfio.memory, address, 'its memory cannot be read')
        return size

    def write_marks(self, address: str, seed: str) -> tuple[int, int]:
        places, kept = self._call(
            privsep_vfio.write_marks, address, 'no mark can be written', seed)
        return places, kept

    def find_marks(self, address: str, seed: str) -> int:
        found: int = self._call(
            privsep_vfio.find_marks, address, 'its memory cannot be read',
            seed)
        return found

    def try_marks(self, address: str, seed: str) -> tuple[int, int]:
        places, kept = self._call(
            privsep_vfio.try_marks, address, 'no mark can be written', seed)
        return places, kept

    def scrub(self, address: str, length: int) -> int:
        verified: int = self._call(
            privsep_vfio.scrub, address, 'it cannot be scrubbed', length)
        return verified
