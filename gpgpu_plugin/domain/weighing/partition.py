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
"""Link partitions of a host, and which of them a request should take."""

from __future__ import annotations

from collections.abc import Iterable


def lattice(gpus: int) -> list[int]:
    """Return aligned partitions of 1, 2, 4 … GPUs, as bit masks."""
    found = []
    size = 1
    while size <= gpus:
        found += [((1 << size) - 1) << first
                  for first in range(0, gpus - size + 1, size)]
        size *= 2
    return found


class Partitions:
    """Partitions of a kind of host; they may overlap.

    A set of GPUs is a bit mask. The worth of free GPUs is the number of GPUs
    in all partitions that are wholly free, so it falls the more, the larger
    the partitions are that a choice breaks.
    """

    def __init__(self, partitions: Iterable[int]) -> None:
        self._by_size: dict[int, list[int]] = {}
        for mask in sorted(set(partitions)):
            self._by_size.setdefault(mask.bit_count(), []).append(mask)
        self._worths: dict[int, int] = {}
        self._choices: dict[tuple[int, int], tuple[int, int] | None] = {}

    def is_partition(self, mask: int) -> bool:
        """Return whether GPUs are exactly one partition."""
        return mask in self._by_size.get(mask.bit_count(), ())

    def worth(self, free: int) -> int:
        """Return the GPUs of all partitions that are wholly free."""
        found = self._worths.get(free)
        if found is None:
            found = self._worths[free] = sum(
                size for size, masks in self._by_size.items()
                for mask in masks if mask & free == mask)
        return found

    def best(self, free: int, size: int) -> tuple[int, int] | None:
        """Return the partition of a size whose use costs the least.

        :returns: cost and partition; of equal ones the lowest; None: no
            partition of this size is free
        """
        key = free, size
        if key not in self._choices:
            worth = self.worth(free)
            self._choices[key] = min(
                ((worth - self.worth(free & ~mask), mask)
                 for mask in self._by_size.get(size, ())
                 if mask & free == mask), default=None)
        return self._choices[key]
