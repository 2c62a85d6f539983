# SPDX-License-Identifier: Apache-2.0
"""Rows and fields that a command prints, for people and for programs."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterable
from collections.abc import Sequence

from cliff import columns

# What cliff's Lister and ShowOne take: headings, then rows or fields.
Rows = tuple[Sequence[str], Iterable[Sequence[object]]]
Fields = tuple[Sequence[str], Iterable[object]]

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

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
