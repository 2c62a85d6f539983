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
"""How vGPUs share one card: the hardware's rules, and what still fits.

Placements: NVIDIA vGPU software user guide, appendix "vGPU Placements for
GPUs in Mixed-Size Mode". Its tables are what halving gives: a card is halved
until the type just fits into a part; in the first of two neighbouring parts
the vGPU is at the beginning, in the second at the end.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import fractions
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain.vgpu import vgpu_type

_GIGABYTE = 1024


class VGPUMixPolicy(enum.StrEnum):
    """Which vGPUs may be on one card together.

    ``same_type``: only vGPUs of one type. ``equal_size``: only vGPUs with as
    much framebuffer, as in NVIDIA's equal-size mode. ``any_mix``: all for
    which there is room, wherever it is. ``mixed_size``: sizes at the places
    that NVIDIA's mixed-size mode has for them.
    """

    SAME_TYPE = 'same_type'
    EQUAL_SIZE = 'equal_size'
    ANY_MIX = 'any_mix'
    MIXED_SIZE = 'mixed_size'


@dataclasses.dataclass(frozen=True, kw_only=True)
class VGPU:
    """A vGPU that is on a card, or may be.

    :ivar vgpu_type: its name; None: nobody knows
    :ivar placement_id: gigabytes of framebuffer below it; None: unknown or not
        of that kind
    """

    vgpu_type: str | None
    placement_id: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPUCapacity:
    """A card as far as sharing goes.

    :ivar offered: whether it may take more
    :ivar types: what it can be carved into, by name
    :ivar units: what it has been carved into
    :ivar told: how many more of each type its driver says that it makes, at
        most; None of a type: one or more, None of all: it does not say
    :ivar seats: VFs that are free for a vGPU; None: it needs none
    :ivar numa_node, switch: as in domain.allocator.Card
    """

    id: str
    offered: bool
    types: Mapping[str, vgpu_type.VGPUType]
    mix_policy: VGPUMixPolicy = VGPUMixPolicy.SAME_TYPE
    vgpus: tuple[VGPU, ...] = ()
    driver_available: Mapping[str, int | None] | None = None
    free_vfs: int | None = None
    numa_node: int | None = None
    switch: str | None = None

    def with_unit(self, name: str) -> GPUCapacity:
        """The card with one more of a type, where it leaves most room.

        :raises ValueError: it does not fit
        """
        if not available(self, name):
            raise ValueError(f'{name} does not fit on {self.id}')
        return max(
            (self._with(VGPU(vgpu_type=name, placement_id=placement))
             for placement in _free_placements(self, name)),
            key=_available_of_each)

    def _with(self, unit: VGPU) -> GPUCapacity:
        told = dict(self.driver_available or {})
        count = told.get(unit.vgpu_type or '')
        if unit.vgpu_type is not None and count is not None:
            told[unit.vgpu_type] = count - 1
        return dataclasses.replace(
            self, vgpus=(*self.vgpus, unit),
            driver_available=None if self.driver_available is None else told,
            free_vfs=None if self.free_vfs is None else self.free_vfs - 1)


def max_instances(card: GPUCapacity, name: str) -> int:
    """How many of a type the card can have if it has nothing else."""
    kind = card.types.get(name)
    if kind is None or not kind.max_instances:
        return 0
    if card.mix_policy is VGPUMixPolicy.MIXED_SIZE:
        return len(_placements(card, name))
    return kind.max_instances


def available(card: GPUCapacity, name: str) -> int:
    """How many more of a type the card can take now: what the rule leaves,
    but no more than its driver says."""
    most = max_instances(card, name)
    if not card.offered or not most:
        return 0
    if card.mix_policy is VGPUMixPolicy.SAME_TYPE:
        fits = most - len(card.vgpus) if all(
            unit.vgpu_type == name for unit in card.vgpus) else 0
    elif card.mix_policy is VGPUMixPolicy.EQUAL_SIZE:
        size = _video_ram(card, name)
        fits = most - len(card.vgpus) if all(
            unit.vgpu_type == name or (
                size is not None
                and _video_ram(card, unit.vgpu_type) == size)
            for unit in card.vgpus) else 0
    elif card.mix_policy is VGPUMixPolicy.ANY_MIX:
        used = _used_share(card)
        fits = 0 if used is None else int((1 - used) * most)
    else:
        fits = len(_free_placements(card, name))
    if card.free_vfs is not None:
        fits = min(fits, card.free_vfs)
    if card.driver_available is not None:
        told = card.driver_available.get(name, 0)
        fits = fits if told is None else min(fits, told)
    return max(0, fits)


def fragmentation_cost(card: GPUCapacity, name: str) -> tuple[int, ...]:
    """How much room each type loses by one more of a type, the largest
    first."""
    return tuple(
        before - after
        for before, after in zip(
            _available_of_each(card),
            _available_of_each(card.with_unit(name)),
            strict=True,
        )
    )


def _available_of_each(card: GPUCapacity) -> tuple[int, ...]:
    """Room for each type, the largest first."""
    return tuple(available(card, name) for name in sorted(
        card.types, key=lambda name: (max_instances(card, name), name)))


def _used_share(card: GPUCapacity) -> fractions.Fraction | None:
    """How much of the card is used; None: nobody knows.

    A type of which at most n fit takes the n-th part. Where sizes do not
    divide the card that is a little more than it really takes.
    """
    counts = collections.Counter(unit.vgpu_type for unit in card.vgpus)
    used = fractions.Fraction(0)
    for name, count in counts.items():
        most = max_instances(card, name) if name is not None else 0
        if not most:
            return None
        used += fractions.Fraction(count, most)
    return used


def _video_ram(card: GPUCapacity, name: str | None) -> int | None:
    kind = card.types.get(name or '')
    return None if kind is None else kind.video_ram


def _gigabytes(card: GPUCapacity, name: str | None) -> int | None:
    size = _video_ram(card, name)
    return None if size is None else -(-size // _GIGABYTE)


def _placements(card: GPUCapacity, name: str) -> list[int]:
    """Where a type can be on an empty card, in gigabytes."""
    size = _gigabytes(card, name)
    region = max((each for each in (
        _gigabytes(card, other) for other in card.types)
        if each is not None), default=0)
    if size is None or not 0 < size <= region:
        return []
    parts = 1
    while 2 * parts * size <= region:
        parts *= 2
    return [number * region // parts if number % 2 == 0
            else (number + 1) * region // parts - size
            for number in range(parts)]


def _free_placements(card: GPUCapacity, name: str) -> Sequence[int | None]:
    """Where one more of a type can be; [None] where any place will do."""
    if card.mix_policy is not VGPUMixPolicy.MIXED_SIZE:
        return [None]
    taken = []
    for unit in card.vgpus:
        size = _gigabytes(card, unit.vgpu_type)
        if size is None or unit.placement_id is None:
            # It is somewhere, and nobody knows where.
            return []
        taken.append((unit.placement_id, unit.placement_id + size))
    size = _gigabytes(card, name) or 0
    return [place for place in _placements(card, name)
            if all(place + size <= begin or end <= place
                   for begin, end in taken)]
