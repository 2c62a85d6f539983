# SPDX-License-Identifier: Apache-2.0
"""Options of commands that list a part of what there is."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser, marker: str,
                  default: int | None = None) -> None:
    """Add --limit and --marker.

    :param marker: what names a row of the list, for the help
    :param default: number of rows; None: all
    """
    parser.add_argument(
        '--limit', type=number, metavar='NUMBER', default=default,
        help=f'list at most this number of rows (default: '
             f'{default or "all"})')
    parser.add_argument(
        '--marker', metavar='ROW',
        help=f'list the rows after this one, named by {marker}')


def number(text: str) -> int:
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
