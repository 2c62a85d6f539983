# SPDX-License-Identifier: Apache-2.0
"""Claims that are checked, and commands that must succeed."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Collection
from collections.abc import Sequence


class WrongError(Exception):
    """Error: a claim is false."""


def check(holds: bool, what: str, details: Collection[str] = ()) -> None:
    """Refuse a claim that does not hold. :raises WrongError: see there"""
    if not holds:
        raise WrongError(' '.join([what, ', '.join(details)]).strip())


def run(argv: Sequence[str], *, code: int = 0, cwd: pathlib.Path | None = None,
        ) -> subprocess.CompletedProcess[str]:
    """Run a command that must end with this exit code.

    :raises WrongError: it ended with another, or took too long
    """
    # Neither this checkout nor the operator's settings are looked at.
    environment = {
        name: value for name, value in os.environ.items()
        if not name.startswith(('OS_', 'PYTHON', 'VIRTUAL_ENV'))}
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=environment, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=600, check=False)
    except subprocess.TimeoutExpired as exc:
        raise WrongError(f'{" ".join(argv)} took {exc.timeout} s') from None
    check(done.returncode == code,
          f'{" ".join(argv)} ended with {done.returncode}, not {code}:\n'
          f'{done.stdout[-3000:]}{done.stderr[-3000:]}')
    return done
