# SPDX-License-Identifier: Apache-2.0
"""Privileged wait until a GPU has cleared its memory after a reset.

The reset and the wait use one open device. Opening and closing it may reset
the function alone (vfio_device.opened), of which nobody says that the memory
is cleared after it, nor what the registers show then.
"""

from __future__ import annotations

import errno
import os
import pathlib
import struct
import time
from collections.abc import Sequence

from gpgpu_plugin import nvidia
from gpgpu_plugin import privsep
from gpgpu_plugin.privsep import guard
from gpgpu_plugin.privsep import sysfs
from gpgpu_plugin.privsep import vfio
from gpgpu_plugin.privsep import vfio_device

SECONDS = 30.0
"""Time limit for a GPU, that of NVIDIA's tool: 15 s until its
registers answer, 10 s until it has booted, and 5 s until it is cleared."""

_INTERVAL = 0.01


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.RESET_TIMEOUT)
def reset_and_wait(root: str, address: str, functions: Sequence[str],
                   ) -> tuple[int, ...]:
    """Reset a GPU's card, and wait until the GPU has cleared its memory.

    The caller names no register: those of the model are read (nvidia).

    :param root: root of the caller's sysfs
    :param address: the GPU, which is opened for this
    :param functions: all functions of its card, as the caller knows it
    :returns: the fields of nvidia.ClearReading, whether it is cleared or not
    :raises PermissionError: no register of the model is known, or the reset
        is refused, see vfio.hot_reset
    :raises OSError: the kernel refused, or the GPU or root is refused
    """
    sysfs.check_root(root)
    guard.check_gpu(root, address)
    registers = _registers(root, address)
    with vfio.opened_gpu(root, address) as device:
        before = _value(device.registers(), registers.clear)
        vfio.reset_card(device, root, address, functions)
        # The reset may have left its memory BARs disabled.
        return (before, *_awaited(device.registers(), registers))


def _registers(root: str, address: str) -> nvidia.Registers:
    """Return the registers of a model.

    :raises PermissionError: none are known
    """
    device = pathlib.Path(root, 'bus/pci/devices', address)
    vendor, model = ((device / name).read_text().strip().removeprefix('0x')
                     for name in ('vendor', 'device'))
    architecture = nvidia.architecture(vendor, model)
    if architecture is None:
        raise guard.refused(
            address, f'no register of {vendor}:{model} is known that shows '
            f'that it has cleared its memory')
    return nvidia.REGISTERS[architecture]


def _awaited(bar: vfio_device.Region,
             registers: nvidia.Registers) -> tuple[int, ...]:
    """Return all fields but ``before`` once the memory is cleared.

    After SECONDS they are returned as they are then.
    """
    began = time.monotonic()
    first = _value(bar, registers.clear)
    while True:
        # In this order: see nvidia.Registers.
        boot = _value(bar, registers.boot)
        clear = _value(bar, registers.clear)
        passed = time.monotonic() - began
        if registers.is_cleared(boot, clear) or passed >= SECONDS:
            return first, boot, clear, round(passed * 1000)
        time.sleep(_INTERVAL)


def _value(bar: vfio_device.Region, offset: int) -> int:
    """Return a register of 32 bits.

    :raises OSError: it is beyond the BAR, or the kernel refused
    """
    if offset + 4 > bar.size:
        raise OSError(errno.ENXIO, f'{os.strerror(errno.ENXIO)}: BAR 0 has '
                      f'{bar.size} bytes, and no register at {offset:#x}')
    [value] = struct.unpack('<I', bar.read(offset, 4))
    return int(value)
