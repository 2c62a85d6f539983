# SPDX-License-Identifier: Apache-2.0
"""Use of a PCI function by the host itself.

Sources: Documentation/ABI/testing/sysfs-class-net, sysfs-block, sysfs-bus-pci
(boot_vga, enable); proc(5) on mountinfo; open(2) on O_EXCL and block devices.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterator

BOOT_DISPLAY = 'it is the display that the host booted with'
OPEN = 'a process has it open'

_IFF_UP = 1


class HostUse:
    """Finder of mounts, disks, network interfaces and displays of a function.

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
    with contextlib.suppress(FileNotFoundError):
        return sorted(os.listdir(folder))
    return []
