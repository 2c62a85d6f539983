# SPDX-License-Identifier: Apache-2.0
"""Marks of a map: a letter and a colour for each state, owner and type.

The colours are those of Okabe and Ito, which people with any kind of colour
blindness tell apart. Each comes with the colour of the letter on it, and with
the nearest colours of terminals with 256 colours. Letters alone say the same.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import string
import types
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.gpu_map import tree

_State = device_rules.DeviceState


class Aspect(enum.StrEnum):
    """Fact that the colours of a map show."""

    STATE = 'state'
    OWNER = 'owner'
    TYPE = 'type'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Colour:
    """A colour, the colour of a letter on it, and both for terminals."""

    background: str
    letter: str
    terminal: int
    terminal_letter: int


_DARK, _LIGHT = 16, 231


def _with_dark_letter(background: str, terminal: int) -> Colour:
    return Colour(background=background, letter='#000000',
                  terminal=terminal, terminal_letter=_DARK)


def _with_light_letter(background: str, terminal: int) -> Colour:
    return Colour(background=background, letter='#ffffff',
                  terminal=terminal, terminal_letter=_LIGHT)


BLUE = _with_light_letter('#0072b2', 25)
ORANGE = _with_dark_letter('#e69f00', 214)
GREEN = _with_dark_letter('#009e73', 36)
PURPLE = _with_dark_letter('#cc79a7', 175)
SKY_BLUE = _with_dark_letter('#56b4e9', 74)
YELLOW = _with_dark_letter('#f0e442', 227)
VERMILLION = _with_dark_letter('#d55e00', 166)
GREY = _with_dark_letter('#999999', 247)
BLACK = _with_light_letter('#000000', 16)
WHITE = _with_dark_letter('#ffffff', 231)
BROWN = _with_light_letter('#7f5000', 94)

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY_BLUE, YELLOW, VERMILLION, GREY,
           BLACK, BROWN, WHITE)
_CYCLE = COLOURS[:7]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mark:
    """A letter on a colour, and what it stands for."""

    symbol: str
    colour: Colour
    text: str


def _mark(symbol: str, colour: Colour, text: str) -> Mark:
    return Mark(symbol=symbol, colour=colour, text=text)


STATES: Mapping[str, Mark] = types.MappingProxyType({
    mark.text: mark for mark in (
        _mark('A', BLUE, _State.ASSIGNED),
        _mark('P', SKY_BLUE, _State.PROVISIONING),
        # F: free. A is taken, and this is the state that people look for.
        _mark('F', GREEN, _State.AVAILABLE),
        _mark('D', ORANGE, _State.DIRTY),
        _mark('C', YELLOW, _State.CLEANING),
        _mark('Q', VERMILLION, device_rules.QUARANTINED),
        _mark('X', GREY, device_rules.DISABLED),
        _mark('M', BLACK, device_rules.MISSING),
        _mark('N', BROWN, device_rules.UNKNOWN),
        _mark('U', WHITE, device_rules.UNMANAGED))})
"""Mark of each shown state, in the order of legends.

A map has no retired GPU.
"""

OTHER_STATE = _mark('?', PURPLE, 'another state')
"""Mark of a state that only a newer gpgpu-conductor knows."""

NOBODY = _mark('-', WHITE, 'not assigned')
SEVERAL = _mark('*', GREY, 'several on one GPU')


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarkEntry:
    """A line of a legend.

    :ivar gpus: number of GPUs with this mark
    :ivar vgpus: number of vGPUs with this mark
    """

    mark: Mark
    gpus: int
    vgpus: int


def symbol(number: int) -> str:
    """Return the letters of the n-th owner or type: A to Z, AA, AB, ..."""
    letters = ''
    while number >= 0:
        number, letter = divmod(number, 26)
        letters = string.ascii_uppercase[letter] + letters
        number -= 1
    return letters


class Marks:
    """Marks of all blocks of one map.

    Owners and types get theirs by their number of GPUs and vGPUs, the most
    frequent one first.
    """

    def __init__(self, gpu_map: tree.GPUMap) -> None:
        gpus = gpu_map.gpus
        self._owners = _numbered(
            project for gpu in gpus for project in _owners(gpu))
        self._types = _numbered(kind for gpu in gpus for kind in _kinds(gpu))
        self.legends: Mapping[Aspect, tuple[MarkEntry, ...]] = {
            aspect: self._legend(aspect, gpus) for aspect in Aspect}

    def of_block(self, aspect: Aspect, block: tree.Block) -> Mark:
        """Return the mark of a GPU as a whole, or of a vGPU."""
        if aspect is Aspect.STATE:
            return STATES.get(block.state, OTHER_STATE)
        if aspect is Aspect.OWNER:
            return self._common(self._owners, _owners(block))
        return self._common(self._types, _kinds(block))

    def owner(self, project: str) -> Mark:
        """Return the mark of a project that has a GPU or vGPU."""
        return self._owners[project]

    @staticmethod
    def _common(marks: Mapping[str, Mark], names: Collection[str]) -> Mark:
        if not names:
            return NOBODY
        return SEVERAL if len(set(names)) > 1 else marks[next(iter(names))]

    def _legend(self, aspect: Aspect,
                gpus: Collection[tree.GPUBlock]) -> tuple[MarkEntry, ...]:
        of_gpus = collections.Counter(
            self.of_block(aspect, gpu) for gpu in gpus)
        of_vgpus = collections.Counter(
            self.of_block(aspect, vgpu) for gpu in gpus for vgpu in gpu.vgpus)
        known = {Aspect.STATE: STATES, Aspect.OWNER: self._owners,
                 Aspect.TYPE: self._types}[aspect]
        return tuple(
            MarkEntry(mark=mark, gpus=of_gpus[mark], vgpus=of_vgpus[mark])
            for mark in (*known.values(), OTHER_STATE, SEVERAL, NOBODY)
            if mark in of_gpus or mark in of_vgpus)


def _owners(block: tree.Block) -> list[str]:
    """Return the projects that have a block, or a part of it."""
    parts = block.vgpus if isinstance(block, tree.GPUBlock) else ()
    return [part.project for part in (block, *parts)
            if part.project is not None]


def _kinds(block: tree.Block) -> list[str]:
    """Return the types of the vGPUs of a GPU, else the variant."""
    if isinstance(block, tree.GPUBlock) and block.vgpus:
        return [vgpu.kind for vgpu in block.vgpus]
    return [block.kind]


def _numbered(names: Iterable[str]) -> dict[str, Mark]:
    """Return a mark for each name, the most frequent name first."""
    counts = collections.Counter(names)
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    return {name: Mark(symbol=symbol(number), text=name,
                       colour=_CYCLE[number % len(_CYCLE)])
            for number, name in enumerate(ordered)}
