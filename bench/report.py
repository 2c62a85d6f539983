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
"""Result of a benchmark: rows of figures, and conditions that failed."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of ours and of the peer, measured in the same run.

    :ivar peer: None if the peer cannot be measured here; ``note`` says why
    :ivar limit: limit of the ratio ours / peer, in words
    """

    what: str
    unit: str
    ours: float
    peer: float | None = None
    limit: str = ''
    note: str = ''

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's."""
        return self.ours / self.peer if self.peer else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """A benchmark's rows.

    :ivar wrong: correctness conditions that failed; figures never fail
    """

    name: str
    rows: tuple[Row, ...]
    wrong: tuple[str, ...] = ()


def table(results: Sequence[Result]) -> str:
    """Return all rows as a table of text."""
    lines = [('benchmark', 'what', 'peer', 'ours', 'ratio', 'limit', 'note')]
    for result in results:
        for row in result.rows:
            lines.append((
                result.name, f'{row.what} [{row.unit}]', _number(row.peer),
                _number(row.ours), _number(row.ratio), row.limit, row.note))
    widths = [max(len(line[column]) for line in lines)
              for column in range(len(lines[0]))]
    return '\n'.join(
        '  '.join(cell.ljust(width) for cell, width in
                  zip(line, widths, strict=True)).rstrip()
        for line in lines)


def _number(value: float | None) -> str:
    return '-' if value is None else f'{value:.3g}'


def write_json(results: Sequence[Result], path: pathlib.Path) -> None:
    """Write all results as JSON."""
    path.write_text(json.dumps([
        {**dataclasses.asdict(result), 'rows': [
            {**dataclasses.asdict(row), 'ratio': row.ratio}
            for row in result.rows]}
        for result in results], indent=2) + '\n')
