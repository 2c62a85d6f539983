# SPDX-License-Identifier: Apache-2.0
"""Which hosts with GPUs instances without GPUs are kept away from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, kw_only=True)
class FreeResources:
    """What a host has left for instances.

    :ivar free_gpus: GPUs that can take an instance now or after a cleaning,
        in whole or in part; None: unknown, as while the host is drained
    :ivar free_vcpus: as Placement counts them; None: unknown
    """

    free_gpus: int | None
    free_vcpus: int | None = None

    def is_isolated(self, vcpus_per_gpu: float | None, *,
                    before: bool) -> bool:
        """Return whether instances without GPUs are kept away.

        Unknown vCPUs or GPUs are not free ones: an instance that takes the
        last vCPUs stays for months, and one that has to go elsewhere meanwhile
        loses nothing.

        :param vcpus_per_gpu: number of free vCPUs that each free GPU needs;
            None: they are always kept away
        :param before: whether they have been. Then the host must have enough
            for one GPU more, or it would change with each small instance
        """
        if vcpus_per_gpu is None or self.free_gpus is None:
            return True
        if not self.free_gpus:
            return False
        if self.free_vcpus is None:
            return True
        gpus = self.free_gpus + (1 if before else 0)
        return self.free_vcpus < gpus * vcpus_per_gpu

    def describe(self) -> str:
        """Return what is left, for operators."""
        vcpus, gpus = ('an unknown number of' if number is None else number
                       for number in (self.free_vcpus, self.free_gpus))
        return f'{vcpus} free vCPUs for {gpus} free GPUs'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moves:
    """Hosts that are to enter and to leave the aggregate, by name."""

    enter: tuple[str, ...]
    leave: tuple[str, ...]


def moves(members: Collection[str], isolated: Iterable[str]) -> Moves:
    """Return what makes the isolated hosts the members of the aggregate."""
    wanted = set(isolated)
    return Moves(enter=tuple(sorted(wanted.difference(members))),
                 leave=tuple(sorted(set(members) - wanted)))
