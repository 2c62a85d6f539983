# SPDX-License-Identifier: Apache-2.0
"""Result of a benchmark: rows of figures, and conditions that failed."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goal:
    """What a figure should be at most, or at least.

    :ivar ratio: compare the ratio ours / peer instead of our figure
    """

    at_most: float | None = None
    at_least: float | None = None
    ratio: bool = False

    def is_met(self, row: Row) -> bool | None:
        """Return whether a row reaches the goal; None: not measured."""
        figure = row.ratio if self.ratio else row.ours
        if figure is None:
            return None
        return ((self.at_most is None or figure <= self.at_most)
                and (self.at_least is None or figure >= self.at_least))

    def __str__(self) -> str:
        unit = ' x' if self.ratio else ''
        return ', '.join(
            f'{sign} {_number(figure)}{unit}' for sign, figure in (
                ('<=', self.at_most), ('>=', self.at_least))
            if figure is not None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of ours, beside that of a peer or a limit.

    :ivar peer: the peer's figure, measured in the same run
    :ivar limit: the best figure possible, where there is no peer
    :ivar note: what the reader must know, such as the name of the peer
    """

    what: str
    unit: str
    ours: float
    peer: float | None = None
    limit: float | None = None
    goal: Goal | None = None
    note: str = ''

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's, or by the limit."""
        other = self.peer or self.limit
        return self.ours / other if other else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None: there is none."""
        return None if self.goal is None else self.goal.is_met(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """A benchmark's rows.

    :ivar wrong: correctness conditions that failed; figures never fail
    """

    name: str
    rows: tuple[Row, ...]
    wrong: tuple[str, ...] = ()


_HEADINGS = ('benchmark', 'what', 'unit', 'peer', 'ours', 'ratio', 'limit',
             'goal', 'met', 'note')


def _cells(results: Sequence[Result]) -> Iterator[tuple[object, ...]]:
    """Yield the values of each row below the headings."""
    for result in results:
        for row in result.rows:
            yield (result.name, row.what, row.unit, row.peer, row.ours,
                   row.ratio, row.limit,
                   None if row.goal is None else str(row.goal), row.met,
                   row.note)


def table(results: Sequence[Result]) -> str:
    """Return all rows as a table of text."""
    lines = [_HEADINGS, *(tuple(map(_text, cells))
                          for cells in _cells(results))]
    widths = [max(len(line[column]) for line in lines)
              for column in range(len(_HEADINGS))]
    return '\n'.join(
        '  '.join(cell.ljust(width) for cell, width in
                  zip(line, widths, strict=True)).rstrip()
        for line in lines)


def _text(value: object) -> str:
    if value is None:
        return '-'
    if isinstance(value, bool):
        return 'yes' if value else 'NO'
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return f'{value:.3g}' if abs(value) < 1000 else f'{value:.0f}'


def write_json(results: Sequence[Result], path: pathlib.Path) -> None:
    """Write a list with one object for each row of all results."""
    path.write_text(json.dumps([
        dict(zip(_HEADINGS, cells, strict=True))
        for cells in _cells(results)], indent=2) + '\n')
