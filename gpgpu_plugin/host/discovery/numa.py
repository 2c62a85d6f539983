# SPDX-License-Identifier: Apache-2.0
"""NUMA nodes that have CPUs, for GPUs whose node has none.

A guest needs CPUs, so its memory is never near a GPU of a node that has none:
a policy that demands it could not be met, although the GPU is as near to some
other node as it can be. Such nodes are memory alone: CXL, a socket whose CPUs
are offline, or the memory of the GPUs themselves (NVIDIA Grace).

Source: Documentation/ABI/stable/sysfs-devices-node.
"""

from __future__ import annotations

import functools

from gpgpu_plugin.host.discovery import attempt as attempt_mod
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod

FOLDER = 'devices/system/node'
"""Folder of the nodes, below the root of sysfs."""


class NUMANodes:
    """The NUMA nodes of one scan.

    :param problems: gets sentences about files that cannot be read
    """

    def __init__(self, sysfs: sysfs_mod.Sysfs, problems: list[str]) -> None:
        self._sysfs = sysfs
        self._attempt = attempt_mod.Attempt('NUMA nodes', problems)
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
        return f'{self._sysfs.root}/{FOLDER}/{name}'
