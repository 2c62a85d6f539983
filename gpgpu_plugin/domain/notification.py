# SPDX-License-Identifier: Apache-2.0
"""Types of notifications, and which of them a change causes.

doc/source/admin/notifications.rst lists them, and a test holds it to that.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Collection
from collections.abc import Mapping

from gpgpu_plugin.domain import device
from gpgpu_plugin.domain.allocation import request


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


def of_state(before: str, after: str) -> EventType:
    """Return which notification a change of a device's state is.

    :param before: its state, or the word for what withdraws the device
    """
    if after != device.QUARANTINED:
        return EventType.DEVICE_UPDATE
    return (EventType.DEVICE_CLEAN_ERROR
            if before == device.DeviceState.CLEANING
            else EventType.DEVICE_QUARANTINE)


def of_refusal(reasons: Collection[str], hosts_left: int | None) -> EventType:
    """Return which notification a refusal is.

    :param reasons: names of the reasons of all hosts that were refused
    :param hosts_left: number of hosts that the request can still go to; None:
        that is not known, since one host has refused a claim
    """
    if hosts_left == 0 and not _NO_CAPACITY.isdisjoint(reasons):
        return EventType.REQUEST_NO_CAPACITY
    return EventType.REQUEST_REFUSE
