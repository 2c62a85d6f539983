# SPDX-License-Identifier: Apache-2.0
"""Use of a PCI function by the host itself.

Sources: Documentation/ABI/testing/sysfs-class-net, sysfs-block, sysfs-bus-pci
(boot_vga, enable); proc(5) on mountinfo and fd; open(2) on O_EXCL and block
devices; Documentation/gpu/drm-uapi.rst on device nodes; NVIDIA's driver README
on /proc/driver/nvidia and on device nodes, whose major number is 195.
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
