# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs that report in a register that they have cleared their memory.

Since Turing, the firmware of NVIDIA's GPUs clears the memory while it boots,
which it does after each reset of the bus. Sources: NVIDIA/gpu-admin-tools
v2026.02.24, nvidia_gpu_tools.py (wait_for_memory_clear, wait_for_boot,
GPU_MAP), gpu/devid_chips.py, and the therm.py of each chip in gpu/regs;
NVIDIA/open-gpu-kernel-modules, kfspWaitForSecureBoot, for GB110 and GB112.
The values are from these sources, and were never tried on a GPU.

The privileged helper reads no register that is not named here. It trusts this
module, which therefore imports nothing of the plugin.
"""

from __future__ import annotations

import enum
import typing

VENDOR = '10de'


class Architecture(enum.StrEnum):
    """Architecture of a GPU, as far as its registers and settings differ."""

    TURING = 'Turing'
    GA100 = 'Ampere GA100'
    AMPERE = 'Ampere'
    ADA = 'Ada'
    HOPPER = 'Hopper'
    GB1XX = 'Blackwell GB1xx'
    GB2XX = 'Blackwell GB2xx'


class ClearReading(typing.NamedTuple):
    """Values of the registers around a reset.

    :ivar before: register ``clear`` before the reset
    :ivar first: the same directly after the reset
    :ivar boot: register ``boot`` in the end
    :ivar clear: register ``clear`` in the end, read after ``boot``
    :ivar milliseconds: time from the reset to the end
    """

    before: int
    first: int
    boot: int
    clear: int
    milliseconds: int


class Registers(typing.NamedTuple):
    """Registers of BAR 0 that show how far a GPU is after a reset.

    :ivar boot: offset of the register that is ``booted`` once the firmware has
        booted. Only then the last of several clears of the memory has begun,
        so that ``clear`` says nothing before
    :ivar clear: offset of the register that is CLEARED once the memory is
    """

    boot: int
    booted: int
    clear: int

    def is_cleared(self, boot: int, clear: int) -> bool:
        """Return whether both registers show that the memory is cleared.

        A GPU that does not answer reads 0xffffffff, and a register that it
        does not let anybody read 0xbadf and a code. Neither is what is
        compared here, bit by bit.
        """
        return boot == self.booted and clear == CLEARED


CLEARED = 1
"""Value of the register ``clear`` of a GPU that has cleared its memory."""

_FALCON = Registers(boot=0x118234, booted=0x3ff, clear=0x100b20)

REGISTERS: typing.Final = {
    Architecture.TURING: _FALCON,
    Architecture.GA100: _FALCON,
    Architecture.AMPERE: _FALCON,
    Architecture.ADA: _FALCON,
    Architecture.HOPPER: Registers(
        boot=0x200bc, booted=0xff, clear=0x100b20),
    Architecture.GB1XX: Registers(
        boot=0x200bc, booted=0xff, clear=0x8a004c),
    Architecture.GB2XX: Registers(
        boot=0xad00bc, booted=0xff, clear=0x8a004c)}

# First and last device id. Of the architectures before Hopper, NVIDIA's tool
# knows only the chips of these products for data centres.
_MODELS = (
    (0x1eb8, 0x1eb8, Architecture.TURING),   # T4
    (0x20b0, 0x20bf, Architecture.GA100),    # A100, A30
    (0x20f1, 0x20f6, Architecture.GA100),    # A100, A800
    (0x2235, 0x2237, Architecture.AMPERE),   # A40, A10, A10G
    (0x25b6, 0x25b6, Architecture.AMPERE),   # A16, A2
    (0x26b5, 0x26ba, Architecture.ADA),      # L40, L40G, L40S, L20
    (0x27b6, 0x27b8, Architecture.ADA),      # L2, L4
    (0x22f0, 0x237f, Architecture.HOPPER),   # GH100
    (0x2900, 0x29ff, Architecture.GB1XX),    # GB100, GB102
    (0x3180, 0x327f, Architecture.GB1XX),    # GB110, GB112
    (0x2b80, 0x2bff, Architecture.GB2XX),    # GB202
    (0x2c00, 0x2c7f, Architecture.GB2XX),    # GB203
    (0x2d00, 0x2dff, Architecture.GB2XX),    # GB206, GB207
    (0x2f00, 0x2f7f, Architecture.GB2XX))    # GB205


def architecture(vendor: str | None,
                 device: str | None) -> Architecture | None:
    """Return the architecture of a model.

    :param vendor: PCI id, four hex digits in lower case
    :param device: PCI id, as well
    :returns: None: the model is unknown
    """
    if vendor != VENDOR or device is None:
        return None
    number = int(device, 16)
    return next((found for first, last, found in _MODELS
                 if first <= number <= last), None)
