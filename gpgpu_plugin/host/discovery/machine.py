# SPDX-License-Identifier: Apache-2.0
"""The machine under a host: identity, NUMA nodes, slots."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from collections.abc import Iterable

from gpgpu_plugin import exception
from gpgpu_plugin import smbios
from gpgpu_plugin.domain import host
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod

_BOOT_ID = 'proc/sys/kernel/random/boot_id'
_MACHINE_ID = 'etc/machine-id'


def read_identity(functions: Iterable[pci.PCIFunction],
                  root: str = '/') -> host.MachineIdentity:
    """Return the identity; what cannot be read is left empty.

    :param functions: as a scan found them; VFs are no identity
    :param root: folder of ``proc`` and ``etc``
    """
    return host.MachineIdentity(
        boot_id=_read(root, _BOOT_ID), machine_id=_read(root, _MACHINE_ID),
        # VPD is not read while a guest has the GPU.
        gpus={function.id: function.dsn or function.serial or ''
              for function in functions if function.pf is None})


def _read(root: str, path: str) -> str:
    try:
        return pathlib.Path(root, path).read_text().strip()
    except (OSError, ValueError):
        return ''


# -- NUMA nodes that have CPUs, for GPUs whose node has none.
#
# A guest needs CPUs, so its memory is never near a GPU of a node that has
# none: a policy that demands it could not be met, although the GPU is as near
# to some other node as it can be. Such nodes are memory alone: CXL, a socket
# whose CPUs are offline, or the memory of the GPUs themselves (NVIDIA Grace).
#
# Source: Documentation/ABI/stable/sysfs-devices-node.


NODE_FOLDER = 'devices/system/node'
"""Folder of the nodes, below the root of sysfs."""


class NUMANodes:
    """The NUMA nodes of one scan.

    :param problems: gets sentences about files that cannot be read
    """

    def __init__(self, sysfs: sysfs_mod.Sysfs, problems: list[str]) -> None:
        self._sysfs = sysfs
        self._attempt = sysfs_mod.Attempt('NUMA nodes', problems)
        self._nearest: dict[int, int] = {}

    def with_cpus(self, node: int | None) -> int | None:
        """Return the nearest node with CPUs; of several, the first.

        :returns: the node itself if the kernel does not say which have CPUs
        """
        if node is None or not self._cpu_nodes or node in self._cpu_nodes:
            return node
        if node not in self._nearest:
            self._nearest[node] = self._find(node)
        return self._nearest[node]

    def _find(self, node: int) -> int:
        distances = self._attempt(
            f'distance of node {node}', self._distances, node) or {}
        known = sorted(self._cpu_nodes & distances.keys())
        return min(known, key=distances.__getitem__) if known else node

    def _distances(self, node: int) -> dict[int, int]:
        """Return the distance of each online node; empty: unknown.

        :raises ValueError: it is not a distance for each online node
        """
        text = self._sysfs.read(self._path(f'node{node}/distance')) or ''
        return dict(zip(sorted(self._numbers('online')),
                        map(int, text.split()), strict=True))

    @functools.cached_property
    def _cpu_nodes(self) -> frozenset[int]:
        return self._attempt('has_cpu', self._numbers, 'has_cpu'
                             ) or frozenset()

    def _numbers(self, name: str) -> frozenset[int]:
        """Return the numbers of a list such as ``0-1,4``.

        :raises ValueError: it is no such list
        """
        found: set[int] = set()
        text = self._sysfs.read(self._path(name))
        for part in text.split(',') if text else ():
            first, _, last = part.partition('-')
            found.update(range(int(first), int(last or first) + 1))
        return frozenset(found)

    def _path(self, name: str) -> str:
        return f'{self._sysfs.root}/{NODE_FOLDER}/{name}'


# -- Labels of slots in SMBIOS, which are read once: firmware does not change.


class SlotLabels:
    """Labels that the firmware of a host gives to slots.

    They are read when a GPU is first found whose slot sysfs does not have.

    :param privileged: reads the table with root's rights, and raises
        HostError; None: nothing has these rights
    """

    def __init__(self, sysfs: sysfs_mod.Sysfs,
                 privileged: Callable[[], bytes] | None = None) -> None:
        self._sysfs = sysfs
        self._privileged = privileged
        self._known: smbios.Labels | exception.HostError | None = None

    def get(self) -> smbios.Labels:
        """Return the labels; none: the host has no SMBIOS.

        :raises HostError: the table cannot be read, now or before
        :raises HostNotReady: the privileged helper does not start; the next
            call tries again
        """
        if self._known is None:
            try:
                self._known = smbios.labels(self._table())
            except exception.HostNotReady:
                raise
            except exception.HostError as exc:
                self._known = exc
        if isinstance(self._known, exception.HostError):
            raise self._known
        return self._known

    def _table(self) -> bytes:
        path = f'{self._sysfs.root}/{smbios.TABLE}'
        try:
            return self._sysfs.read_all(path, smbios.LARGEST) or b''
        except PermissionError:
            return self._privileged() if self._privileged else b''
        except OSError as exc:
            raise exception.HostError(
                path=path, reason=f'cannot be read: {exc.strerror}') from None
