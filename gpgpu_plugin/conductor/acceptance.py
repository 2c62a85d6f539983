# SPDX-License-Identifier: Apache-2.0
"""New devices that an operator takes as clean without a cleaning.

Nobody of this cloud has used them on their host. Of a device that is not new,
only a cleaning proves anything.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import ledger as ledger_rules

_State = device_rules.DeviceState


def accept(db: api.Database, uuids: Sequence[str], reason: str,
           actor: str) -> None:
    """Take new devices of one host as clean (Conductor.device_accept)."""
    withdrawal.check_reason(reason)
    if not uuids:
        raise exception.Invalid(
            field='devices', value=uuids, expected='at least one')

    host_id = device_db.host_id(db, uuids[0])
    with db.reader() as session:
        # None of the others is assigned before it is accepted.
        used = assignment_db.last_of(
            session, host_rows.load_one(
                session, *host_db.by_ids(session, [host_id])).by_id)

    def rule(rows: host_rows.HostRows,
             _: host_rows.Device) -> host_rows.HostRows:
        found = list(dict.fromkeys(
            part for uuid in uuids
            for part in _acceptable(rows, rows.device(uuid), used)))
        for part in found:
            rows = _accept(rows, part, reason, actor)
        return rows.note('accept', found, reason)
    withdrawal.change(db, uuids[0], rule)


def _acceptable(rows: host_rows.HostRows,
                device: host_rows.Device,
                used: Collection[int]) -> list[host_rows.Device]:
    """Return the parts of a device that are to be accepted.

    :param used: ids of devices that were assigned once
    :raises Conflict: there is none, and why
    """
    withdrawal.check_no_mdev(rows, device, 'accepted')
    parts = withdrawal.parts_of(rows, device)
    withdrawn = hold.shown_as({
        kind for part in parts for kind in part.holds})
    if withdrawn is not None:
        raise withdrawal.refused(rows, device, device_rules.refusal(
            withdrawn, 'accepted'))
    dirty = [part for part in parts if part.state == _State.DIRTY]
    found = [part for part in dirty
             if part.cleaned_steps is None and part.id not in used
             and not recleaning.lost_unclean_vf(rows, part)]
    if found:
        return found
    raise withdrawal.refused(rows, device, (
        'it cannot be accepted: it is dirty, and not new, so that only a '
        'cleaning makes it clean; wait, or have it cleaned with "gpgpu-manage '
        'device release"') if dirty else device_rules.refusal(
            parts[0].state, 'accepted'))


def _accept(rows: host_rows.HostRows, device: host_rows.Device,
            reason: str, actor: str) -> host_rows.HostRows:
    return rows.record(
        device, ledger_rules.Verdict.ACCEPTED, cleaning.shortened(reason),
        actor).apply(
            device, device_rules.DeviceEvent.ACCEPT,
            cleaned_steps=cleaning.SEPARATOR.join(
                capacity.required_steps(
                    device, rows.cleaning_policy(device))),
            clean_token=None, clean_attempt=None, reason=None)
