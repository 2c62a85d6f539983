# SPDX-License-Identifier: Apache-2.0
"""Privileged resets and memory tests of idle GPUs, by VFIO.

A function is opened only if guard.check_idle_vfio allows it: it is on a GPU's
card, bound to a VFIO driver, and no guest has it. Opening and closing it may
reset it (vfio_device.opened), also between two calls of this module.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import operator
import os
import pathlib
import struct
import time
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from gpgpu_plugin import nvidia
from gpgpu_plugin import privsep
from gpgpu_plugin.privsep import guard
from gpgpu_plugin.privsep import sysfs
from gpgpu_plugin.privsep import vfio_device

_MIB = 1024 ** 2
SCRUB_LIMIT = 512 * _MIB
"""Bytes of memory that are scrubbed at most, as VFIO reads few at a time."""

SCRUB_SECONDS = 220
"""Timeout of a scrub. The helper goes on until it has written all memory, and
nobody else can open the device until then."""

MARKED_SIZE = _MIB
"""Bytes of the smallest memory that is marked."""

MARKS = 64
MARK_SIZE = 64
_PAGE = 4096
_VPD_READ = 1024


@contextlib.contextmanager
def _opened(root: str, address: str) -> Iterator[vfio_device.VFIODevice]:
    """Open an idle function of the helper's own sysfs during the block."""
    sysfs.check_root(root)
    guard.check_idle_vfio(root, address)
    with vfio_device.opened(root, address) as device:
        yield device


@contextlib.contextmanager
def opened_gpu(root: str, address: str) -> Iterator[vfio_device.VFIODevice]:
    """Open an idle GPU during the block, and no other function of its card.

    :param root: root of the caller's sysfs
    :raises OSError: the GPU or the root is refused, or it cannot be opened
    """
    sysfs.check_root(root)
    guard.check_gpu(root, address)
    with _opened(root, address) as device:
        yield device


@contextlib.contextmanager
def _opened_memory(root: str, address: str,
                   ) -> Iterator[vfio_device.VFIORegion | None]:
    """Open an idle GPU, and return its memory during the block.

    Other functions, also those on its card, have registers behind their BARs.
    """
    with opened_gpu(root, address) as device:
        yield device.memory()


@contextlib.contextmanager
def _explained(root: str, address: str) -> Iterator[None]:
    """Add to an error of the kernel which functions VFIO does not own."""
    try:
        yield
    except OSError as exc:
        names = ', '.join(_not_owned(root, address))
        raise OSError(
            exc.errno, f'the kernel refuses its hot reset: {exc.strerror}; '
            + (f'VFIO does not own {names} on its bus' if names
               else 'VFIO owns all functions on its bus'), address) from None


def _not_owned(root: str, address: str) -> list[str]:
    """Return the functions on a bus without a VFIO driver or IOMMU group."""
    devices = pathlib.Path(root, 'bus/pci/devices')
    bus = address.rpartition(':')[0]
    return [name for name in sorted(os.listdir(devices))
            if name.startswith(f'{bus}:')
            and not (guard.has_vfio(root, name)
                     and (devices / name / 'iommu_group').exists())]


def _check_scope(root: str, address: str, scope: Iterable[str],
                 functions: Iterable[str]) -> None:
    """Refuse a reset that reaches beyond the caller's card.

    The caller may name anything, so all must be on the card of the function
    itself. A bridge or another driver's function is refused, too.

    :raises OSError: it does, or a member is in use
    """
    card = address.rpartition('.')[0]
    foreign = sorted(set(scope).difference(functions))
    elsewhere = sorted(name for name in scope
                       if name.rpartition('.')[0] != card)
    if foreign or elsewhere:
        reason = ('which the caller does not name' if foreign
                  else 'which are not on its card')
        raise guard.refused(
            address, 'its hot reset would also reset '
            f'{", ".join(foreign or elsewhere)}, {reason}')
    for name in scope:
        # This process has the function itself open by now.
        if name != address:
            guard.check_idle_vfio(root, name)


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.RESET_TIMEOUT)
def hot_reset(root: str, address: str, functions: Sequence[str]) -> None:
    """Reset a function together with all functions of its slot or bus.

    :param root: root of the caller's sysfs
    :param address: one function of the card
    :param functions: all functions of the card, as the caller knows it
    :raises PermissionError: the reset would reset a function that is not
        among them, not on the card, in use or not bound to a VFIO driver
    :raises OSError: the kernel refused, or the function or root is refused
    """
    with _opened(root, address) as device:
        reset_card(device, root, address, functions)


def reset_card(device: vfio_device.VFIODevice, root: str, address: str,
               functions: Iterable[str]) -> None:
    """Reset the card of a function that this process has open.

    :param device: the function
    :param functions: all functions of the card, as the caller knows it
    :raises OSError: as hot_reset does
    """
    with _explained(root, address):
        scope = device.hot_reset_scope()
    _check_scope(root, address, [member.address for member in scope],
                 functions)
    with _explained(root, address):
        device.hot_reset(member.group for member in scope)


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.RESET_TIMEOUT)
def firmware(root: str, address: str) -> tuple[str, str]:
    """Return what tells the firmware of a GPU from another one.

    :param root: root of the caller's sysfs
    :param address: the GPU, which is opened for this
    :returns: SHA-256 of the option ROM, and of the beginning of VPD, in hex;
        empty if the GPU shows none
    :raises OSError: the device does not answer, or it or the root is refused
    """
    with opened_gpu(root, address) as device:
        region = device.option_rom()
        rom = hashlib.sha256()
        for at in range(0, region.size, _MIB):
            rom.update(region.read(at, min(_MIB, region.size - at)))
        vpd = _vpd(root, address)
    return (rom.hexdigest() if region.size else '',
            hashlib.sha256(vpd).hexdigest() if vpd else '')


def _vpd(root: str, address: str) -> bytes:
    """Return the beginning of VPD, which is slow to read."""
    path = pathlib.Path(root, 'bus/pci/devices', address, 'vpd')
    if not path.exists():
        return b''
    with path.open('rb', buffering=0) as file:
        return file.read(_VPD_READ)


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def memory(root: str, address: str) -> int:
    """Return how many bytes of a GPU's memory can be reached.

    :param root: root of the caller's sysfs
    :param address: the GPU, which is opened for this
    :returns: size of its largest prefetchable memory BAR; 0 if it has none
    :raises OSError: the device does not answer, or it or the root is refused
    """
    with _opened_memory(root, address) as region:
        return region.size if region else 0


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def write_marks(root: str, address: str, seed: str) -> tuple[int, int]:
    """Write marks over a GPU's memory, and read them back.

    A function that the kernel can reset on its own is reset when this closes
    it, as is a bus whose functions are all idle and bound to VFIO drivers. So
    marks may be lost when this call ends; marks that survive are evidence.

    :param root: root of the caller's sysfs
    :param address: the GPU, which is opened for this
    :param seed: what tells these marks from those of another run
    :returns: how many marks were written, and how many of them were read
        back; both 0 if less than MARKED_SIZE can be reached
    :raises OSError: the device does not answer, or it or the root is refused
    """
    with _opened_memory(root, address) as region:
        return _written(region, seed)


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def try_marks(root: str, address: str, seed: str) -> tuple[int, int]:
    """Do as write_marks, and write zeros over the marks after that."""
    with _opened_memory(root, address) as region:
        result = _written(region, seed)
        for place in _places(region):
            assert region is not None
            region.write(place, bytes(MARK_SIZE))
        return result


@privsep.sys_admin_pctxt.entrypoint_with_timeout(privsep.TIMEOUT)
def find_marks(root: str, address: str, seed: str) -> int:
    """Return how many marks of write_marks are in a GPU's memory.

    :param root: root of the caller's sysfs
    :param address: the GPU; opening it may reset it, see write_marks
    :param seed: that of the marks
    :raises OSError: the device does not answer, or it or the root is refused
    """
    with _opened_memory(root, address) as region:
        return _found(region, seed) if region else 0


@privsep.sys_admin_pctxt.entrypoint_with_timeout(SCRUB_SECONDS)
def scrub(root: str, address: str, length: int) -> int:
    """Write all of a GPU's memory twice, and read it back each time.

    First each page gets a content of its own, then zeros, which stay. VFIO
    hides the MSI-X table of a BAR that has one: its bytes never count.

    :param root: root of the caller's sysfs
    :param length: bytes of memory that the GPU has, at most SCRUB_LIMIT
    :returns: how many bytes were read back right, at least
    :raises PermissionError: the BAR does not show so much, or it is too long
    :raises OSError: the device does not answer, or it or the root is refused
    """
    with _opened_memory(root, address) as region:
        size = region.size if region else 0
        if region is None or not 0 < length <= min(size, SCRUB_LIMIT):
            raise guard.refused(
                address, f'{length} bytes are not within its memory BAR of '
                f'{size} bytes, or more than {SCRUB_LIMIT} bytes')
        seed = os.urandom(16)
        return min(_filled(region, length, seed),
                   _filled(region, length, None))


def _filled(region: vfio_device.VFIORegion, length: int,
            seed: bytes | None) -> int:
    """Write all pages, then return how many bytes are as written.

    None is read before all are written: where the memory is smaller than the
    BAR, a page appears in several places, and the last content stays.

    :param seed: None: zeros
    """
    chunks = [(at, min(_MIB, length - at)) for at in range(0, length, _MIB)]
    for at, count in chunks:
        region.write(at, _content(at, count, seed))
    return sum(_equal(region.read(at, count), _content(at, count, seed))
               for at, count in chunks)


def _content(at: int, count: int, seed: bytes | None) -> bytes:
    """Return what a part of the memory gets that begins at a page."""
    if seed is None:
        return bytes(count)
    return b''.join(
        hashlib.sha512(seed + page.to_bytes(8)).digest() * (_PAGE // 64)
        for page in range(at, at + count, _PAGE))[:count]


def _equal(found: bytes, expected: bytes) -> int:
    """Return how many bytes are equal, place by place."""
    if found == expected:
        return len(expected)
    return sum(map(operator.eq, found, expected))


def _written(region: vfio_device.VFIORegion | None,
             seed: str) -> tuple[int, int]:
    """Write marks; return how many, and how many of them were read back.

    All are written before one is read, see _filled.
    """
    places = _places(region)
    if region is None or not places:
        return 0, 0
    for place in places:
        region.write(place, _mark(seed, place))
    return len(places), _found(region, seed)


def _places(region: vfio_device.VFIORegion | None) -> list[int]:
    """Return where marks are: on the first page, the last, and between."""
    if region is None or region.size < MARKED_SIZE:
        return []
    last = region.size // _PAGE - 1
    return [index * last // (MARKS - 1) * _PAGE for index in range(MARKS)]


def _mark(seed: str, place: int) -> bytes:
    """Return the mark of a place, which has MARK_SIZE bytes."""
    return hashlib.sha512(f'{seed} {place}'.encode()).digest()


def _found(region: vfio_device.VFIORegion, seed: str) -> int:
    """Return how many marks are at their places."""
    return sum(region.read(place, MARK_SIZE) == _mark(seed, place)
               for place in _places(region))


# -- Privileged wait until a GPU has cleared its memory after a reset.
#
# The reset and the wait use one open device. Opening and closing it may reset
# the function alone (vfio_device.opened), of which nobody says that the memory
# is cleared after it, nor what the registers show then.


CLEAR_SECONDS = 30.0
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
        is refused, see hot_reset
    :raises OSError: the kernel refused, or the GPU or root is refused
    """
    sysfs.check_root(root)
    guard.check_gpu(root, address)
    registers = _registers(root, address)
    with opened_gpu(root, address) as device:
        before = _value(device.registers(), registers.clear)
        reset_card(device, root, address, functions)
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


def _awaited(bar: vfio_device.VFIORegion,
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
        if registers.is_cleared(boot, clear) or passed >= CLEAR_SECONDS:
            return first, boot, clear, round(passed * 1000)
        time.sleep(_INTERVAL)


def _value(bar: vfio_device.VFIORegion, offset: int) -> int:
    """Return a register of 32 bits.

    :raises OSError: it is beyond the BAR, or the kernel refused
    """
    if offset + 4 > bar.size:
        raise OSError(errno.ENXIO, f'{os.strerror(errno.ENXIO)}: BAR 0 has '
                      f'{bar.size} bytes, and no register at {offset:#x}')
    [value] = struct.unpack('<I', bar.read(offset, 4))
    return int(value)
