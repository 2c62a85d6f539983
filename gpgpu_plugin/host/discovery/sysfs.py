# SPDX-License-Identifier: Apache-2.0
"""Reading of /sys; no other module reads it.

The root is a parameter, so that a plain directory tree can stand for a
machine. Reads are single system calls, since a scan makes thousands of them.
"""

from __future__ import annotations

import errno
import os
import typing
from collections.abc import Callable
from collections.abc import Iterable

from gpgpu_plugin import exception

ROOT = '/sys'
"""Mount point of the sysfs of the running kernel."""

_MAX = 4096
_READ = os.O_RDONLY | os.O_CLOEXEC


def count_vfs(names: Iterable[str]) -> int:
    """Return the number of VFs of a function.

    ``sriov_numvfs`` has it too, but some kernels read that under the lock of
    the device, as ``uevent`` (see host.discovery.config_space).

    :param names: names in the function's folder
    """
    return sum(name.startswith('virtfn') for name in names)


class _Files:
    """Reader of files.

    Methods return None for a file that does not exist, and raise OSError for
    one that exists and cannot be read.

    :param fd: the open folder to which paths are relative
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd

    def read_bytes(self, path: str, size: int = _MAX) -> bytes | None:
        """Return the first bytes of a file."""
        try:
            fd = os.open(path, _READ, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        try:
            # eventlet, which nova-compute of Nova 33 uses, replaces os.read:
            # that loops at EAGAIN, and after a folder the thread breaks.
            return os.pread(fd, size, 0)
        finally:
            os.close(fd)

    def read_all(self, path: str, limit: int) -> bytes | None:
        """Return a file of which the kernel returns a page at a time.

        :param limit: bytes; what follows is not read
        """
        try:
            fd = os.open(path, _READ, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        with open(fd, 'rb') as file:
            return file.read(limit)

    def read(self, path: str) -> str | None:
        """Return the text of a file without the final newline."""
        data = self.read_bytes(path)
        return None if data is None else data.decode(
            'utf-8', 'replace').strip()

    def link(self, path: str) -> str | None:
        """Return the last part of a link's target."""
        try:
            return os.readlink(path, dir_fd=self._fd).rpartition('/')[2]
        except FileNotFoundError:
            return None
        except OSError as exc:
            if exc.errno == errno.EINVAL:
                return None
            raise


class Folder(_Files):
    """Reader of an open folder, by the names of its files.

    The kernel follows the folder's path once, instead of once for each file.
    A ``with`` statement closes it.
    """

    def __init__(self, path: str) -> None:
        self._folder = os.open(path, _READ | os.O_DIRECTORY)
        super().__init__(self._folder)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._folder)

    def names(self) -> list[str]:
        """Return the names of all files."""
        return os.listdir(self._folder)


class Sysfs(_Files):
    """Reader of a sysfs, by absolute paths.

    :ivar root: where it is mounted
    :ivar devices: the folder of all PCI functions
    """

    def __init__(self, root: str = ROOT) -> None:
        super().__init__()
        self.root = root.rstrip('/') or '/'
        self.devices = f'{self.root}/bus/pci/devices'

    def names(self, path: str) -> list[str]:
        """Return the names in a folder; empty if there is no folder."""
        try:
            return os.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def inodes(self, path: str) -> list[tuple[str, int]]:
        """Return the names in a folder, each with its number in sysfs.

        A name that was removed and added again has another number, since the
        kernel has made another file.

        :returns: in the order of the names; empty if there is no folder
        """
        try:
            with os.scandir(path) as entries:
                return sorted((entry.name, entry.inode())
                              for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def target(self, path: str) -> str:
        """Return a link's target, as it is written."""
        return os.readlink(path)

    def addresses(self) -> list[str]:
        """Return the addresses of all PCI functions.

        :raises HostError: the root has no PCI bus
        """
        try:
            return sorted(os.listdir(self.devices))
        except OSError as exc:
            raise exception.HostError(
                path=self.devices,
                reason=f'cannot be listed ({exc.strerror}); is this the '
                       'root of a sysfs?') from None


# -- Attempts to read attributes, of which some may be unreadable.


T = typing.TypeVar('T')
_Arguments = typing.ParamSpec('_Arguments')


class Attempt:
    """Reader of one function's attributes that records which are unreadable.

    :ivar unreadable: names of attributes that cannot be read
    """

    def __init__(self, address: str, problems: list[str]) -> None:
        self.unreadable: list[str] = []
        self._address = address
        self._problems = problems

    def __call__(self, name: str, read: Callable[_Arguments, T | None],
                 *args: _Arguments.args, **kwargs: _Arguments.kwargs,
                 ) -> T | None:
        """Return the value read; None: it does not exist or cannot be read."""
        try:
            return read(*args, **kwargs)
        except (OSError, ValueError) as exc:
            self.unreadable.append(name)
            self._problems.append(
                f'{self._address}: {name} cannot be read '
                f'({getattr(exc, "strerror", None) or exc}): unknown')
            return None
