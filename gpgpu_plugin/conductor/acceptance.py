# SPDX-License-Identifier: Apache-2.0
"""New devices that an operator takes as clean without a cleaning.

Nobody of this cloud has used them on their host. Of a device that is not new,
only a cleaning proves anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import ledger as ledger_rules

_Event = device_rules.DeviceEvent
_State = device_rules.DeviceState


def accept(db: api.Database, uuids: Sequence[str], reason: str,
           actor: str) -> None:
    """Take new devices of one host as clean (Conductor.device_accept)."""
    withdrawal.check_reason(reason)
    if not uuids:
        raise exception.Invalid(
            field='devices', value=uuids, expected='at least one')
    host_id = device_db.host_id(db, uuids[0])

    def work(session: orm.Session) -> None:
        [host] = host_db.lock_ids(session, [host_id])
        found = list(dict.fromkeys(
            part for uuid in uuids for part in _acceptable(
                session, host, device_db.get(session, uuid))))
        for part in found:
            _accept(session, host, part, reason, actor)
        withdrawal.record(session, host, 'accept', found, reason)
    db.write(work)


def _acceptable(session: orm.Session, host: models.Host,
                device: models.Device) -> list[models.Device]:
    """Return the parts of a device that are to be accepted.

    :raises Conflict: there is none, and why
    :raises NotFound: the device is of another host
    """
    if device.host_id != host.id:
        raise exception.NotFound(
            kind='device', name=f'{device.uuid} on host {host.name}')
    withdrawal.check_no_mdev(host, device, 'accepted')
    parts = withdrawal.parts_of(device, withdrawal.children(session, device))
    withdrawn = hold.shown_as({
        kind for part in parts for kind in hold_db.kinds(session, part)})
    if withdrawn is not None:
        raise withdrawal.refused(host, device, device_rules.refusal(
            withdrawn, 'accepted'))
    found = [part for part in parts
             if part.state == _State.DIRTY and part.cleaned_steps is None
             and assignment_db.last_of_device(session, part.id) is None]
    if found:
        return found
    dirty = [part for part in parts if part.state == _State.DIRTY]
    raise withdrawal.refused(host, device, (
        'it cannot be accepted: it is dirty, and not new, so that only a '
        'cleaning makes it clean; wait, or have it cleaned with "gpgpu-manage '
        'device clean"') if dirty else device_rules.refusal(
            parts[0].state, 'accepted'))


def _accept(session: orm.Session, host: models.Host, device: models.Device,
            reason: str, actor: str) -> None:
    _, policy, _ = group_db.policy(session, device.group_id)
    ledger.add(session, host, device, ledger_rules.Verdict.ACCEPTED,
               reason=cleaning.shortened(reason), actor=actor)
    device_db.transition(session, device, _Event.ACCEPT)
    device.cleaned_steps = cleaning.SEPARATOR.join(
        capacity.required_steps(device, policy))
    device.clean_token = device.clean_attempt = device.reason = None
