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
"""Hosts and requests of a trace, read from the lines of CSV files.

Columns are those of the published trace openb; more columns are ignored.
"""

from __future__ import annotations

import csv
import typing
from collections.abc import Iterable
from collections.abc import Iterator

from gpgpu_plugin import exception
from gpgpu_plugin.domain.weighing import host as host_mod

_HOST_COLUMNS = ('cpu_milli', 'memory_mib', 'gpu', 'model')
_REQUEST_COLUMNS = ('cpu_milli', 'memory_mib', 'num_gpu', 'gpu_milli',
                    'gpu_spec')
_MOST = 10 ** 12
_MOST_GPUS = 1024


class _Row:
    """A line of a file, whose errors name file, line and column."""

    def __init__(self, name: str, line: int,
                 values: dict[str, str | None]) -> None:
        self._where = f'{name} line {line}'
        self._values = values

    def invalid(self, column: str, expected: str) -> exception.Invalid:
        """Return the error of a column."""
        return exception.Invalid(
            field=f'{self._where} column {column}',
            value=self._values[column], expected=expected)

    def text(self, column: str) -> str:
        """Return a column's text.

        :raises Invalid: the line ends before it
        """
        value = self._values[column]
        if value is None:
            raise self.invalid(column, 'the line has fewer columns than the '
                                       'heading')
        return value.strip()

    def number(self, column: str, most: int = _MOST) -> int:
        """Return a column's whole number.

        :raises Invalid: it is none, or beyond 0 to most
        """
        text = self.text(column)
        # int() takes signs, spaces, underscores and digits of any script.
        if not (text.isascii() and text.isdigit() and len(text) <= 13):
            raise self.invalid(column, 'a whole number, 0 or more')
        number = int(text)
        if number > most:
            raise self.invalid(column, f'at most {most}')
        return number


def hosts(lines: Iterable[str], name: str) -> list[host_mod.Host]:
    """Return the hosts of a file.

    :param name: of the file, for errors
    :raises Invalid: a column is missing or malformed, or there is no GPU
    """
    found = [
        host_mod.Host(row.number('cpu_milli'), row.number('memory_mib'),
                      (host_mod.WHOLE,) * row.number('gpu', _MOST_GPUS),
                      row.text('model'))
        for row in _rows(lines, name, _HOST_COLUMNS)]
    if not any(host.free for host in found):
        raise exception.Invalid(field=f'{name} column gpu', value='0',
                                expected='a node with a GPU')
    return found


def requests(lines: Iterable[str], name: str,
             most_gpus: int) -> list[host_mod.Request]:
    """Return the requests of a file.

    :param name: of the file, for errors
    :param most_gpus: GPUs of the largest host
    :raises Invalid: a column is missing or malformed, a request needs more
        GPUs than any host has, or none needs a GPU
    """
    found = [_request(row, most_gpus)
             for row in _rows(lines, name, _REQUEST_COLUMNS)]
    if not any(request.gpus for request in found):
        raise exception.Invalid(field=f'{name} column num_gpu', value='0',
                                expected='a request with a GPU')
    return found


def _request(row: _Row, most_gpus: int) -> host_mod.Request:
    gpus = row.number('num_gpu')
    if gpus > most_gpus:
        raise row.invalid('num_gpu', f'at most {most_gpus}, the GPUs of the '
                                     'largest node')
    units = row.number('gpu_milli', host_mod.WHOLE)
    if gpus and (not units or (gpus > 1 and units < host_mod.WHOLE)):
        raise row.invalid(
            'gpu_milli', '1000, or 1 to 999 if num_gpu is 1')
    return host_mod.Request(
        row.number('cpu_milli'), row.number('memory_mib'), gpus,
        units if gpus else 0,
        frozenset(filter(None, map(str.strip,
                                   row.text('gpu_spec').split('|')))))


def _rows(lines: Iterable[str], name: str,
          columns: tuple[str, ...]) -> Iterator[_Row]:
    """Yield the lines below the heading.

    :raises Invalid: the file is empty, lacks a column or is no CSV
    """
    reader = csv.DictReader(lines, strict=True)
    empty = True
    try:
        heading = reader.fieldnames or ()
        for column in columns:
            if column not in heading:
                raise exception.Invalid(
                    field=f'{name} line 1 column {column}',
                    value=','.join(heading),
                    expected='a heading with ' + ', '.join(columns))
        for values in reader:
            empty = False
            yield _Row(name, reader.line_num,
                       typing.cast('dict[str, str | None]', values))
    except (csv.Error, UnicodeDecodeError) as exc:
        raise exception.Invalid(
            field=f'{name} line {reader.line_num + 1}', value=str(exc),
            expected='CSV in UTF-8') from None
    if empty:
        raise exception.Invalid(field=f'{name} line 2', value='',
                                expected='at least one line below the heading')
