# SPDX-License-Identifier: Apache-2.0
"""Which repairs are executed, and on which hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from gpgpu_plugin.doctor import drift

Batches = dict[tuple[drift.Repair, ...], list[str]]
"""Hosts by the repairs that each of them executes."""

_TWICE = ('A device of this host is assigned twice, and an iteration of its '
          'nova-compute might release it while one of the two guests runs. '
          'Settle that first')
_MAY_RUN = ('A guest of this host may run with the device, and its usage goes '
            'on then. Settle the other drift of this host first')
_FORBIDDEN: Mapping[str, tuple[Collection[drift.Repair], str]] = {
    'device_assigned_twice': (
        (drift.Repair.COMPARE, drift.Repair.OFFER), _TWICE)
} | dict.fromkeys(
    ('book_assignment_ended', 'guest_device_unassigned', 'host_not_examined'),
    ((drift.Repair.USAGE,), _MAY_RUN))
"""Repairs of a host that a drift forbids which is not repaired, and why."""


def allowed(found: Collection[drift.Drift]) -> list[drift.Drift]:
    """Return drifts, without repairs that another drift forbids."""
    forbidden = {
        (one.host, repair): reason for one in found
        if one.repair is None and one.name in _FORBIDDEN
        for repairs, reason in (_FORBIDDEN[one.name],) for repair in repairs}
    return [
        dataclasses.replace(one, repair=None, reason=reason)
        if one.repair is not None
        and (reason := forbidden.get((one.host, one.repair))) is not None
        else one for one in found]


def by_hosts(found: Iterable[drift.Drift]) -> Batches:
    """Return the repairs that hosts execute."""
    wanted: dict[str, set[drift.Repair]] = {}
    for one in found:
        if one.host is not None and one.repair in drift.OF_HOST:
            wanted.setdefault(one.host, set()).add(one.repair)
    batches: Batches = {}
    for host, its in sorted(wanted.items()):
        batches.setdefault(tuple(
            repair for repair in drift.OF_HOST if repair in its),
            []).append(host)
    return batches
