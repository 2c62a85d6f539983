# SPDX-License-Identifier: Apache-2.0
"""Kinds of events and notifications, and the quota of refusals."""

from __future__ import annotations

import collections
import datetime
import enum
import time
import types
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Mapping

from gpgpu_plugin.domain import device
from gpgpu_plugin.domain.allocation import request

Kind = typing.Literal[
    'abort', 'accept', 'activate', 'adopt', 'adopt_failed', 'allocation_found',
    'allocation_lost', 'appeared', 'claim', 'claim_denied', 'clean',
    'clean_failed', 'clean_interrupted', 'clean_passed', 'clean_started',
    'confirm', 'disable', 'distrust', 'drain', 'enable', 'exists',
    'filter_refused',
    'group_set', 'health', 'host_delete', 'isolate', 'missing', 'moved',
    'no_candidate',
    'operator_end', 'operator_release', 'quarantine', 'release', 'repair',
    'replace', 'restored', 'retire', 'returned', 'session', 'swapped',
    'takeover', 'type_disable', 'type_enable', 'undrain', 'unisolate',
    'update', 'usage', 'variant_create', 'variant_delete', 'variant_set']

KINDS: tuple[str, ...] = typing.get_args(Kind)
"""All kinds, in the order of their names."""

WARNED = frozenset({
    'clean_failed', 'health', 'missing', 'moved', 'swapped'})
"""Kinds that are a warning in the log."""

INFORMED = frozenset({
    'abort', 'accept', 'claim', 'clean', 'clean_interrupted', 'clean_passed',
    'confirm',
    'disable', 'distrust', 'drain', 'enable', 'group_set', 'host_delete',
    'isolate', 'operator_end', 'operator_release', 'quarantine', 'release',
    'repair', 'replace', 'retire', 'returned', 'takeover', 'type_disable',
    'type_enable', 'undrain', 'unisolate', 'variant_create',
    'variant_delete', 'variant_set'})
"""Kinds that are information in the log."""


# -- Types of notifications, and which of them a change causes.
#
# doc/source/admin/notifications.rst lists them, and a test holds it to that.


class EventType(enum.StrEnum):
    """Type of a notification, by which consumers select."""

    ASSIGNMENT_START = 'gpgpu.assignment.start'
    ASSIGNMENT_END = 'gpgpu.assignment.end'
    ASSIGNMENT_EXISTS = 'gpgpu.assignment.exists'
    DEVICE_UPDATE = 'gpgpu.device.update'
    DEVICE_QUARANTINE = 'gpgpu.device.quarantine'
    DEVICE_CLEAN_ERROR = 'gpgpu.device.clean.error'
    DEVICE_MISSING = 'gpgpu.device.missing'
    DEVICE_PRESENT = 'gpgpu.device.present'
    REQUEST_REFUSE = 'gpgpu.request.refuse'
    REQUEST_NO_CAPACITY = 'gpgpu.request.no_capacity'


class Priority(enum.StrEnum):
    """Priority of a notification; its topic ends with it."""

    INFO = 'INFO'
    WARN = 'WARN'
    ERROR = 'ERROR'


_E, _P = EventType, Priority

PRIORITIES: Mapping[EventType, Priority] = types.MappingProxyType({
    _E.ASSIGNMENT_START: _P.INFO,
    _E.ASSIGNMENT_END: _P.INFO,
    _E.ASSIGNMENT_EXISTS: _P.INFO,
    _E.DEVICE_UPDATE: _P.INFO,
    _E.DEVICE_QUARANTINE: _P.WARN,
    _E.DEVICE_CLEAN_ERROR: _P.ERROR,
    _E.DEVICE_MISSING: _P.WARN,
    _E.DEVICE_PRESENT: _P.INFO,
    _E.REQUEST_REFUSE: _P.INFO,
    _E.REQUEST_NO_CAPACITY: _P.WARN,
})
"""Priority of each type."""

NO_CANDIDATE = 'no_candidate'
"""Reason of a request for which Placement had no candidate."""

_NO_CAPACITY = frozenset({
    request.Reason.NOT_ENOUGH_AVAILABLE, request.Reason.DRIVER_HAS_NO_ROOM,
    NO_CANDIDATE})


def event_type_of_state(before: str, after: str) -> EventType:
    """Return which notification a change of a device's state is.

    :param before: its state, or the word for what withdraws the device
    """
    if after != device.QUARANTINED:
        return EventType.DEVICE_UPDATE
    return (EventType.DEVICE_CLEAN_ERROR
            if before == device.DeviceState.CLEANING
            else EventType.DEVICE_QUARANTINE)


def event_type_of_refusal(reasons: Collection[str],
                          hosts_left: int | None) -> EventType:
    """Return which notification a refusal is.

    :param reasons: names of the reasons of all hosts that were refused
    :param hosts_left: number of hosts that the request can still go to; None:
        that is not known, since one host has refused a claim
    """
    if hosts_left == 0 and not _NO_CAPACITY.isdisjoint(reasons):
        return EventType.REQUEST_NO_CAPACITY
    return EventType.REQUEST_REFUSE


# -- Quota of what is recorded of refusals.
#
# Whoever boots what no host has, as fast as Nova's API answers, must neither
# fill the database nor decide what the cloud is taken to need.


QUOTA_LIMIT = 100
"""Refusals of one key that are recorded in QUOTA_WINDOW."""

QUOTA_WINDOW = 3600.0
"""Seconds."""

_KEYS = 10_000


class Quota:
    """Quota for each of many keys, the newest ones. Not thread-safe.

    :param clock: seconds of a clock that never goes back
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When the window of a key began, and how many there were since.
        self._used: collections.OrderedDict[Hashable, tuple[float, int]] = (
            collections.OrderedDict())

    def take(self, key: Hashable) -> bool:
        """Return whether another refusal is within the quota, and count it."""
        now = self._clock()
        since, used = self._used.get(key, (now, 0))
        if now - since >= QUOTA_WINDOW:
            since, used = now, 0
        if used >= QUOTA_LIMIT:
            return False
        self._used[key] = since, used + 1
        self._used.move_to_end(key)
        if len(self._used) > _KEYS:
            self._used.popitem(last=False)
        return True


# -- Audit periods: hours, days or months of UTC, one after the other.


class AuditPeriod(enum.StrEnum):
    """Length of the periods."""

    HOUR = 'hour'
    DAY = 'day'
    MONTH = 'month'


def period_beginning(period: AuditPeriod,
                     at: datetime.datetime) -> datetime.datetime:
    """Return when the period began that a time is in."""
    hour = at.replace(minute=0, second=0, microsecond=0)
    if period is AuditPeriod.HOUR:
        return hour
    day = hour.replace(hour=0)
    return day if period is AuditPeriod.DAY else day.replace(day=1)


def period_ending(period: AuditPeriod,
                  at: datetime.datetime) -> datetime.datetime:
    """Return when the period ends that a time is in.

    The end is not part of it, but the beginning of the next one.
    """
    longest = {AuditPeriod.HOUR: datetime.timedelta(hours=1),
               AuditPeriod.DAY: datetime.timedelta(days=1),
               AuditPeriod.MONTH: datetime.timedelta(days=31)}[period]
    return period_beginning(period, period_beginning(period, at) + longest)
