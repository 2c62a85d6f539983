# SPDX-License-Identifier: Apache-2.0
"""Holds of devices: how they begin and end (domain.hold).

A hold changes the state of no device that is assigned, available or dirty. It
ends a cleaning, whose verdict nobody waits for any more. When one that
withdraws a device is removed, the device is cleaned before it is offered,
however it became what it is.

All functions run in a transaction that locked the device's host.
"""

from __future__ import annotations

import dataclasses
import uuid as uuid_mod
from collections.abc import Collection
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import ledger as ledger_rules

_State = device_rules.DeviceState


def add(session: orm.Session, host: models.Host, device: models.Device,
        kind: hold.HoldKind, reason: str | None,
        actor: str | None = None) -> bool:
    """Add a hold to a device.

    :param reason: in words, for operators
    :param actor: operator who does it; None: none does
    :returns: False: it has one of this kind, which stays as it is
    """
    if kind in of(session, device):
        return False
    reason = reason and cleaning.shortened(reason)
    if kind in hold.WITHDRAWING:
        for part in device_db.with_vfs(session, device):
            _end_request(session, part)
    if kind in hold.QUARANTINE:
        ledger.add(session, host, device, ledger_rules.Verdict.QUARANTINED,
                   reason=reason, actor=actor)
    before = _row(session, device)
    hold_db.add(session, device.id, kind, reason, actor)
    device_db.set_row(
        session, device, before, dataclasses.replace(
            before, holds=before.holds | {kind},
            generation=before.generation + 1))
    host_db.changed(host)
    return True


def _end_request(session: orm.Session, device: models.Device) -> None:
    """Have a later request clean a device, and end a cleaning that runs.

    What an earlier request leads to is refused, and the later one accepts what
    a guest changed: an operator has looked at it.
    """
    if device.state == _State.CLEANING:
        device_db.transition(
            session, device, device_rules.DeviceEvent.CLEAN_INTERRUPTED)
    if device.state == _State.DIRTY:
        device.clean_token = str(uuid_mod.uuid4())
        device.clean_attempt = None


def remove(session: orm.Session, host: models.Host, device: models.Device,
           kinds: Collection[hold.HoldKind],
           actor: str) -> Sequence[models.Hold]:
    """Remove holds of a device, and have it cleaned if one withdrew it.

    Of a GPU that has VFs, guests get these, which are cleaned in its place.

    :param actor: operator who does it
    :returns: those that there were
    """
    own = of(session, device)
    removed = [found for kind, found in own.items() if kind in kinds]
    if not removed:
        return ()
    withdrew = any(found.kind in hold.WITHDRAWING for found in removed)
    if withdrew:
        _clean_parts(session, device)
        # At once, so that no notification says that it is available.
        recleaning.clean_again(session, {host.id: host})
    before = _row(session, device)
    hold_db.remove(session, device.id, kinds)
    device_db.set_row(session, device, before, dataclasses.replace(
        before, holds=hold_db.kinds(session, device),
        generation=before.generation + 1))
    if withdrew:
        ledger.add(session, host, device, ledger_rules.Verdict.RELEASED,
                   reason=hold_db.texts(removed), actor=actor)
    host_db.changed(host)
    return removed


def _clean_parts(session: orm.Session, device: models.Device) -> None:
    """Have a device cleaned, or the VFs that guests get of a GPU."""
    _, *vfs = device_db.with_vfs(session, device)
    if not vfs and not device_db.pci_function(device).has_vfs:
        clean_anew(device)
    elif device.cleaned_steps:
        # It is cleaned as soon as somebody can get it as a whole.
        device.cleaned_steps = None
    for vf in vfs:
        clean_anew(vf)


def clean_anew(device: models.Device) -> bool:
    """Have a device cleaned before anybody else gets it (recleaning).

    :returns: False: it will be anyway
    """
    # A claim that is aborted before the device was touched does not clean it.
    if device.state in (_State.AVAILABLE, _State.PROVISIONING):
        device.cleaned_steps = device_db.NOTHING_PASSED
    elif device.state == _State.DIRTY and device.clean_attempt is not None:
        device_db.try_again(device)
    else:
        return False
    return True


def of(session: orm.Session,
       device: models.Device) -> dict[str, models.Hold]:
    """Return the own holds of a device, by kind."""
    session.flush()
    return {found.kind: found for found in hold_db.of_devices(
        session, [device.id]).get(device.id, ())}


def _row(session: orm.Session, device: models.Device) -> device_db.DeviceRow:
    session.flush()
    return device_db.row_of(device, hold_db.kinds(session, device))
