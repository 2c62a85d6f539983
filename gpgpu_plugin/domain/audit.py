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
