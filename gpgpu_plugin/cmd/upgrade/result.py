# SPDX-License-Identifier: Apache-2.0
"""Results of upgrade checks, and how they are joined."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence

from oslo_upgradecheck import upgradecheck

Result = upgradecheck.Result

_NAMED = 8
"""Number of names in a text; a cloud may have 10,000 hosts."""


def success(text: str) -> Result:
    """Return that nothing is to be done, and what was found."""
    return Result(upgradecheck.Code.SUCCESS, text)


def warning(text: str) -> Result:
    """Return that something works, but needs a look."""
    return Result(upgradecheck.Code.WARNING, text)


def failure(text: str) -> Result:
    """Return that something does not work until the operator acts."""
    return Result(upgradecheck.Code.FAILURE, text)


def join(results: Iterable[Result], fine: str) -> Result:
    """Return the findings of one check as one result.

    :param results: findings; none, if all is well
    :param fine: text if all is well
    """
    found = sorted(results, key=lambda result: -result.code)
    if not found:
        return success(fine)
    return Result(found[0].code, '. '.join(
        str(result.details) for result in found))


def names(found: Sequence[str]) -> str:
    """Return the first names of a list, and the number of the others."""
    more = len(found) - _NAMED
    return ', '.join(found[:_NAMED]) + (f' and {more} more' * (more > 0))
