# SPDX-License-Identifier: Apache-2.0
"""Holds, as operators see, add and remove them."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import hold
from gpgpu_plugin.objects import admin as objects


def list_all(db: api.Database, host: str | None = None,
             kind: str | None = None, limit: int = objects.PAGE_SIZE,
             marker: str | None = None) -> tuple[objects.HoldInfo, ...]:
    """Return a page of holds, the oldest first (Conductor.hold_list)."""
    if kind is not None:
        _check_kind(kind, hold.KINDS)
    after = pages.number(marker, 'a hold') if marker is not None else 0
    with db.reader() as session:
        if host is not None:
            host_db.get(session, host)
        return tuple(
            objects.HoldInfo(
                id=found.id, host=name, address=address, device=device,
                kind=found.kind, since=hold_db.at(found), actor=found.actor,
                reason=found.reason)
            for name, address, device, found in hold_db.listed(
                session, host, kind, pages.size(limit), after))


def add(db: api.Database, uuid: str, kind: str, reason: str | None,
        actor: str) -> None:
    """Hold a device (Conductor.hold_add)."""
    match _kind(kind, hold.BY_OPERATORS):
        case hold.HoldKind.QUARANTINED:
            withdrawal.quarantine(db, uuid, reason or '', actor)
        case hold.HoldKind.RETIRED:
            retirement.retire(db, uuid, reason, actor)
        case _:
            if reason is not None:
                withdrawal.check_reason(reason)
            device_admin.set_(db, uuid, actor, enabled=False, reason=reason)


def remove(db: api.Database, uuid: str, kinds: Sequence[str],
           actor: str) -> None:
    """Remove holds of a device (Conductor.hold_remove)."""
    known = {_kind(kind, tuple(hold.HoldKind)) for kind in kinds}
    withdrawing = known & hold.WITHDRAWING

    def rule(rows: host_rows.HostRows,
             device: host_rows.Device) -> host_rows.HostRows:
        if withdrawing:
            rows = _released(rows, device, actor, withdrawing)
        return device_admin.with_enabled(
            rows, rows.now(device), actor, enabled=True, reason=None,
        ) if hold.HoldKind.DISABLED in known else rows
    withdrawal.change(db, uuid, rule)


def release(db: api.Database, uuid: str, actor: str) -> None:
    """Have a device cleaned, without holds (Conductor.device_release)."""
    def rule(rows: host_rows.HostRows,
             device: host_rows.Device) -> host_rows.HostRows:
        if any(hold.is_withdrawn(part.holds)
               for part in (device, *rows.children(device))):
            return _released(rows, device, actor, hold.WITHDRAWING)
        return withdrawal.cleaned(rows, device)
    withdrawal.change(db, uuid, rule)


def _released(rows: host_rows.HostRows, device: host_rows.Device, actor: str,
              kinds: Collection[hold.HoldKind]) -> host_rows.HostRows:
    return (retirement.reinstate if hold.HoldKind.RETIRED in kinds
            and hold.HoldKind.RETIRED in device.holds
            else withdrawal.release)(rows, device, actor, kinds)


def _kind(kind: str, allowed: Sequence[hold.HoldKind]) -> hold.HoldKind:
    """Return a kind by its name.

    :raises Invalid: it is none of those that are allowed
    """
    _check_kind(kind, allowed)
    return hold.HoldKind(kind)


def _check_kind(kind: str, allowed: Sequence[str]) -> None:
    if kind not in allowed:
        raise exception.Invalid(
            field='kind', value=kind,
            expected='one of ' + ', '.join(allowed))
