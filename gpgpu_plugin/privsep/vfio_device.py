# SPDX-License-Identifier: Apache-2.0
"""VFIO devices that this process opens, of functions that no guest has.

The groups of a container map no memory of this process, so the devices can do
no DMA. Sources: include/uapi/linux/vfio.h, include/uapi/linux/pci_regs.h and
Documentation/driver-api/vfio.rst.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import pathlib
import struct
import typing
from collections.abc import Iterable
from collections.abc import Iterator

VFIO_CHECK_EXTENSION = 0x3b65
VFIO_SET_IOMMU = 0x3b66
VFIO_GROUP_SET_CONTAINER = 0x3b68
VFIO_GROUP_GET_DEVICE_FD = 0x3b6a
VFIO_DEVICE_GET_REGION_INFO = 0x3b6c
VFIO_DEVICE_GET_PCI_HOT_RESET_INFO = 0x3b70
VFIO_DEVICE_PCI_HOT_RESET = 0x3b71
VFIO_TYPE1_IOMMU = 1
VFIO_TYPE1v2_IOMMU = 3
VFIO_PCI_BAR0_REGION_INDEX = 0
VFIO_PCI_BAR5_REGION_INDEX = 5
VFIO_PCI_ROM_REGION_INDEX = 6
VFIO_PCI_CONFIG_REGION_INDEX = 7

PCI_COMMAND = 0x04
PCI_COMMAND_MEMORY = 0x2
PCI_BASE_ADDRESS_0 = 0x10
PCI_BASE_ADDRESS_SPACE_IO = 0x1
PCI_BASE_ADDRESS_MEM_PREFETCH = 0x8
_BAR_BITS = PCI_BASE_ADDRESS_SPACE_IO | PCI_BASE_ADDRESS_MEM_PREFETCH

# struct vfio_region_info: argsz, flags, index, cap_offset, size, offset.
_REGION_INFO = struct.Struct('=IIIIQQ')
# struct vfio_pci_hot_reset_info and vfio_pci_hot_reset: argsz, flags, count.
_HOT_RESET = struct.Struct('=III')
# struct vfio_pci_dependent_device: group_id, segment, bus, devfn.
_DEPENDENT = struct.Struct('=IHBB')


class Dependent(typing.NamedTuple):
    """A function that a hot reset of another one resets, too.

    :ivar address: its PCI address
    :ivar group: number of its IOMMU group
    """

    address: str
    group: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class VFIORegion:
    """A part of a device, such as the memory behind a BAR.

    It is read and written by system calls. It is not mapped: an access that
    the device does not answer would be a SIGBUS, which ends the helper.

    :ivar fd: file descriptor of the device
    :ivar offset: where the region starts in that file, in bytes
    :ivar size: its size in bytes; 0 if the device has none
    """

    fd: int
    offset: int
    size: int

    def read(self, at: int, length: int) -> bytes:
        """Return bytes that start at a distance from the region's start.

        :raises OSError: the device did not return all of them
        """
        data = os.pread(self.fd, length, self.offset + at)
        if len(data) != length:
            raise OSError(errno.EIO, f'{len(data)} of {length} bytes read')
        return data

    def write(self, at: int, data: bytes) -> None:
        """Write bytes at a distance from the region's start.

        :raises OSError: the device did not take all of them
        """
        written = os.pwrite(self.fd, data, self.offset + at)
        if written != len(data):
            raise OSError(errno.EIO, f'{written} of {len(data)} bytes written')


class Groups:
    """IOMMU groups that this process has open, in a container of their own.

    The kernel lets only one process open a group, so nobody else can
    open their devices meanwhile.

    :param files: closes the files when it ends
    """

    def __init__(self, files: contextlib.ExitStack) -> None:
        self._files = files
        self._container = self._open('vfio')
        self._fds: dict[int, int] = {}

    def open(self, group: int) -> int:
        """Return the file descriptor of a group, which is opened once.

        :raises OSError: there is none, another process has it open, or a
            driver of the host has one of its functions
        """
        if group not in self._fds:
            fd = self._open(str(group))
            fcntl.ioctl(fd, VFIO_GROUP_SET_CONTAINER,
                        struct.pack('=i', self._container))
            if not self._fds:
                self._set_iommu()
            self._fds[group] = fd
        return self._fds[group]

    def _open(self, name: str) -> int:
        fd = os.open(f'/dev/vfio/{name}', os.O_RDWR | os.O_CLOEXEC)
        self._files.callback(os.close, fd)
        return fd

    def _set_iommu(self) -> None:
        """Choose the IOMMU's driver, without which a group has no devices."""
        has_v2 = fcntl.ioctl(
            self._container, VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU)
        fcntl.ioctl(self._container, VFIO_SET_IOMMU,
                    VFIO_TYPE1v2_IOMMU if has_v2 else VFIO_TYPE1_IOMMU)


class VFIODevice:
    """A PCI function that this process has open.

    :param address: its PCI address
    :param fd: file descriptor of its VFIO device
    :param groups: where the groups of other functions are opened
    """

    def __init__(self, address: str, fd: int, groups: Groups) -> None:
        self._address = address
        self._fd = fd
        self._groups = groups

    def hot_reset_scope(self) -> list[Dependent]:
        """Return all functions that a hot reset resets, with this one.

        :raises OSError: the kernel cannot reset it so
        """
        size = _HOT_RESET.size + self._dependents() * _DEPENDENT.size
        answer = bytearray(size)
        _HOT_RESET.pack_into(answer, 0, size, 0, 0)
        fcntl.ioctl(self._fd, VFIO_DEVICE_GET_PCI_HOT_RESET_INFO, answer)
        count = _HOT_RESET.unpack_from(answer)[2]
        found = answer[_HOT_RESET.size:][:count * _DEPENDENT.size]
        return [self._dependent(*fields)
                for fields in _DEPENDENT.iter_unpack(found)]

    def _dependents(self) -> int:
        """Return how many functions a hot reset resets."""
        header = bytearray(_HOT_RESET.pack(_HOT_RESET.size, 0, 0))
        try:
            fcntl.ioctl(self._fd, VFIO_DEVICE_GET_PCI_HOT_RESET_INFO, header)
        except OSError as exc:
            if exc.errno != errno.ENOSPC:
                raise
        return int(_HOT_RESET.unpack(header)[2])

    def _dependent(self, group: int, segment: int, bus: int,
                   devfn: int) -> Dependent:
        # A reset stays in one PCI domain, whose number may have more than the
        # 16 bits of a segment: those of Intel's VMD start at 10000.
        domain = int(self._address.partition(':')[0], 16)
        if domain & 0xffff != segment:
            domain = segment
        return Dependent(
            f'{domain:04x}:{bus:02x}:{devfn >> 3:02x}.{devfn & 7}', group)

    def hot_reset(self, groups: Iterable[int]) -> None:
        """Reset this function's slot or bus.

        :param groups: the IOMMU groups of all functions that this resets, as
            proof that nobody else has them
        :raises OSError: the kernel refused, or a group cannot be opened
        """
        fds = [self._groups.open(group) for group in sorted(set(groups))]
        size = _HOT_RESET.size + 4 * len(fds)
        fcntl.ioctl(self._fd, VFIO_DEVICE_PCI_HOT_RESET,
                    _HOT_RESET.pack(size, 0, len(fds))
                    + struct.pack(f'={len(fds)}i', *fds))

    def memory(self) -> VFIORegion | None:
        """Return the largest prefetchable BAR, ready to be accessed.

        A BAR that is not prefetchable has registers, which nobody must fill.

        :returns: None: it has no such BAR
        :raises OSError: the device does not answer
        """
        config = self.region(VFIO_PCI_CONFIG_REGION_INDEX)
        regions = [
            region for index in range(VFIO_PCI_BAR5_REGION_INDEX + 1)
            if (region := self.region(index)).size
            and config.read(PCI_BASE_ADDRESS_0 + 4 * index, 4)[0]
            & _BAR_BITS == PCI_BASE_ADDRESS_MEM_PREFETCH]
        self.enable_memory()
        return max(regions, key=lambda region: region.size, default=None)

    def registers(self) -> VFIORegion:
        """Return BAR 0, ready to be accessed.

        Only where the model is known to have its registers there.

        :raises OSError: the device does not answer
        """
        self.enable_memory()
        return self.region(VFIO_PCI_BAR0_REGION_INDEX)

    def option_rom(self) -> VFIORegion:
        """Return the option ROM, ready to be read.

        The kernel shows none if it does not begin as one does.

        :raises OSError: the device does not answer
        """
        self.enable_memory()
        return self.region(VFIO_PCI_ROM_REGION_INDEX)

    def enable_memory(self) -> None:
        """Let the device answer in its memory BARs.

        Else VFIO refuses access to them. It restores the register when the
        device is closed.

        :raises OSError: the device does not answer
        """
        config = self.region(VFIO_PCI_CONFIG_REGION_INDEX)
        [command] = struct.unpack('<H', config.read(PCI_COMMAND, 2))
        config.write(PCI_COMMAND,
                     struct.pack('<H', command | PCI_COMMAND_MEMORY))

    def region(self, index: int) -> VFIORegion:
        """Return a region as VFIO shows it, which may differ from sysfs.

        nvgrace-gpu-vfio-pci shows a GPU's memory as BARs that the GPU itself
        does not have.
        """
        answer = bytearray(_REGION_INFO.pack(
            _REGION_INFO.size, 0, index, 0, 0, 0))
        fcntl.ioctl(self._fd, VFIO_DEVICE_GET_REGION_INFO, answer)
        size, offset = _REGION_INFO.unpack(answer)[4:]
        return VFIORegion(fd=self._fd, offset=offset, size=size)


@contextlib.contextmanager
def opened(root: str, address: str) -> Iterator[VFIODevice]:
    """Open a function during the block, and close all files at its end.

    The kernel resets a function that it can reset on its own when it is opened
    first and when it is closed last. Once all functions of a bus or slot are
    closed, it resets that as well, if all of them are bound to VFIO drivers.

    :param root: root of sysfs
    :raises OSError: the function has no IOMMU group or no VFIO driver, or
        another process has its group open
    """
    group = int(os.path.basename(os.readlink(pathlib.Path(
        root, 'bus/pci/devices', address, 'iommu_group'))))
    with contextlib.ExitStack() as files:
        groups = Groups(files)
        # Only for a mutable argument fcntl.ioctl returns what the ioctl does.
        fd = fcntl.ioctl(groups.open(group), VFIO_GROUP_GET_DEVICE_FD,
                         bytearray(address.encode() + b'\0'))
        files.callback(os.close, fd)
        yield VFIODevice(address, fd, groups)
