# SPDX-License-Identifier: Apache-2.0
"""Dates in options of commands."""

from __future__ import annotations

import argparse
import datetime
import re

FORMS = ('a date in UTC such as 2026-10-31 or 2026-10-31T12:00, "today", '
         '"yesterday", or a time such as "90m ago", "6h ago" or "30d ago"')
"""What an option takes, for its help."""

_DAYS_AGO = {'today': 0, 'yesterday': 1}
_UNITS = {'m': 'minutes', 'h': 'hours', 'd': 'days'}


def add_period(parser: argparse.ArgumentParser) -> None:
    """Add --from and --to, as ``since`` and ``until``."""
    parser.add_argument(
        '--from', dest='since', type=date, metavar='DATE',
        help=f'beginning of the period: {FORMS} (default: everything that '
             f'was recorded)')
    parser.add_argument(
        '--to', dest='until', type=date, metavar='DATE',
        help='end of the period, which is not part of it (default: now)')


def date(text: str) -> datetime.datetime:
    """Return a date in UTC without a zone, for argparse.

    Days begin at midnight.

    :raises ArgumentTypeError: it is none of FORMS
    """
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    ago = re.fullmatch(r'(\d+)\s*([mhd]) ago', text, re.ASCII)
    try:
        if ago is not None:
            found = now - datetime.timedelta(
                **{_UNITS[ago.group(2)]: int(ago.group(1))})
        elif text in _DAYS_AGO:
            found = datetime.datetime.combine(
                now.date() - datetime.timedelta(days=_DAYS_AGO[text]),
                datetime.time())
        else:
            found = datetime.datetime.fromisoformat(text)
        if found.tzinfo is not None:
            found = found.astimezone(datetime.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f'{text!r} is not {FORMS}') from None
    return found.replace(microsecond=0)


def past(text: str) -> datetime.datetime:
    """Return a date as ``date`` does, for what cannot be undone.

    :raises ArgumentTypeError: it is not a date, or in the future
    """
    found = date(text)
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    if found > now:
        raise argparse.ArgumentTypeError(
            f'{text!r} is in the future: in UTC it is '
            f'{now.isoformat(timespec="seconds")}')
    return found
