# SPDX-License-Identifier: Apache-2.0
"""Pages of lists, in the order of the columns that they are sorted by."""

from __future__ import annotations

import typing
from collections.abc import Sequence

import sqlalchemy as sa


def after(columns: Sequence[sa.SQLColumnExpression[typing.Any]],
          values: Sequence[object]) -> sa.ColumnElement[bool]:
    """Return the condition that a row comes after another one.

    It is written so that each database finds the first row by the index of the
    first column, instead of reading all rows before it.

    :param columns: columns by which rows are sorted; together they are unique
    :param values: of the other row
    """
    [*pairs, (column, value)] = zip(columns, values, strict=True)
    condition = column > value
    for column, value in reversed(pairs):
        condition = sa.or_(column > value,
                           sa.and_(column == value, condition))
    return sa.and_(columns[0] >= values[0], condition)
