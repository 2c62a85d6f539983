# SPDX-License-Identifier: Apache-2.0
"""Contract of guests that get a card while it is being cleaned.

A virt driver that can boot such guests implements it (gpgpu_plugin.virt).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guest:
    """A guest without disk and network that gets all functions of a card.

    :ivar functions: addresses, that of the card's own function first; they
        are bound to their VFIO drivers
    :ivar kernel: path of its kernel
    :ivar initrd: path of its initramfs
    :ivar command_line: what the kernel is given, beside the console
    :ivar memory_mib: MiB of its main memory
    """

    functions: tuple[str, ...]
    kernel: str
    initrd: str
    command_line: str
    memory_mib: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """A guest that has ended.

    :ivar output: the end of what it wrote to its console
    :ivar in_time: whether it ended within its time
    """

    output: str
    in_time: bool


class Guests(typing.Protocol):
    """Way to boot guests on this host."""

    def run(self, guest: Guest, seconds: float,
            until: Callable[[str], bool]) -> Ended:
        """Boot a guest, and wait until it has ended.

        The kernel stops each access of the card to memory that is not the
        guest's (IOMMU), and the card's option ROMs do not run in it. When the
        call returns, no process of the guest exists.

        :param seconds: time after which it is ended
        :param until: whether its output is complete, so that it can be ended
        :raises HostNotReady: it cannot be started
        :raises HostError: it cannot be ended, and may still have the card
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScrubGuest:
    """Configuration of the guest that the step ``scrub-guest`` boots.

    :ivar path: folder with ``vmlinuz`` and ``initrd.img``; None: not
        configured
    :ivar memory_mib: MiB of its main memory
    :ivar seconds: time after which it is ended
    :ivar guests: boots it; None: the virt driver cannot do so
    """

    path: str | None = None
    memory_mib: int = 512
    seconds: float = 1800.0
    guests: Guests | None = None
