# SPDX-License-Identifier: Apache-2.0
"""Devices that operators withdraw, clean or accept as clean.

Guests get a whole GPU, or its VFs, never both: a hold of a GPU holds its VFs,
and a GPU that has VFs is released and cleaned by releasing and cleaning these.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.domain import ledger as ledger_rules

_State = device_rules.DeviceState
_Rows = host_rows.HostRows
_Device = host_rows.Device


def quarantine(db: api.Database, uuid: str, reason: str, actor: str) -> None:
    """Withdraw a device from instances (Conductor.hold_add)."""
    check_reason(reason)

    def rule(rows: _Rows, device: _Device) -> _Rows:
        check_no_mdev(rows, device, 'quarantined')
        if device_rules.HoldKind.RETIRED in device.holds:
            raise refused(rows, device, device_rules.refusal(
                device_rules.RETIRED, 'quarantined'))
        if device_rules.HoldKind.QUARANTINED in rows.holds_of(device):
            raise refused(rows, device, _already(rows, device))
        return holds.add(
            rows, device, device_rules.HoldKind.QUARANTINED, reason,
            actor).note(
                'quarantine', [device], reason + (
                    ' (when its assignment ends)'
                    if device.state in device_rules.ASSIGNED_STATES else ''))
    change(db, uuid, rule)


def change(db: api.Database, uuid: str,
           rule: Callable[[_Rows, _Device], _Rows]) -> None:
    """Apply a rule to a device and the rows of its host, in a transaction.

    Devices are then matched with variants, as after each report.

    :raises NotFound: no device has the UUID
    """
    host_id = device_db.host_id(db, uuid)

    def work(session: orm.Session) -> None:
        [host] = host_db.lock_ids(session, [host_id])
        before = host_rows.load_one(session, host)
        settle.settle(session, before, variant_matching.apply(
            session, rule(before, before.device(uuid))))
    db.write(work)


def _already(rows: _Rows, device: _Device) -> str:
    """Return why a device cannot be quarantined once more."""
    reason = hold_db.texts(rows.holds_of(device).values())
    if device.state in device_rules.ASSIGNED_STATES:
        return (f'it cannot be quarantined, since it is {device.state} and is '
                f'already to be quarantined when its assignment ends: '
                f'{reason}; "gpgpu-manage device release" cancels this')
    return (device_rules.refusal(device_rules.QUARANTINED, 'quarantined')
            + f' (reason: {reason})')


def refused(rows: _Rows, device: _Device,
            reason: str) -> exception.Conflict:
    """Return the refusal of what an operator asked for.

    :param reason: what was asked for, why not, and what to do instead
    """
    return exception.Conflict(
        kind='device', reason=reason,
        name=f'{rows.host.name} {device.address} ({device.uuid})')


def check_reason(reason: str) -> None:
    """Refuse a reason that says nothing, or would break a line of the log.

    :raises Invalid: it does
    """
    if not reason.strip() or not reason.isprintable():
        raise exception.Invalid(
            field='reason', value=reason, expected='a text in one line')


def cleaned(before: _Rows, device: _Device) -> _Rows:
    """Return the rows with a device that is cleaned anew.

    See Conductor.device_release.

    :param device: nothing withdraws it
    :raises Conflict: an instance has it, or it cannot or must not be cleaned
    """
    check_no_mdev(before, device, 'cleaned')
    parts = parts_of(before, device)
    check_unassigned(before, [device, *before.children(device)], 'cleaned')
    _check_cleanable(before, device, parts)
    rows, changed = before, []
    for part in parts:
        if holds.may_clean_anew(part):
            rows = holds.clean_anew(rows, part)
            changed.append(part)
    return rows.note('clean', changed)


def remove_vfs_advice(host_name: str, gpu: device_db.DeviceRow) -> str:
    """Return why a GPU with VFs is dirty, and what to do about that."""
    return (f'the whole GPU was used, or may have been, and a GPU that has '
            f'VFs cannot be cleaned as a whole: remove the VFs of '
            f'{gpu.address} on host {host_name}')


def release(rows: _Rows, device: _Device, actor: str,
            kinds: Collection[device_rules.HoldKind]) -> _Rows:
    """Remove what withdraws a device, and have it cleaned.

    On an assigned device the hold that waits is removed. A GPU stands for its
    VFs and mdevs. See Conductor.hold_remove.

    :param actor: who accepts it, for the ledger
    :param kinds: of the holds to remove
    :raises Conflict: nothing withdraws it, or a guest has a vGPU on it
    """
    vgpus = rows.children(device)
    held = [part for part in (device, *vgpus)
            if not rows.holds_of(part).keys().isdisjoint(kinds)]
    if not held:
        raise refused(rows, device, _not_withdrawn(
            rows, device, parts_of(rows, device)))
    if device in held:
        check_unassigned(rows, [
            vgpu for vgpu in vgpus if vgpu not in vfs(vgpus)], 'released')
    for part in held:
        rows, removed = holds.remove(rows, part, kinds, actor)
        rows = rows.note('operator_release', [part], (
            f'by {actor}: it was '
            f'{", ".join(found.kind for found in removed)}'))
    return rows


def _not_withdrawn(rows: _Rows, device: _Device,
                   parts: Sequence[_Device]) -> str:
    """Return why a device has none of the holds that are to be removed."""
    own, gpu = rows.holds_of(device), rows.gpu_of(device)
    withdrawn = device_rules.shown_as(rows.holds_of(gpu))
    if withdrawn is not None and gpu is not device:
        return (f'it cannot be released: its GPU {gpu.address} is '
                f'{withdrawn}; name the GPU, {gpu.uuid}')
    if own:
        return f'it cannot be released: it is only held as {", ".join(own)}'
    return device_rules.refusal(device.state, 'released') if (
        parts[0].group_id) else (
            f'it cannot be released: it is unmanaged ({device.reason}); '
            f'nothing cleans it, and nothing needs to')


def parts_of(rows: _Rows, device: _Device) -> list[_Device]:
    """Return the devices that guests get of a GPU: its VFs, or itself."""
    return [vf for vf in vfs(rows.children(device)) if vf.present] or [device]


def check_no_mdev(rows: _Rows, device: _Device, asked: str) -> None:
    """Refuse the row of an mdev.

    :param asked: see domain.device.refusal
    :raises Conflict: it is one
    """
    if device.kind == device_rules.DeviceKind.MDEV:
        raise refused(rows, device, (
            f'it cannot be {asked}: it is the row of an mdev '
            f'({device.state}), which is made and removed with its vGPU; name '
            f'the GPU {device.address}'))


def vfs(vgpus: Sequence[_Device]) -> list[_Device]:
    """Return the VFs among the VFs and mdev rows of a GPU."""
    return [vgpu for vgpu in vgpus
            if vgpu.kind == device_rules.DeviceKind.PCI]


def check_unassigned(rows: _Rows, devices: Collection[_Device],
                     asked: str) -> None:
    """Refuse devices of which an instance has one.

    :param asked: see domain.device.refusal
    :raises Conflict: names it and the instance
    """
    ids = {device.id for device in devices}
    for row in rows.assignments:
        if row.device.id in ids:
            raise refused(rows, row.device, (
                f'it cannot be {asked}, since it is {row.device.state}: '
                f'instance {row.instance_uuid} has it; migrate or delete its '
                f'server first'))


def _check_cleanable(rows: _Rows, device: _Device,
                     parts: Sequence[_Device]) -> None:
    """Refuse what cannot or must not be cleaned.

    :raises Conflict: says why
    """
    reason, gpu = None, rows.gpu_of(device)
    if parts[0].group_id is None and parts[0].state == _State.AVAILABLE:
        reason = f'it is unmanaged, and the host may use it: {device.reason}'
    elif device_db.waits_for_vfs(gpu):
        reason = remove_vfs_advice(rows.host.name, gpu)
    elif parts == [device]:
        used = [vgpu for vgpu in rows.children(device)
                if vgpu.present and vgpu.state != _State.AVAILABLE]
        if used:
            reason = (f'a vGPU on it is {used[0].state}; wait until it is '
                      f'available, or see "gpgpu-manage hold list"')
        elif device_db.pci_function(device).has_vgpus:
            reason = ('it has vGPUs that no instance of this cloud uses; '
                      'remove them on the host first')
        else:
            reason = gpu_rules.passthrough_refusal(
                device_db.pci_function(device))
    if reason is not None:
        raise refused(rows, device, f'it cannot be cleaned: {reason}')


# -- New devices that an operator takes as clean without a cleaning.
#
# Nobody of this cloud has used them on their host. Of a device that is not
# new, only a cleaning proves anything.


def accept_clean(db: api.Database, uuids: Sequence[str], reason: str,
                 actor: str) -> None:
    """Take new devices of one host as clean (Conductor.device_accept)."""
    check_reason(reason)
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
    change(db, uuids[0], rule)


def _acceptable(rows: host_rows.HostRows,
                device: host_rows.Device,
                used: Collection[int]) -> list[host_rows.Device]:
    """Return the parts of a device that are to be accepted.

    :param used: ids of devices that were assigned once
    :raises Conflict: there is none, and why
    """
    check_no_mdev(rows, device, 'accepted')
    parts = parts_of(rows, device)
    withdrawn = device_rules.shown_as({
        kind for part in parts for kind in part.holds})
    if withdrawn is not None:
        raise refused(rows, device, device_rules.refusal(
            withdrawn, 'accepted'))
    dirty = [part for part in parts if part.state == _State.DIRTY]
    found = [part for part in dirty
             if part.cleaned_steps is None and part.id not in used
             and not holds.lost_unclean_vf(rows, part)]
    if found:
        return found
    raise refused(rows, device, (
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
