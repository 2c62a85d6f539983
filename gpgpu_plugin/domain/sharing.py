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

from gpgpu_plugin.domain import vgpu_type

_GIGABYTE = 1024


class Sharing(enum.StrEnum):
    """Which vGPUs may be on one card together.

    ``same_type``: only vGPUs of one type. ``same_size``: only vGPUs with as
    much framebuffer, as in NVIDIA's equal-size mode. ``mixed``: all for which
    there is room, wherever it is. ``mixed_placed``: sizes at the places that
    NVIDIA's mixed-size mode has for them.
    """

    SAME_TYPE = 'same_type'
    SAME_SIZE = 'same_size'
    MIXED = 'mixed'
    MIXED_PLACED = 'mixed_placed'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """A vGPU that is on a card, or may be.

    :ivar vgpu_type: its name; None: nobody knows
    :ivar placement: gigabytes of framebuffer below it; None: unknown or not
        of that kind
    """

    vgpu_type: str | None
    placement: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedCard:
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
    sharing: Sharing = Sharing.SAME_TYPE
    units: tuple[Unit, ...] = ()
    told: Mapping[str, int | None] | None = None
    seats: int | None = None
    numa_node: int | None = None
    switch: str | None = None

    def with_unit(self, name: str) -> SharedCard:
        """The card with one more of a type, where it leaves most room.

        :raises ValueError: it does not fit
        """
        if not room(self, name):
            raise ValueError(f'{name} does not fit on {self.id}')
        return max(
            (self._with(Unit(vgpu_type=name, placement=placement))
             for placement in _free_placements(self, name)),
            key=_rooms)

    def _with(self, unit: Unit) -> SharedCard:
        told = dict(self.told or {})
        count = told.get(unit.vgpu_type or '')
        if unit.vgpu_type is not None and count is not None:
            told[unit.vgpu_type] = count - 1
        return dataclasses.replace(
            self, units=(*self.units, unit),
            told=None if self.told is None else told,
            seats=None if self.seats is None else self.seats - 1)


def limit(card: SharedCard, name: str) -> int:
    """How many of a type the card can have if it has nothing else."""
    kind = card.types.get(name)
    if kind is None or not kind.max_instances:
        return 0
    if card.sharing is Sharing.MIXED_PLACED:
        return len(_placements(card, name))
    return kind.max_instances


def room(card: SharedCard, name: str) -> int:
    """How many more of a type the card can take now: what the rule leaves,
    but no more than its driver says."""
    most = limit(card, name)
    if not card.offered or not most:
        return 0
    if card.sharing is Sharing.SAME_TYPE:
        fits = most - len(card.units) if all(
            unit.vgpu_type == name for unit in card.units) else 0
    elif card.sharing is Sharing.SAME_SIZE:
        size = _video_ram(card, name)
        fits = most - len(card.units) if all(
            unit.vgpu_type == name or (
                size is not None
                and _video_ram(card, unit.vgpu_type) == size)
            for unit in card.units) else 0
    elif card.sharing is Sharing.MIXED:
        used = _used_share(card)
        fits = 0 if used is None else int((1 - used) * most)
    else:
        fits = len(_free_placements(card, name))
    if card.seats is not None:
        fits = min(fits, card.seats)
    if card.told is not None:
        told = card.told.get(name, 0)
        fits = fits if told is None else min(fits, told)
    return max(0, fits)


def damage(card: SharedCard, name: str) -> tuple[int, ...]:
    """How much room each type loses by one more of a type, the largest
    first."""
    return tuple(before - after for before, after in zip(
        _rooms(card), _rooms(card.with_unit(name)), strict=True))


def _rooms(card: SharedCard) -> tuple[int, ...]:
    """Room for each type, the largest first."""
    return tuple(room(card, name) for name in sorted(
        card.types, key=lambda name: (limit(card, name), name)))


def _used_share(card: SharedCard) -> fractions.Fraction | None:
    """How much of the card is used; None: nobody knows.

    A type of which at most n fit takes the n-th part. Where sizes do not
    divide the card that is a little more than it really takes.
    """
    counts = collections.Counter(unit.vgpu_type for unit in card.units)
    used = fractions.Fraction(0)
    for name, count in counts.items():
        most = limit(card, name) if name is not None else 0
        if not most:
            return None
        used += fractions.Fraction(count, most)
    return used


def _video_ram(card: SharedCard, name: str | None) -> int | None:
    kind = card.types.get(name or '')
    return None if kind is None else kind.video_ram


def _gigabytes(card: SharedCard, name: str | None) -> int | None:
    size = _video_ram(card, name)
    return None if size is None else -(-size // _GIGABYTE)


def _placements(card: SharedCard, name: str) -> list[int]:
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


def _free_placements(card: SharedCard, name: str) -> Sequence[int | None]:
    """Where one more of a type can be; [None] where any place will do."""
    if card.sharing is not Sharing.MIXED_PLACED:
        return [None]
    taken = []
    for unit in card.units:
        size = _gigabytes(card, unit.vgpu_type)
        if size is None or unit.placement is None:
            # It is somewhere, and nobody knows where.
            return []
        taken.append((unit.placement, unit.placement + size))
    size = _gigabytes(card, name) or 0
    return [place for place in _placements(card, name)
            if all(place + size <= begin or end <= place
                   for begin, end in taken)]
