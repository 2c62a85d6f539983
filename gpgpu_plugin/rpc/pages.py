# SPDX-License-Identifier: Apache-2.0
"""Lists that are fetched in pages, so that no message grows with the cloud."""

from __future__ import annotations

import typing
from collections.abc import Callable

from gpgpu_plugin.objects import admin

_Row = typing.TypeVar('_Row', bound='Row')

SIZE = admin.PAGE_SIZE


class Row(typing.Protocol):
    """A row of a list."""

    @property
    def marker(self) -> str:
        """What a call names to get the rows after this one."""


def collect(fetch: Callable[[int, str | None], tuple[_Row, ...]],
            limit: int | None, marker: str | None,
            page_size: int = SIZE) -> tuple[_Row, ...]:
    """Return the rows of all pages.

    :param fetch: gets one page by its size and the marker of the row before
    :param limit: number of rows at most; None: all
    :param page_size: number of rows in one call at most
    """
    rows: list[_Row] = []
    while limit is None or len(rows) < limit:
        size = (page_size if limit is None
                else min(page_size, limit - len(rows)))
        page = fetch(size, marker)
        rows += page
        if len(page) < size:
            break
        marker = page[-1].marker
    return tuple(rows)
