# SPDX-License-Identifier: Apache-2.0
"""The size, the beginning and the period of a page of a list."""

from __future__ import annotations

import datetime

from gpgpu_plugin import exception
from gpgpu_plugin.objects import admin as objects

_LARGEST = 2 ** 31 - 1
"""Number that each database takes as an integer."""


def size(limit: int) -> int:
    """Return the number of rows to read.

    :raises Invalid: the limit is below 1
    """
    if limit < 1:
        raise exception.Invalid(
            field='limit', value=limit, expected='a number of rows above 0')
    return min(limit, objects.PAGE_SIZE)


def check_period(since: datetime.datetime | None,
                 until: datetime.datetime | None) -> None:
    """Refuse a period without a second in it.

    :raises Invalid: it ends before it begins, or at once
    """
    if since is not None and until is not None and since >= until:
        raise exception.Invalid(
            field='period', value=f'{since} to {until}',
            expected='a period that ends after it begins')


def number(marker: str, what: str) -> int:
    """Return a marker that is a number.

    :param what: what has the number, for the message
    :raises Invalid: it is none, or none that a row can have
    """
    if not (marker.isascii() and marker.isdecimal() and len(marker) < 11
            and int(marker) <= _LARGEST):
        raise exception.Invalid(
            field='marker', value=marker, expected=f'the number of {what}')
    return int(marker)
