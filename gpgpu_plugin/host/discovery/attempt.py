# SPDX-License-Identifier: Apache-2.0
"""Attempts to read attributes, of which some may be unreadable."""

from __future__ import annotations

import typing
from collections.abc import Callable

T = typing.TypeVar('T')
_Arguments = typing.ParamSpec('_Arguments')


class Attempt:
    """Reader of one function's attributes that records which are unreadable.

    :ivar unreadable: names of attributes that cannot be read
    """

    def __init__(self, address: str, problems: list[str]) -> None:
        self.unreadable: list[str] = []
        self._address = address
        self._problems = problems

    def __call__(self, name: str, read: Callable[_Arguments, T | None],
                 *args: _Arguments.args, **kwargs: _Arguments.kwargs,
                 ) -> T | None:
        """Return the value read; None: it does not exist or cannot be read."""
        try:
            return read(*args, **kwargs)
        except (OSError, ValueError) as exc:
            self.unreadable.append(name)
            self._problems.append(
                f'{self._address}: {name} cannot be read '
                f'({getattr(exc, "strerror", None) or exc}): unknown')
            return None
