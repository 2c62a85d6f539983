# SPDX-License-Identifier: Apache-2.0
"""Columns, pages and periods of what commands list."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import re
import typing
from collections.abc import Iterable
from collections.abc import Sequence

from cliff import columns

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance


# -- Rows and fields that a command prints, for people and for programs.


# What cliff's Lister and ShowOne take: headings, then rows or fields.
Rows = tuple[Sequence[str], Iterable[Sequence[object]]]
Fields = tuple[Sequence[str], Iterable[object]]

_FORMULA = tuple('=+-@\t\r')
"""Characters that begin a formula in a spreadsheet."""

_INITIALISMS = ('dsn', 'id', 'iommu', 'numa', 'ram', 'uuid')


class Cell(columns.FormattableColumn[object]):
    """A value that people read as text and programs get unchanged.

    People read ``-`` for a value that is absent, and lists and counts
    without brackets.
    """

    def human_readable(self) -> str:
        value = self._value
        if value is None or value == () or value == {}:
            return '-'
        if isinstance(value, dict):
            return ', '.join(f'{key} {count}'
                             for key, count in value.items())
        if isinstance(value, (list, tuple)):
            return ', '.join(map(str, value))
        if isinstance(value, bool):
            return 'yes' if value else 'no'
        return str(value)

    def machine_readable(self) -> object:
        # Plain lists and strings: YAML would tag a tuple or an enum.
        plain: object = json.loads(json.dumps(self._value))
        return plain


def without_formula(value: object) -> object:
    """Return a value of a CSV file, of which a spreadsheet computes nothing.

    Serial numbers, names and reasons come from cards, hosts and tenants.
    """
    if isinstance(value, Cell):
        return Cell(without_formula(value._value))
    return f"'{value}" if isinstance(value, str) and value.startswith(
        _FORMULA) else value


def title(name: str) -> str:
    """Return the heading of a field: ``Node UUID`` for ``node_uuid``."""
    return ' '.join(
        word.upper() if word in _INITIALISMS
        else word.replace('gpu', 'GPU') if word in ('vgpu', 'pgpu')
        else word.title() for word in name.split('_'))


def rows(values: Iterable[object], names: Sequence[str]) -> Rows:
    """Return some fields of values, one row per value."""
    return [title(name) for name in names], [
        [Cell(getattr(value, name)) for name in names] for value in values]


def fields(value: DataclassInstance) -> Fields:
    """Return all fields of one value."""
    names = [field.name for field in dataclasses.fields(value)]
    return ([title(name) for name in names],
            [Cell(getattr(value, name)) for name in names])


# -- Options of commands that list a part of what there is.


def add_page_arguments(parser: argparse.ArgumentParser, marker: str,
                       default: int | None = None) -> None:
    """Add --limit and --marker.

    :param marker: what names a row of the list, for the help
    :param default: number of rows; None: all
    """
    parser.add_argument(
        '--limit', type=number_argument, metavar='NUMBER', default=default,
        help=f'list at most this number of rows (default: '
             f'{default or "all"})')
    parser.add_argument(
        '--marker', metavar='ROW',
        help=f'list the rows after this one, named by {marker}')


def number_argument(text: str) -> int:
    """Return a number of rows or other things, for argparse.

    :raises ArgumentTypeError: it is none, or below 1
    """
    try:
        found = int(text)
    except ValueError:
        found = 0
    if found < 1:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a number above 0')
    return found


# -- Dates in options of commands.


FORMS = ('a date in UTC such as 2026-10-31 or 2026-10-31T12:00, "today", '
         '"yesterday", or a time such as "90m ago", "6h ago" or "30d ago"')
"""Forms of a date that an option takes, for its help."""

_DAYS_AGO = {'today': 0, 'yesterday': 1}
_UNITS = {'m': 'minutes', 'h': 'hours', 'd': 'days'}


def add_period(parser: argparse.ArgumentParser) -> None:
    """Add --from and --to, as ``since`` and ``until``."""
    parser.add_argument(
        '--from', dest='since', type=date, metavar='DATE',
        help=f'beginning of the period: {FORMS} (default: everything that '
             f'was recorded)')
    parser.add_argument(
        '--to', dest='until', type=date, metavar='DATE',
        help='end of the period, which is not part of it (default: now)')


def date(text: str) -> datetime.datetime:
    """Return a date in UTC without a zone, for argparse.

    Days begin at midnight.

    :raises ArgumentTypeError: it is none of FORMS
    """
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    ago = re.fullmatch(r'(\d+)\s*([mhd]) ago', text, re.ASCII)
    try:
        if ago is not None:
            found = now - datetime.timedelta(
                **{_UNITS[ago.group(2)]: int(ago.group(1))})
        elif text in _DAYS_AGO:
            found = datetime.datetime.combine(
                now.date() - datetime.timedelta(days=_DAYS_AGO[text]),
                datetime.time())
        else:
            found = datetime.datetime.fromisoformat(text)
        if found.tzinfo is not None:
            found = found.astimezone(datetime.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f'{text!r} is not {FORMS}') from None
    return found.replace(microsecond=0)


def past_moment(text: str) -> datetime.datetime:
    """Return a date as ``date`` does, for what cannot be undone.

    :raises ArgumentTypeError: it is not a date, or in the future
    """
    found = date(text)
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    if found > now:
        raise argparse.ArgumentTypeError(
            f'{text!r} is in the future: in UTC it is '
            f'{now.isoformat(timespec="seconds")}')
    return found
