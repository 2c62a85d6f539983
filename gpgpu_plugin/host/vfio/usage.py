#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Use of a PCI function by the host itself.

Sources: Documentation/ABI/testing/sysfs-class-net, sysfs-block; proc(5) on
mountinfo; open(2) on O_EXCL and block devices.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod

_IFF_UP = 1
_USERS = {
    device_rules.DeviceUser.BOOT_VGA:
        'it is the display that the host booted with',
    device_rules.DeviceUser.VFIO: 'a process has it open',
    device_rules.DeviceUser.MDEV: 'it has mdevs',
    device_rules.DeviceUser.VF: 'it has VFs'}


class Usage:
    """Finder of mounts, disks, network interfaces and users of a function.

    :param proc: root of procfs
    :param dev: folder of device nodes
    """

    def __init__(self, sysfs: sysfs_mod.Sysfs, proc: str = '/proc',
                 dev: str = '/dev') -> None:
        self._sysfs = sysfs
        self._proc = proc
        self._dev = dev

    def of(self, function: pci.PCIFunction) -> str | None:
        """Return why the host needs the function; None: it does not."""
        if function.used_by is not None:
            return _USERS[function.used_by]
        path = os.path.realpath(
            f'{self._sysfs.devices}/{function.address}')
        for name in self._below(path, 'net'):
            flags = self._sysfs.read(
                f'{self._sysfs.root}/class/net/{name}/flags')
            if flags is None or int(flags, 16) & _IFF_UP:
                return f'its network interface {name} is up'
        for name in self._below(path, 'block'):
            reason = self._disk_usage(name)
            if reason is not None:
                return f'its disk {name} {reason}'
        return None

    def _below(self, path: str, kind: str) -> Iterator[str]:
        """Yield the names of a class's devices below a PCI function."""
        folder = f'{self._sysfs.root}/class/{kind}'
        for name in sorted(self._sysfs.names(folder)):
            if os.path.realpath(f'{folder}/{name}').startswith(f'{path}/'):
                yield name

    def _disk_usage(self, name: str) -> str | None:
        folder = f'{self._sysfs.root}/class/block/{name}'
        holders = self._sysfs.names(f'{folder}/holders')
        if holders:
            return f'is part of {", ".join(sorted(holders))}'
        number = self._sysfs.read(f'{folder}/dev')
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
