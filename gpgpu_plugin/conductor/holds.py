# SPDX-License-Identifier: Apache-2.0
"""Holds of devices, and devices that must be cleaned first.

A hold changes the state of no device that is assigned, available or dirty. It
ends a cleaning, whose verdict nobody waits for any more. When one that
withdraws a device is removed, the device is cleaned before it is offered,
however it became what it is.
"""

from __future__ import annotations

import uuid
import uuid as uuid_mod
from collections.abc import Collection
from collections.abc import Sequence

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import ledger as ledger_rules

_State = device_rules.DeviceState
_Rows = host_rows.HostRows


def add(rows: _Rows, device: host_rows.Device, kind: device_rules.HoldKind,
        reason: str | None, actor: str | None = None) -> _Rows:
    """Add a hold to a device, unless it has one of this kind.

    :param reason: in words, for operators
    :param actor: operator who does it; None: none does
    """
    if kind in rows.holds_of(device):
        return rows
    reason = reason and cleaning.shortened(reason)
    if kind in device_rules.WITHDRAWING:
        for part in rows.with_vfs(device):
            rows = end_request(rows, rows.now(part))
    if kind in device_rules.QUARANTINE:
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
           kinds: Collection[device_rules.HoldKind], actor: str,
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
    withdrew = any(found.kind in device_rules.WITHDRAWING for found in removed)
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
    """Have a device cleaned before anybody else gets it."""
    now = rows.now(device)
    if not may_clean_anew(now):
        return rows
    # A claim that is aborted before the device was touched does not clean it.
    return try_again(rows, now) if now.state == _State.DIRTY else (
        rows.change(now, cleaned_steps=device_db.NOTHING_PASSED))


# -- Available devices that must be cleaned before a guest gets them.
#
# A device is offered only if this host has cleaned it since the device came to
# its place, since somebody used it, since a restore of the database, and since
# another host showed the number of its card. What is known of that is
# ``cleaned_steps``: the steps of its last cleaning, '' (``NOTHING_PASSED``) if
# something happened since, and NULL for a new device.
#
# Whether an available device must be cleaned is decided by
# ``capacity.must_be_cleaned``, at the end of each transaction (settle).
# Nothing that nobody can get is dirty: nobody would clean it, so it would wait
# for ever, and the host may use it.


_Event = device_rules.DeviceEvent

_NEW = 'this host has not cleaned it yet'


def first_cleaning_reason(device: device_db.DeviceRow) -> str | None:
    """Return why a device is dirty that nobody used since it was first seen.

    :returns: None: it is not dirty, or for another reason
    """
    return (_NEW if device.state == _State.DIRTY
            and device.cleaned_steps is None else None)


def distrust(rows: host_rows.HostRows, device: host_rows.Device,
             detail: str) -> host_rows.HostRows:
    """Withdraw the verdict of a device; of a GPU, also those of its VFs.

    The device becomes dirty as soon as somebody can get it
    (``clean_again``), and after its assignment if it has one. A cleaning that
    runs began before, and gets no verdict.

    :param detail: why, for the event
    """
    for part in rows.with_vfs(device):
        if part.state == _State.CLEANING:
            rows = rows.apply(part, _Event.CLEAN_INTERRUPTED,
                              clean_attempt=None)
        rows = rows.change(part, cleaned_steps=device_db.NOTHING_PASSED)
    return rows.note('distrust', [rows.now(device)], detail)


def clean_again(rows: host_rows.HostRows) -> host_rows.HostRows:
    """Make the devices dirty that must be cleaned now.

    A new device that is dirty and that nobody can get any more is available
    again: a GPU that got VFs, for example, which guests get in its place.
    """
    groups = {group.id: group for group in rows.bare_groups}
    for device in rows.devices:
        if not _may_change(rows, device):
            continue
        if device.cleaned_steps and lost_unclean_vf(rows, device):
            rows = rows.change(device, cleaned_steps=None)
            device = rows.now(device)
        group = groups.get(device.group_id or 0)
        must = group is not None and capacity.must_be_cleaned(
            device, group.variant, offers_whole=group.offers_whole)
        if must and device.state == _State.AVAILABLE:
            rows = _make_dirty(rows, device)
        elif not must and device.state == _State.DIRTY:
            rows = rows.apply(device, _Event.ACCEPT, clean_token=None,
                              clean_attempt=None, reason=None)
    return rows


def _may_change(rows: host_rows.HostRows, device: host_rows.Device) -> bool:
    """Return whether a function is available, or new on its host.

    One whose mdevs are not all available is left alone, unless the whole GPU
    may have been used.
    """
    return (
        device.kind == device_rules.DeviceKind.PCI
        and (device.state == _State.AVAILABLE or (
            device.state == _State.DIRTY and device.cleaned_steps is None))
        and (device.cleaned_steps == device_db.NOTHING_PASSED or not any(
            child.kind == device_rules.DeviceKind.MDEV
            and child.state != _State.AVAILABLE
            for child in rows.children(device))))


def lost_unclean_vf(rows: host_rows.HostRows,
                    gpu: host_rows.Device) -> bool:
    """Return whether a VF that is away left something in the memory of a GPU.

    The cleaning of the GPU cleans that, too (``accept_lost_vfs``). If VFs
    return before, they are cleaned in its place, as those of a new GPU.
    """
    return any(map(_is_unclean_and_away, rows.children(gpu)))


def _is_unclean_and_away(vf: host_rows.Device) -> bool:
    return (vf.kind == device_rules.DeviceKind.PCI and not vf.present
            and vf.state == _State.DIRTY
            and not device_rules.is_withdrawn(vf.holds))


def accept_lost_vfs(rows: host_rows.HostRows,
                    gpu: host_rows.Device) -> host_rows.HostRows:
    """Return the rows after the cleaning of a GPU.

    Its VFs that are away are new when they return.
    """
    for vf in filter(_is_unclean_and_away, rows.children(gpu)):
        rows = rows.apply(vf, _Event.ACCEPT, cleaned_steps=None,
                          clean_token=None, clean_attempt=None, reason=None)
    return rows


def _make_dirty(rows: host_rows.HostRows,
                device: host_rows.Device) -> host_rows.HostRows:
    passed = device.cleaned_steps
    rows = rows.apply(device, _Event.DISTRUST,
                      clean_token=str(uuid.uuid4()), reason=None)
    # Otherwise the event is that of the doubt.
    return rows if passed == device_db.NOTHING_PASSED else rows.note(
        'distrust', [device], _NEW if passed is None else (
            f'its last cleaning passed {passed}, and the cleaning policy of '
            f'its variant requires more'))


def try_again(rows: host_rows.HostRows,
              device: host_rows.Device) -> host_rows.HostRows:
    """Have a dirty device cleaned that waits for another cleaning policy.

    The request stays the same: a new one would accept what a guest changed.
    """
    return rows.change(device, clean_attempt=None, reason=None)


def try_variant_again(rows: host_rows.HostRows,
                      group: host_rows.GroupRows) -> host_rows.HostRows:
    """Have devices cleaned that wait for another policy of their variant."""
    for device in rows.devices:
        if device.group_id == group.id and device_db.waits_for_policy(device):
            rows = try_again(rows, device)
    return rows
