# SPDX-License-Identifier: Apache-2.0
"""Lists that are fetched in pages, so that no message grows with the cloud."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable

from gpgpu_plugin.objects import admin

_Row = typing.TypeVar('_Row', bound='PageRow')

_Method = typing.TypeVar('_Method', bound=Callable[..., object])

SIZE = admin.PAGE_SIZE

ALL = 2 ** 31 - 1
"""Number of rows that a list never has."""

_SIZE = 'gpgpu_page_size'


def sized(size: int) -> Callable[[_Method], _Method]:
    """Return a decorator: one call of the method gets so many rows at most."""
    def decorate(method: _Method) -> _Method:
        setattr(method, _SIZE, size)
        return method
    return decorate


def size_of(method: Callable[..., object]) -> int | None:
    """Return how many rows a call of a list gets; None: it is no list."""
    return getattr(method, _SIZE, SIZE) if (
        'limit' in inspect.signature(method).parameters) else None


class PageRow(typing.Protocol):
    """A row of a list."""

    @property
    def marker(self) -> str:
        """Name of this row, for a call that lists the rows after it."""


def collect(fetch: Callable[[int, str | None], tuple[_Row, ...]],
            limit: int, marker: str | None,
            page_size: int = SIZE) -> tuple[_Row, ...]:
    """Return the rows of all pages.

    :param fetch: gets one page by its size and the marker of the row before
    :param limit: number of rows at most
    :param page_size: number of rows in one call at most
    """
    rows: list[_Row] = []
    while len(rows) < limit:
        size = min(page_size, limit - len(rows))
        page = fetch(size, marker)
        rows += page
        if len(page) < size:
            break
        marker = page[-1].marker
    return tuple(rows)
