# SPDX-License-Identifier: Apache-2.0
"""Audit periods: hours, days or months of UTC, one after the other."""

from __future__ import annotations

import datetime
import enum


class AuditPeriod(enum.StrEnum):
    """Length of the periods."""

    HOUR = 'hour'
    DAY = 'day'
    MONTH = 'month'


def beginning(period: AuditPeriod,
              at: datetime.datetime) -> datetime.datetime:
    """Return when the period began that a time is in."""
    hour = at.replace(minute=0, second=0, microsecond=0)
    if period is AuditPeriod.HOUR:
        return hour
    day = hour.replace(hour=0)
    return day if period is AuditPeriod.DAY else day.replace(day=1)


def ending(period: AuditPeriod, at: datetime.datetime) -> datetime.datetime:
    """Return when the period ends that a time is in.

    The end is not part of it, but the beginning of the next one.
    """
    longest = {AuditPeriod.HOUR: datetime.timedelta(hours=1),
               AuditPeriod.DAY: datetime.timedelta(days=1),
               AuditPeriod.MONTH: datetime.timedelta(days=31)}[period]
    return beginning(period, beginning(period, at) + longest)
