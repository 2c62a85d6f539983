# SPDX-License-Identifier: Apache-2.0
"""Dates in options of commands."""

from __future__ import annotations

import argparse
import datetime

_DAYS_AGO = {'today': 0, 'yesterday': 1}


def add_period(parser: argparse.ArgumentParser) -> None:
    """Add --from and --to, as ``since`` and ``until``."""
    parser.add_argument(
        '--from', dest='since', type=day, metavar='DATE',
        help='beginning of the period in UTC: a date such as 2026-10-31 or '
             '2026-10-31T12:00, "today" or "yesterday" (default: everything '
             'that was recorded)')
    parser.add_argument(
        '--to', dest='until', type=day, metavar='DATE',
        help='end of the period, which is not part of it (default: now)')


def date(text: str) -> datetime.datetime:
    """Return a date in UTC without a zone, for argparse.

    :raises ArgumentTypeError: it is not a date of ISO 8601
    """
    try:
        found = datetime.datetime.fromisoformat(text)
        if found.tzinfo is not None:
            found = found.astimezone(datetime.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a date such as 2026-10-31 or '
            f'2026-10-31T12:00') from None
    return found.replace(microsecond=0)


def day(text: str) -> datetime.datetime:
    """Return a date as ``date`` does; days of now have a name.

    :param text: also ``today`` or ``yesterday``, which begin at midnight UTC
    :raises ArgumentTypeError: it is not a date
    """
    if text not in _DAYS_AGO:
        return date(text)
    today = datetime.datetime.now(datetime.UTC).date()
    return datetime.datetime.combine(
        today - datetime.timedelta(days=_DAYS_AGO[text]), datetime.time())


def past(text: str) -> datetime.datetime:
    """Return a date as ``date`` does, for what cannot be undone.

    :raises ArgumentTypeError: it is not a date, or in the future
    """
    found = date(text)
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    if found > now:
        raise argparse.ArgumentTypeError(
            f'{text!r} would be all that there is: it is in the future (now '
            f'it is {now.isoformat(timespec="seconds")} in UTC)')
    return found
