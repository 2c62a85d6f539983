# SPDX-License-Identifier: Apache-2.0
"""Link partitions as bit masks: what is free, and what a choice breaks.

Claims, the weigher and the simulator choose by this one rule: of all choices,
the one with the least fragmentation cost. Bit i of a mask is GPU i.
"""

from __future__ import annotations

import functools
import itertools
import math
import typing
from collections.abc import Iterable
from collections.abc import Sequence

MAX_COMBINATIONS = 500
"""Sets of GPUs that are tried for the least cost. If there are more, those
GPUs are taken first that break the least alone."""

_MOST_STATES = 100_000


def fragmentation_cost(free: Iterable[int], taken: int) -> int:
    """Return how much a choice takes away from later ones.

    That is the number of GPUs of each partition that was free and is not free
    any more, those of all partitions added.

    :param free: partitions that are free before the choice
    :param taken: the chosen GPUs
    """
    return sum([mask.bit_count() for mask in free if mask & taken])


def least_cost(free: Sequence[int], gpus: Sequence[int],
               count: int) -> tuple[int, ...]:
    """Return the GPUs whose choice costs the least; the first of equal ones.

    :param free: as of ``fragmentation_cost``
    :param gpus: the GPUs to choose from, each as a mask
    """
    if not free or len(gpus) <= count:
        return tuple(gpus[:count])
    if math.comb(len(gpus), count) > MAX_COMBINATIONS:
        return tuple(sorted(gpus, key=lambda gpu: fragmentation_cost(
            free, gpu))[:count])
    return min(itertools.combinations(gpus, count),
               key=lambda chosen: fragmentation_cost(free, sum(chosen)))


class Choice(typing.NamedTuple):
    """GPUs to take, and their fragmentation cost."""

    cost: int
    gpus: int


class Partitions:
    """Partitions of some GPUs; they may overlap.

    What it works out is remembered. ``of`` returns the same object for the
    same partitions.
    """

    def __init__(self, masks: Iterable[int]) -> None:
        self._masks = sorted(set(masks))
        self._free: dict[int, tuple[int, ...]] = {}
        self._choices: dict[tuple[int, int, bool], Choice | None] = {}

    def free(self, gpus: int) -> tuple[int, ...]:
        """Return the partitions that some GPUs contain."""
        found = self._free.get(gpus)
        if found is None:
            if len(self._free) >= _MOST_STATES:
                self._free.clear()
            found = self._free[gpus] = tuple(
                mask for mask in self._masks if mask & gpus == mask)
        return found

    def count(self, free: int, size: int) -> int:
        """Return how many partitions of a size are free."""
        return sum(mask.bit_count() == size for mask in self.free(free))

    def best(self, free: int, size: int) -> Choice | None:
        """Return the partition of a size whose choice costs the least.

        :returns: of equal ones the lowest; None: no partition of this size is
            free
        """
        return self._chosen(free, size, is_confined=True)

    def best_gpus(self, free: int, size: int) -> Choice | None:
        """Return the GPUs, a partition or not, whose choice costs the least.

        :returns: None: too few are free
        """
        return self._chosen(free, size, is_confined=False)

    def _chosen(self, free: int, size: int, *,
                is_confined: bool) -> Choice | None:
        key = free, size, is_confined
        if key not in self._choices:
            if len(self._choices) >= _MOST_STATES:
                self._choices.clear()
            whole = self.free(free)
            sets = ([mask for mask in whole if mask.bit_count() == size]
                    if is_confined else _least(whole, free, size))
            self._choices[key] = min(
                (Choice(fragmentation_cost(whole, mask), mask)
                 for mask in sets), default=None)
        return self._choices[key]


def _least(whole: Sequence[int], free: int, size: int) -> list[int]:
    if free.bit_count() < size:
        return []
    gpus = [1 << bit for bit in range(free.bit_length()) if free >> bit & 1]
    return [sum(least_cost(whole, gpus, size))]


@functools.lru_cache(maxsize=1000)
def of(masks: tuple[int, ...]) -> Partitions:
    """Return the partitions with these masks."""
    return Partitions(masks)
