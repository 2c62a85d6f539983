# SPDX-License-Identifier: Apache-2.0
"""Devices that the privileged helper may change.

The user of nova-compute may ask for anything, so the helper itself looks at
the device: it must be of a GPU's card, and the host must not use it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import stat
from collections.abc import Iterator
from collections.abc import Mapping

from gpgpu_plugin import privsep
from gpgpu_plugin import vfio

ADDRESS = r'[0-9a-f]{4,16}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]'

GPU_CLASSES: tuple[str, ...] = ('0x03', '0x12', '0x0b40')
"""Classes of functions that can be a GPU: display controllers, processing
accelerators and co-processors."""

# Guests that get all GPUs of a board get its NVSwitches, too.
_NVSWITCH = ('0x10de', '0x0680')


def check_card(root: str, address: str) -> None:
    """Refuse a function that is not on the card of a GPU.

    :param root: root of sysfs
    :raises PermissionError: it is not, or that cannot be read
    """
    if not re.fullmatch(ADDRESS, address):
        raise refused(address, 'it is not a PCI address')
    devices = pathlib.Path(root, 'bus/pci/devices')
    if not (devices / address).exists():
        raise FileNotFoundError(2, 'No such device', address)
    slot = address.rpartition('.')[0]
    if not any(_is_gpu(devices / name) for name in os.listdir(devices)
               if name.startswith(f'{slot}.')):
        raise refused(address, 'it is neither a GPU nor on the card of one')


def check_unused(root: str, address: str) -> None:
    """Refuse a function that is not on a GPU's card, or that the host uses.

    :param root: root of sysfs
    :raises UsedByHost: the host uses it
    :raises OSError: it is refused, or that cannot be read
    """
    check_card(root, address)
    # A boot display that is already bound to a VFIO driver is no longer in
    # use by the host.
    reason = (None if _has_vfio_driver(root, address)
              else HostUse(root).of(address))
    if reason is not None:
        raise privsep.UsedByHost(1, reason, address)


def check_closed(root: str, address: str) -> None:
    """Refuse what check_unused refuses, and what a guest has.

    Otherwise the kernel would block the unbind until the guest ends, or reset
    the device under the guest.

    :param root: root of sysfs
    :raises OSError: it is refused, or that cannot be read
    """
    check_unused(root, address)
    check_no_guest(root, address)


def check_no_guest(root: str, address: str) -> None:
    """Refuse a function that is not on a GPU's card, or that a guest has.

    :param root: root of sysfs
    :raises OSError: it is refused, or that cannot be read
    """
    check_card(root, address)
    device = _device(root, address)
    for vf in device.glob('virtfn*'):
        name = os.path.basename(os.readlink(vf))
        if _is_open(root, name):
            raise refused(address, f'a process has its VF {name} open')
    if next(device.glob('*/mdev_type'), None) is not None:
        raise refused(address, 'it has mdevs')
    if _is_open(root, address):
        raise refused(address, OPEN)


def check_gpu(root: str, address: str) -> None:
    """Refuse a function that is no GPU itself, but may be on a GPU's card.

    :param root: root of sysfs
    :raises OSError: it is refused, or that cannot be read
    """
    check_card(root, address)
    code = (_device(root, address) / 'class').read_text().strip()
    if not code.startswith(GPU_CLASSES):
        raise refused(address, 'it is not a GPU')


def check_idle_vfio(root: str, address: str) -> None:
    """Refuse what check_closed refuses, and what no VFIO driver has.

    :param root: root of sysfs
    :raises OSError: it is refused, or that cannot be read
    """
    check_closed(root, address)
    if not has_vfio(root, address):
        raise refused(address, 'it is not bound to a VFIO driver')


def _is_open(root: str, address: str) -> bool:
    """Return whether a process has the VFIO device of a function open.

    vfio-pci, its variants and vendors' VFIO drivers, which may have any name,
    enable a device only while a process has it open (vfio_pci_core_enable).
    """
    enable = _device(root, address) / 'enable'
    return has_vfio(root, address) and enable.read_text().strip() != '0'


def has_vfio(root: str, address: str) -> bool:
    """Return whether a driver that offers VFIO has a function.

    :param root: root of sysfs
    """
    return (_has_vfio_driver(root, address)
            or (_device(root, address) / 'vfio-dev').exists())


def _device(root: str, address: str) -> pathlib.Path:
    return pathlib.Path(root, 'bus/pci/devices', address)


def _has_vfio_driver(root: str, address: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        link = os.readlink(_device(root, address) / 'driver')
        return vfio.is_vfio(os.path.basename(link))
    return False


def check_parent(root: str, name: str) -> None:
    """Refuse a parent of mdevs that is a PCI function, but not a GPU.

    :param root: root of sysfs
    :param name: address, or the name of a parent that is no PCI function
    :raises OSError: it is refused, or that cannot be read
    """
    parent = os.path.realpath(os.path.join(root, 'class/mdev_bus', name))
    if not parent.startswith(
            os.path.realpath(os.path.join(root, 'devices/virtual')) + '/'):
        check_card(root, name)


def check_mdev(root: str, uuid: str) -> None:
    """Refuse an mdev whose parent check_parent refuses.

    :param root: root of sysfs
    :raises OSError: it is refused, or that cannot be read
    """
    path = os.path.realpath(os.path.join(root, 'bus/mdev/devices', uuid))
    check_parent(root, os.path.basename(os.path.dirname(path)))


def _is_gpu(device: pathlib.Path) -> bool:
    with contextlib.suppress(OSError):
        code = (device / 'class').read_text().strip()
        return code.startswith(GPU_CLASSES) or (
            code.startswith(_NVSWITCH[1])
            and (device / 'vendor').read_text().strip() == _NVSWITCH[0])
    return False


def refused(address: str, reason: str) -> PermissionError:
    """Return the error that refuses a function.

    :param reason: why, in words
    """
    return PermissionError(1, reason, address)


# -- Use of a PCI function by the host itself.
#
# Sources: Documentation/ABI/testing/sysfs-class-net, sysfs-block,
# sysfs-bus-pci (boot_vga, enable); proc(5) on mountinfo and fd; open(2) on
# O_EXCL and block devices; Documentation/gpu/drm-uapi.rst on device nodes;
# NVIDIA's driver README on /proc/driver/nvidia and on device nodes, whose
# major number is 195.


BOOT_DISPLAY = 'it is the display that the host booted with'
OPEN = 'a process has it open'

_IFF_UP = 1
_NVIDIA_MAJOR = 195
_NODES = {'drm': 'dri', 'accel': 'accel'}
"""Folders below /dev of the nodes of a class of devices."""


class HostUse:
    """Finder of what the host itself uses of a function.

    That is mounts, disks, network interfaces, displays, and processes that
    have a node of its driver open, such as CUDA, a monitor or a container.

    :param root: root of sysfs
    :param proc: root of procfs
    :param dev: folder of device nodes
    """

    def __init__(self, root: str, proc: str = '/proc', dev: str = '/dev',
                 ) -> None:
        self._root = root
        self._proc = proc
        self._dev = dev

    def of(self, address: str) -> str | None:
        """Return why the host needs a function; None: it does not.

        :raises OSError: that cannot be found out
        """
        folder = f'{self._root}/bus/pci/devices/{address}'
        if _read(f'{folder}/boot_vga') == '1':
            return BOOT_DISPLAY
        path = os.path.realpath(folder)
        for name in self._below(path, 'net'):
            flags = _read(f'{self._root}/class/net/{name}/flags')
            if flags is None or int(flags, 16) & _IFF_UP:
                return f'its network interface {name} is up'
        for name in self._below(path, 'block'):
            reason = self._disk_usage(name)
            if reason is not None:
                return f'its disk {name} {reason}'
        return self._opened(self._nodes(address, path))

    def _nodes(self, address: str, path: str) -> dict[int, str]:
        """Return the nodes of a GPU's driver, by device number."""
        found = {}
        for kind, folder in _NODES.items():
            for name in self._below(path, kind):
                # A connector of a display has none.
                number = _read(f'{self._root}/class/{kind}/{name}/dev')
                if number is not None:
                    major, minor = map(int, number.split(':'))
                    found[os.makedev(major, minor)] = f'/dev/{folder}/{name}'
        known = re.search(r'^Device Minor:\s*(\d+)', _read(
            f'{self._proc}/driver/nvidia/gpus/{address}/information') or '',
            re.MULTILINE)
        if known is not None:
            found[os.makedev(_NVIDIA_MAJOR, int(known[1]))] = (
                f'/dev/nvidia{known[1]}')
        return found

    def _opened(self, nodes: Mapping[int, str]) -> str | None:
        """Return which process has one of some nodes open, in any container.

        :param nodes: by device number
        """
        for pid in filter(str.isdigit, _names(self._proc) if nodes else ()):
            folder = f'{self._proc}/{pid}'
            for name in _names(f'{folder}/fd'):
                # A process may end, or close what it has open, meanwhile.
                with contextlib.suppress(FileNotFoundError,
                                         ProcessLookupError):
                    file = os.stat(f'{folder}/fd/{name}')
                    if stat.S_ISCHR(file.st_mode) and file.st_rdev in nodes:
                        return (f'process {pid} ({_read(f"{folder}/comm")}) '
                                f'has {nodes[file.st_rdev]} open')
        return None

    def _below(self, path: str, kind: str) -> Iterator[str]:
        """Yield the names of a class's devices below a PCI function."""
        folder = f'{self._root}/class/{kind}'
        for name in _names(folder):
            if os.path.realpath(f'{folder}/{name}').startswith(f'{path}/'):
                yield name

    def _disk_usage(self, name: str) -> str | None:
        folder = f'{self._root}/class/block/{name}'
        holders = _names(f'{folder}/holders')
        if holders:
            return f'is part of {", ".join(holders)}'
        number = _read(f'{folder}/dev')
        with open(f'{self._proc}/self/mountinfo', encoding='utf-8') as file:
            for line in file:
                fields = line.split()
                # Some filesystems, such as btrfs, show device numbers of their
                # own, so the node counts as well.
                if number == fields[2] or f'/dev/{name}' in fields:
                    return f'is mounted on {fields[4]}'
        return self._exclusive_use(name)

    def _exclusive_use(self, name: str) -> str | None:
        """Return how the kernel uses the disk exclusively; None: not at all.

        The use may be swap, a volume, or a mount of another namespace.
        """
        try:
            # sysfs has "!" for a "/" in the name of a device.
            fd = os.open(f'{self._dev}/{name.replace("!", "/")}',
                         os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)
        except OSError as exc:
            if exc.errno == errno.EBUSY:
                return 'is in use'
            if exc.errno == errno.ENOMEDIUM:
                return None
            return f'cannot be opened ({exc.strerror})'
        os.close(fd)
        return None


def _read(path: str) -> str | None:
    """Return an attribute without white space; None: there is none."""
    with contextlib.suppress(FileNotFoundError):
        return pathlib.Path(path).read_text(encoding='utf-8').strip()
    return None


def _names(folder: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return sorted(os.listdir(folder))
    return []
