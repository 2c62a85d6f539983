# SPDX-License-Identifier: Apache-2.0
"""A map as one HTML page that needs nothing else: no script, no other file.

The templates page.html.j2 and page.css.j2 lie beside this module. Jinja2
escapes every value that they insert. The page's Content-Security-Policy allows
the page's own style sheet, by its hash, and nothing else.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import hashlib
from collections.abc import Iterable
from collections.abc import Mapping

import jinja2

from gpgpu_plugin.gpu_map import mark as mark_mod
from gpgpu_plugin.gpu_map import text
from gpgpu_plugin.gpu_map import tree
from gpgpu_plugin.objects import inventory

OPEN_HOSTS = 16
"""Number of hosts up to which the page shows the inside of each at once."""

_Aspect = mark_mod.Aspect
_NUMBERS = {colour: number
            for number, colour in enumerate(mark_mod.COLOURS)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Attributes:
    """Attributes of one block.

    :ivar classes: CSS classes of its colour by state, owner and type; that by
        state has the letter, too
    """

    classes: str
    owner: str
    type: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Bar:
    """Capacity of a type with its parts in percent."""

    capacity: inventory.CloudCapacity
    assigned_percent: float
    remaining_percent: float


class _Painter:
    """Functions that the template calls."""

    def __init__(self, marks: mark_mod.Marks) -> None:
        self._marks = marks

    def attributes(self, block: tree.Block) -> _Attributes:
        state, owner, type_ = (
            self._marks.of_block(aspect, block)
            for aspect in (_Aspect.STATE, _Aspect.OWNER, _Aspect.TYPE))
        return _Attributes(
            classes=f's{_NUMBERS[state.colour]} o{_NUMBERS[owner.colour]} '
                    f't{_NUMBERS[type_.colour]}'
                    f'{" ill" if block.is_ill else ""}',
            owner=owner.symbol, type=type_.symbol)

    def owner_symbol(self, block: tree.Block) -> str:
        return ('' if block.project is None
                else self._marks.owner(block.project).symbol)


def render(gpu_map: tree.GPUMap, aspect: _Aspect) -> str:
    """Return the page.

    :param aspect: what its colours say until the reader chooses
    """
    marks = mark_mod.Marks(gpu_map)
    painter = _Painter(marks)
    environment = _environment()
    environment.filters['counted'] = text.counted
    style = environment.get_template('page.css.j2').render(
        colours=list(enumerate(mark_mod.COLOURS)),
        numbers=_NUMBERS, white=_NUMBERS[mark_mod.WHITE],
        states=[*mark_mod.STATES.values(), mark_mod.OTHER_STATE],
        aspects=list(_Aspect), shares=_shares(gpu_map.gpus))
    return environment.get_template('page.html.j2').render(
        map=gpu_map, chosen=aspect, legends=marks.legends,
        attributes_of=painter.attributes,
        owner_symbol=painter.owner_symbol,
        bars=list(map(_bar, gpu_map.capacities)), numbers=_NUMBERS,
        states=_states, style=style, style_hash=_hash(style),
        sparkline=_sparkline, hours=tree.HOURS,
        is_open=len(gpu_map.hosts) <= OPEN_HOSTS)


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader('gpgpu_plugin.gpu_map', ''),
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined)


def _sparkline(host: tree.HostMap) -> str:
    """Return the points of a line of one unit an hour, eight units high."""
    return ' '.join(
        f'{hour},{round(8 - 8 * number / host.most, 1):g}'
        for hour, number in enumerate(host.in_use))


def _hash(style: str) -> str:
    digest = hashlib.sha256(style.encode('utf-8')).digest()
    return f'sha256-{base64.b64encode(digest).decode("ascii")}'


def _shares(gpus: Iterable[tree.GPUBlock]) -> list[int]:
    return sorted({vgpu.share for gpu in gpus for vgpu in gpu.vgpus})


def _states(gpus: Iterable[tree.GPUBlock]) -> Mapping[str, int]:
    """Return the number of GPUs by state, and of those that are faulty."""
    gpus = list(gpus)
    counts = collections.Counter(gpu.state for gpu in gpus)
    ill = collections.Counter(gpu.health for gpu in gpus if gpu.is_ill)
    return {**{state: counts[state] for state in (*mark_mod.STATES, *counts)
               if counts[state]},
            **{f'{text.ILL} {health}': ill[health] for health in tree.ILL
               if ill[health]}}


def _bar(capacity: inventory.CloudCapacity) -> _Bar:
    total = max(capacity.max_capacity,
                capacity.assigned + capacity.remaining_capacity, 1)
    return _Bar(
        capacity=capacity,
        assigned_percent=round(100 * capacity.assigned / total, 2),
        remaining_percent=round(
            100 * capacity.remaining_capacity / total, 2))
