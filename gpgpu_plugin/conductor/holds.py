# SPDX-License-Identifier: Apache-2.0
"""Holds of devices: how they begin and end (domain.hold).

A hold changes the state of no device that is assigned, available or dirty. It
ends a cleaning, whose verdict nobody waits for any more. When one that
withdraws a device is removed, the device is cleaned before it is offered,
however it became what it is.
"""

from __future__ import annotations

import uuid as uuid_mod
from collections.abc import Collection
from collections.abc import Sequence

from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import ledger as ledger_rules

_State = device_rules.DeviceState
_Rows = host_rows.HostRows


def add(rows: _Rows, device: host_rows.Device, kind: hold.HoldKind,
        reason: str | None, actor: str | None = None) -> _Rows:
    """Add a hold to a device, unless it has one of this kind.

    :param reason: in words, for operators
    :param actor: operator who does it; None: none does
    """
    if kind in rows.holds_of(device):
        return rows
    reason = reason and cleaning.shortened(reason)
    if kind in hold.WITHDRAWING:
        for part in rows.with_vfs(device):
            rows = end_request(rows, rows.now(part))
    if kind in hold.QUARANTINE:
        rows = rows.record(rows.now(device), ledger_rules.Verdict.QUARANTINED,
                           reason, actor)
    return rows.hold(device, kind, reason, actor)


def end_request(rows: _Rows, device: host_rows.Device) -> _Rows:
    """Have a later request clean a device, and end a cleaning that runs.

    What an earlier request leads to is refused, and the later one accepts what
    a guest changed: an operator looks at the device before it is cleaned.
    """
    if device.state == _State.CLEANING:
        rows = rows.apply(device, device_rules.DeviceEvent.CLEAN_INTERRUPTED)
    return rows if device.state not in device_rules.UNCLEAN_STATES else (
        rows.change(device, clean_token=str(uuid_mod.uuid4()),
                    clean_attempt=None))


def remove(rows: _Rows, device: host_rows.Device,
           kinds: Collection[hold.HoldKind], actor: str,
           ) -> tuple[_Rows, Sequence[hold_db.Hold]]:
    """Remove holds of a device, and have it cleaned if one withdrew it.

    Of a GPU that has VFs, guests get these, which are cleaned in its place.

    :param actor: operator who does it
    :returns: the rows, and the holds that there were
    """
    removed = [found for kind, found in rows.holds_of(device).items()
               if kind in kinds]
    if not removed:
        return rows, ()
    withdrew = any(found.kind in hold.WITHDRAWING for found in removed)
    if withdrew:
        rows = _clean_parts(rows, device)
    rows = rows.unhold(device, kinds)
    if withdrew:
        rows = rows.record(rows.now(device), ledger_rules.Verdict.RELEASED,
                           hold_db.texts(removed), actor)
    return rows, removed


def _clean_parts(rows: _Rows, device: host_rows.Device) -> _Rows:
    """Have a device cleaned, or the VFs that guests get of a GPU."""
    now, *vfs = map(rows.now, rows.with_vfs(device))
    if not vfs and not device_db.pci_function(now).has_vfs:
        rows = clean_anew(rows, now)
    elif now.cleaned_steps:
        # It is cleaned as soon as somebody can get it as a whole.
        rows = rows.change(now, cleaned_steps=None)
    for vf in vfs:
        rows = clean_anew(rows, vf)
    return rows


def may_clean_anew(device: host_rows.Device) -> bool:
    """Return whether a device is cleaned only if ``clean_anew`` asks."""
    return (device.state in (_State.AVAILABLE, _State.PROVISIONING)
            or device_db.waits_for_policy(device))


def clean_anew(rows: _Rows, device: host_rows.Device) -> _Rows:
    """Have a device cleaned before anybody else gets it (recleaning)."""
    now = rows.now(device)
    if not may_clean_anew(now):
        return rows
    # A claim that is aborted before the device was touched does not clean it.
    return recleaning.try_again(rows, now) if now.state == _State.DIRTY else (
        rows.change(now, cleaned_steps=device_db.NOTHING_PASSED))
