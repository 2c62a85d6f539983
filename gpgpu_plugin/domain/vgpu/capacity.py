# SPDX-License-Identifier: Apache-2.0
"""Capacity of one GPU: how many more vGPUs of each type it can take.

Passthrough is a type like any other, with one instance per GPU, that excludes
everything else on its GPU and is excluded by everything else.

Placements follow the NVIDIA vGPU software user guide, appendix "vGPU
Placements for GPUs in Mixed-Size Mode". Its tables follow from halving: a GPU
is halved until the type just fits into a part. In the first of two
neighbouring parts the vGPU is at the beginning, in the second at the end.
"""

from __future__ import annotations

import dataclasses
import enum
import fractions
import functools
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.vgpu import vgpu_type

UNKNOWN = 'unknown'
"""Type of a vGPU that exists, but whose type nobody knows."""

# Whatever has a GPU in this way leaves nothing of it to others.
_EXCLUSIVE = frozenset({naming.PASSTHROUGH, UNKNOWN})

_MIB_PER_GIB = 1024

_MOST_PLACEMENTS = 128
"""Placements of one type that are used. No driver makes so many vGPUs on one
GPU, and a claim compares each placement with all others: sizes are what a host
reports."""


class VGPUMixPolicy(enum.StrEnum):
    """Rule for which vGPUs may share one GPU.

    ``same_type``: only vGPUs of one type. ``equal_size``: only vGPUs with the
    same amount of framebuffer, as in NVIDIA's equal-size mode. ``any_mix``:
    all vGPUs whose shares of the GPU add up to at most one, regardless of
    placement. ``mixed_size``: each size at the placements that NVIDIA's
    mixed-size mode has for it.
    """

    SAME_TYPE = 'same_type'
    EQUAL_SIZE = 'equal_size'
    ANY_MIX = 'any_mix'
    MIXED_SIZE = 'mixed_size'


@dataclasses.dataclass(frozen=True, kw_only=True)
class VGPU:
    """A vGPU on a GPU, or the whole GPU if its type is ``passthrough``.

    :ivar vgpu_type: name of the type, or ``UNKNOWN``
    :ivar placement_id: offset in the framebuffer in GiB; None: not reported,
        or the GPU has no placements
    """

    vgpu_type: str
    placement_id: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPUCapacity:
    """Capacity of one GPU for vGPUs and for passthrough.

    :ivar id: stable id of the GPU
    :ivar offered: whether a claim may take the GPU or a part of it
    :ivar passthrough: whether a claim may take the whole GPU if nothing else
        is on it
    :ivar types: vGPU types that it supports, by name, without
        ``passthrough``
    :ivar vgpus: what is on it
    :ivar driver_available: how many more instances of each type its driver
        allows; None for a type: at least one; None for all: the driver does
        not report it
    :ivar free_vfs: VFs that can take a vGPU; None: vGPUs need no VF
    :ivar numa_node: None: unknown
    :ivar switch: the nearest PCIe switch above it; None: it is directly
        below a root port and shares no switch with any other GPU
    """

    id: str
    offered: bool = True
    passthrough: bool = False
    types: Mapping[str, vgpu_type.VGPUType] = dataclasses.field(
        default_factory=dict)
    mix_policy: VGPUMixPolicy = VGPUMixPolicy.SAME_TYPE
    vgpus: tuple[VGPU, ...] = ()
    driver_available: Mapping[str, int | None] | None = None
    free_vfs: int | None = None
    numa_node: int | None = None
    switch: str | None = None

    def max_instances(self, name: str) -> int:
        """Return how many of a type fit on the GPU without other vGPUs."""
        if name == naming.PASSTHROUGH:
            return 1
        kind = self.types.get(name)
        if kind is None:
            return 0
        if kind.max_instances is None and self.free_vfs is not None:
            # The driver lists it, and not yet how many it makes.
            return self.free_vfs + len(self.vgpus)
        if self._policy_of(name) is VGPUMixPolicy.MIXED_SIZE:
            return len(self._placements(name))
        return kind.max_instances or 0

    def available(self, name: str) -> int:
        """Return how many more of a type the GPU can take now.

        This is what its mix policy allows, limited by what its driver reports
        and by the number of free VFs.
        """
        if not self.offered:
            return 0
        if name == naming.PASSTHROUGH:
            return int(self.passthrough and not self.vgpus)
        if any(vgpu.vgpu_type in _EXCLUSIVE for vgpu in self.vgpus):
            return 0
        available = self._by_policy(name)
        if self.free_vfs is not None:
            available = min(available, self.free_vfs)
        if self.driver_available is not None:
            reported = self.driver_available.get(name, 0)
            if reported is not None:
                available = min(available, reported)
        return max(0, available)

    def with_vgpu(self, name: str) -> GPUCapacity:
        """Return the GPU with one more of a type.

        If several placements are possible, it takes the one that leaves the
        most capacity for the larger types.

        :raises ValueError: it does not fit
        """
        if not self.available(name):
            raise ValueError(f'{name} does not fit on {self.id}')
        if name == naming.PASSTHROUGH:
            return dataclasses.replace(self, vgpus=(VGPU(vgpu_type=name),))
        placements = self._free_placements(name)
        if len(placements) == 1:
            return self._with(name, placements[0])
        return max((self._with(name, placement) for placement in placements),
                   key=GPUCapacity._available_by_size)

    def fragmentation_cost(self, name: str) -> tuple[int, ...]:
        """Return how many instances of each type one more of a type costs.

        The largest type is first.
        """
        return tuple(
            before - after for before, after in zip(
                self._available_by_size(),
                self.with_vgpu(name)._available_by_size(), strict=True))

    def _with(self, name: str, placement_id: int | None) -> GPUCapacity:
        reported = self.driver_available
        count = None if reported is None else reported.get(name)
        if reported is not None and count is not None:
            reported = {**reported, name: count - 1}
        return dataclasses.replace(
            self, driver_available=reported,
            vgpus=(*self.vgpus,
                   VGPU(vgpu_type=name, placement_id=placement_id)),
            free_vfs=None if self.free_vfs is None else self.free_vfs - 1)

    def _available_by_size(self) -> tuple[int, ...]:
        return tuple(map(self.available, self._names_by_size))

    @functools.cached_property
    def _names_by_size(self) -> list[str]:
        """Return the names of the vGPU types, the largest first."""
        return sorted(self.types,
                      key=lambda name: (self.max_instances(name), name))

    # -- the mix policies ---------------------------------------------------

    def _by_policy(self, name: str) -> int:
        """Return how many more of a type the mix policy allows."""
        max_instances = self.max_instances(name)
        if not max_instances:
            return 0
        match self._policy_of(name):
            case VGPUMixPolicy.SAME_TYPE:
                if any(vgpu.vgpu_type != name for vgpu in self.vgpus):
                    return 0
                return max_instances - len(self.vgpus)
            case VGPUMixPolicy.EQUAL_SIZE:
                if not all(self._is_same_size(vgpu.vgpu_type, name)
                           for vgpu in self.vgpus):
                    return 0
                return max_instances - len(self.vgpus)
            case VGPUMixPolicy.ANY_MIX:
                return min(
                    max_instances - sum(
                        vgpu.vgpu_type == name for vgpu in self.vgpus),
                    int((1 - self._used_fraction()) / self._fraction(name)))
            case VGPUMixPolicy.MIXED_SIZE:
                return len(self._free_placements(name))

    def _policy_of(self, name: str) -> VGPUMixPolicy:
        """Return the policy for one more of a type.

        Each MIG instance is a part of its own, whatever is in the others.
        """
        return VGPUMixPolicy.ANY_MIX if all(
            map(vgpu_type.mig_share, (
                name, *(vgpu.vgpu_type for vgpu in self.vgpus)))
        ) else self.mix_policy

    def _is_same_size(self, one: str, other: str) -> bool:
        size = self._video_ram(one)
        return one == other or (
            size is not None and size == self._video_ram(other))

    def _used_fraction(self) -> fractions.Fraction:
        """Return the fraction of the GPU that its vGPUs use.

        A vGPU of a type that the GPU does not support is assumed to use all
        of it.
        """
        return sum((self._fraction(vgpu.vgpu_type) for vgpu in self.vgpus),
                   start=fractions.Fraction(0))

    def _fraction(self, name: str) -> fractions.Fraction:
        """Return the fraction of the GPU that a vGPU of a type uses.

        It is 1/n if at most n fit. If sizes do not divide the GPU, this is
        slightly more than it really uses. A MIG-backed one uses no more than
        the slices of its instance.
        """
        part = fractions.Fraction(1, self.max_instances(name) or 1)
        return min(part, vgpu_type.mig_share(name) or part)

    def _video_ram(self, name: str) -> int | None:
        kind = self.types.get(name)
        return None if kind is None else kind.video_ram

    def _gibibytes(self, name: str) -> int | None:
        size = self._video_ram(name)
        return None if size is None else -(-size // _MIB_PER_GIB)

    def _placements(self, name: str) -> Sequence[int]:
        """Return the placement ids of a type on an empty GPU."""
        return _placements(self._gibibytes(name) or 0, self._region)

    @functools.cached_property
    def _region(self) -> int:
        """Return the size of the GPU in GiB, that of its largest type."""
        return max((self._gibibytes(name) or 0 for name in self.types),
                   default=0)

    def _free_placements(self, name: str) -> Sequence[int | None]:
        """Return the placements that one more of a type could have.

        Return ``[None]`` if the mix policy has no placements.
        """
        if self._policy_of(name) is not VGPUMixPolicy.MIXED_SIZE:
            return [None]
        taken = []
        for vgpu in self.vgpus:
            size = self._gibibytes(vgpu.vgpu_type)
            if size is None or vgpu.placement_id is None:
                # It takes some placement, and nobody knows which.
                return []
            taken.append((vgpu.placement_id, vgpu.placement_id + size))
        return _free_placements(
            self._gibibytes(name) or 0, self._region, tuple(taken))


# Types of several series have the same size.
@functools.lru_cache
def _free_placements(size: int, region: int,
                     taken: Sequence[tuple[int, int]]) -> Sequence[int]:
    """Return the placement ids of a size that overlap nothing.

    :param taken: begin and end of what is there, in GiB
    """
    return tuple(placement for placement in _placements(size, region)
                 if all(placement + size <= begin or end <= placement
                        for begin, end in taken))


@functools.lru_cache
def _placements(size: int, region: int) -> Sequence[int]:
    """Return the placement ids of a size in a region, both in GiB."""
    if not 0 < size <= region:
        return ()
    parts = 1
    while 2 * parts * size <= region:
        parts *= 2
    return tuple(number * region // parts if number % 2 == 0
                 else (number + 1) * region // parts - size
                 for number in range(min(parts, _MOST_PLACEMENTS)))
