# SPDX-License-Identifier: Apache-2.0
"""Hosts and requests of a trace, read from the lines of CSV files.

Columns are those of the published trace openb; more columns are ignored.
"""

from __future__ import annotations

import csv
import re
import typing
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import weighing

_HOST_COLUMNS = ('cpu_milli', 'memory_mib', 'gpu', 'model')
_REQUEST_COLUMNS = ('cpu_milli', 'memory_mib', 'num_gpu', 'gpu_milli')
_ZEROS = re.compile(r'(?<=[0-9])\.0+\Z')
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

    def has(self, column: str) -> bool:
        """Return whether the file has a column."""
        return column in self._values

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
        # Spreadsheets and pandas write whole numbers as "8.0".
        text = _ZEROS.sub('', self.text(column))
        # int() takes signs, spaces, underscores and digits of any script.
        if not (text.isascii() and text.isdigit() and len(text) <= 13):
            raise self.invalid(column, 'a whole number, 0 or more')
        number = int(text)
        if number > most:
            raise self.invalid(column, f'at most {most}')
        return number


def hosts(lines: Iterable[str], name: str) -> list[weighing.HostCapacity]:
    """Return the hosts of a file.

    :param name: of the file, for errors
    :raises Invalid: a column is missing or malformed, or there is no GPU
    """
    found = [
        weighing.HostCapacity(row.number('cpu_milli'),
                              row.number('memory_mib'),
                              (weighing.WHOLE,) * row.number('gpu',
                                                             _MOST_GPUS),
                              row.text('model'))
        for row in _rows(lines, name, _HOST_COLUMNS)]
    if not any(host.free for host in found):
        raise exception.Invalid(field=f'{name} column gpu', value='0',
                                expected='a node with a GPU')
    return found


def requests(lines: Iterable[str], name: str) -> list[weighing.WeighedRequest]:
    """Return the requests of a file, those that fit on no host too.

    A file without the column gpu_spec binds no request to models, and one
    without the column linked has no request for linked GPUs. A single GPU
    need not be linked, as in domain.allocation.request.

    :param name: of the file, for errors
    :raises Invalid: a column is missing or malformed, or none needs a GPU
    """
    found = [_request(row) for row in _rows(lines, name, _REQUEST_COLUMNS)]
    if not any(request.gpus for request in found):
        raise exception.Invalid(field=f'{name} column num_gpu', value='0',
                                expected='a request with a GPU')
    return found


def with_links(hosts: Sequence[weighing.HostCapacity], table: fabric.LinkTable,
               model: str | None = None) -> list[weighing.HostCapacity]:
    """Return hosts with the link partitions that a table states.

    :param model: of the hosts that the table is for; None: it is for all
    :raises Invalid: the table does not fit one of them
    """
    return [host._replace(links=_links(host, table))
            if model in (None, host.variant) and host.free else host
            for host in hosts]


def _links(host: weighing.HostCapacity,
           table: fabric.LinkTable) -> weighing.HostLinks:
    """Return the links of an idle host.

    Which GPU has which name does not matter to a simulation.
    """
    gpus = len(host.free)
    names = sorted(table.gpu_names, key=lambda name: (len(name), name))
    if len(names) > gpus or (len(names) < gpus and (
            table.named_by is fabric.NamedBy.ORDER)):
        raise exception.Invalid(
            field='link partitions', value=f'{len(names)} GPUs',
            expected=f'those of a node of model {host.variant}, which has '
                     f'{gpus} GPUs')
    bits = {name: 1 << number for number, name in enumerate(names)}
    return weighing.HostLinks(
        fabric.partitions_of(tuple(sorted(
            sum(bits[name] for name in part)
            for part in table.partitions.values()))),
        (1 << gpus) - 1, is_confined=table.fabric)


def _request(row: _Row) -> weighing.WeighedRequest:
    gpus = row.number('num_gpu', _MOST_GPUS)
    units = row.number('gpu_milli', weighing.WHOLE)
    if gpus and (not units or (gpus > 1 and units < weighing.WHOLE)):
        raise row.invalid(
            'gpu_milli', '1000, or 1 to 999 if num_gpu is 1')
    is_linked = row.has('linked') and bool(row.number('linked', 1))
    if is_linked and (not gpus or units < weighing.WHOLE):
        raise row.invalid('linked', '0, or a request of whole GPUs')
    return weighing.WeighedRequest(
        row.number('cpu_milli'), row.number('memory_mib'), gpus,
        units if gpus else 0,
        frozenset(filter(None, map(str.strip, row.text(
            'gpu_spec').split('|')))) if row.has('gpu_spec') else frozenset(),
        is_linked and gpus > 1)


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
