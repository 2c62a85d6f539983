# SPDX-License-Identifier: Apache-2.0
"""Link partitions of whole GPUs, and what a claim of some of them costs.

GPUs of one partition reach each other over links of their own: NVLink, xGMI or
a fabric of switches. Partitions may overlap, as those of NVIDIA's fabric
manager do: with eight GPUs one of eight, two of four, four of two and eight of
one. A claim takes exactly one as a whole. What overlaps it is then broken.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from gpgpu_plugin.domain import partition
from gpgpu_plugin.domain.allocation import request as request_mod

Partition = frozenset[str]
"""Ids of GPUs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Links:
    """Links between the GPUs of one group.

    :ivar partitions: those of which every GPU is known to be there
    :ivar names: of the partitions, in the same order
    :ivar fabric: whether the board allows nothing but its partitions; else
        its GPUs can be taken in any other way, too, without links
    :ivar problem: why some partitions, or all, are not known; may be empty
    """

    partitions: tuple[Partition, ...] = ()
    names: tuple[str, ...] = ()
    fabric: bool = False
    problem: str = ''

    def free(self, gpus: Collection[str]) -> tuple[Partition, ...]:
        """Return the partitions that some GPUs contain.

        :param gpus: ids of those that can be taken as a whole
        """
        ids = frozenset(gpus)
        return tuple(part for part in self.partitions if part <= ids)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FreePartitions:
    """Partitions that a claim can take, and what it takes from later ones.

    :ivar gpus: ids of all GPUs of the offer
    """

    partitions: tuple[Partition, ...]
    gpus: tuple[str, ...]

    @functools.cached_property
    def _bits(self) -> Mapping[str, int]:
        return {gpu: 1 << index
                for index, gpu in enumerate(sorted(self.gpus))}

    @functools.cached_property
    def _masks(self) -> tuple[int, ...]:
        return tuple(map(self._mask, self.partitions))

    def _mask(self, gpus: Iterable[str]) -> int:
        return sum([self._bits[gpu] for gpu in gpus])

    def cost(self, taken: Iterable[str]) -> int:
        """Return the fragmentation cost of a claim of some GPUs.

        :param taken: their ids
        """
        return partition.fragmentation_cost(self._masks, self._mask(taken))

    def least_cost(self, gpus: Iterable[str], count: int) -> list[str]:
        """Return those of some GPUs whose claim costs the least."""
        by_bit = {self._bits[gpu]: gpu for gpu in gpus}
        return [by_bit[bit] for bit in partition.least_cost(
            self._masks, list(by_bit), count)]


def of_hives(hives: Mapping[str, str | None]) -> Links | None:
    """Return the links that the driver of some GPUs reports.

    Each hive is one partition. None counts unless that of each GPU is known:
    with one more member a hive would be another partition.

    :param hives: by id of the GPU; None: unknown, or the GPU has no links
    :returns: None: no hive is known
    """
    known = sorted({hive for hive in hives.values() if hive is not None})
    if not known:
        return None
    unknown = list(hives.values()).count(None)
    if unknown:
        return Links(problem=f'the xGMI hive of {unknown} of {len(hives)} '
                             f'GPUs is not known')
    return Links(
        names=tuple(f'hive {hive}' for hive in known), partitions=tuple(
            frozenset(gpu for gpu, mine in hives.items() if mine == hive)
            for hive in known))


NOTHING_KNOWN = Links(problem='its links are not known')
"""Links of a group that nobody said anything about."""


def is_confined(links: Links | None, request: request_mod.Request) -> bool:
    """Return whether whole GPUs of a request must be exactly one partition.

    :param links: of the group; None: not known
    """
    return request.is_linked or (links is not None and links.fabric)


def size_counts(sizes: Iterable[int]) -> dict[int, int]:
    """Return the number of partitions by their number of GPUs."""
    return dict(sorted(collections.Counter(sizes).items()))


def refusal(demand: request_mod.Demand, request: request_mod.Request,
            sizes: Iterable[int], problem: str) -> request_mod.Refusal:
    """Return the refusal if no partition with so many GPUs is free.

    :param sizes: number of GPUs of each partition of the group
    :param problem: as of ``Links``
    """
    counts = size_counts(sizes)
    known = (', '.join(f'{number} of {size}'
                       for size, number in counts.items()) or 'none')
    detail = (f'{demand} requested as one link partition, none of that size '
              f'is free; partitions by number of GPUs: {known}')
    return request_mod.Refusal(
        reason=(request_mod.Reason.TOPOLOGY_LINKED if request.is_linked
                else request_mod.Reason.LINK_PARTITION),
        detail=f'{detail} ({problem})' if problem else detail)


def kinds_refusal(request: request_mod.Request) -> request_mod.Refusal | None:
    """Return the refusal if linked GPUs are requested of several classes."""
    if not request.is_linked or len(request.demands) == 1:
        return None
    return request_mod.Refusal(
        reason=request_mod.Reason.TOPOLOGY_LINKED,
        detail=f'{request_mod.describe(request)} requested, but a link '
               f'partition has whole GPUs of one resource class')
