# SPDX-License-Identifier: Apache-2.0
"""State of link partitions: free, taken, or what keeps them from being it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence


class PartitionState(enum.StrEnum):
    """State of a link partition.

    ``taken``: one instance has exactly its GPUs. ``overlapped``: instances
    have some of its GPUs, each as another partition. ``broken``: an instance
    has some of them, but not as a partition. ``unavailable``: no instance has
    one of them, but not all can be claimed.
    """

    FREE = 'free'
    TAKEN = 'taken'
    OVERLAPPED = 'overlapped'
    BROKEN = 'broken'
    UNAVAILABLE = 'unavailable'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Use:
    """GPUs of a group that one instance has, or had before it moved.

    :ivar gpus: ids of the GPUs
    :ivar is_whole: whether it has them as a whole, rather than vGPUs of them
    """

    gpus: frozenset[str]
    is_whole: bool


def states(partitions: Mapping[str, frozenset[str]], free: Collection[str],
           uses: Sequence[Use]) -> dict[str, PartitionState]:
    """Return the state of each partition, by its name.

    :param partitions: ids of the GPUs of each
    :param free: ids of the GPUs that can be claimed as a whole
    """
    known = set(partitions.values())
    return {name: _state(part, frozenset(free), known, [
        use for use in uses if use.gpus & part])
        for name, part in partitions.items()}


def _state(part: frozenset[str], free: frozenset[str],
           known: Collection[frozenset[str]],
           uses: Sequence[Use]) -> PartitionState:
    if part <= free:
        return PartitionState.FREE
    if any(not use.is_whole or use.gpus not in known for use in uses):
        return PartitionState.BROKEN
    if not uses:
        return PartitionState.UNAVAILABLE
    return (PartitionState.TAKEN if uses[0].gpus == part
            else PartitionState.OVERLAPPED)
