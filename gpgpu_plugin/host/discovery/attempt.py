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
