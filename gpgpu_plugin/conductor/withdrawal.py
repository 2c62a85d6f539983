# SPDX-License-Identifier: Apache-2.0
"""Devices that an operator withdraws from instances, or has cleaned now.

Guests get a whole GPU, or its VFs, never both: a hold of a GPU holds its VFs,
and a GPU that has VFs is released and cleaned by releasing and cleaning these.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import api
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.domain import hold

_State = device_rules.DeviceState
_Rows = host_rows.HostRows
_Device = host_rows.Device


def quarantine(db: api.Database, uuid: str, reason: str, actor: str) -> None:
    """Withdraw a device from instances (Conductor.hold_add)."""
    check_reason(reason)

    def rule(rows: _Rows, device: _Device) -> _Rows:
        check_no_mdev(rows, device, 'quarantined')
        if hold.HoldKind.RETIRED in device.holds:
            raise refused(rows, device, device_rules.refusal(
                device_rules.RETIRED, 'quarantined'))
        if hold.HoldKind.QUARANTINED in rows.holds_of(device):
            raise refused(rows, device, _already(rows, device))
        return holds.add(
            rows, device, hold.HoldKind.QUARANTINED, reason, actor).note(
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
            kinds: Collection[hold.HoldKind]) -> _Rows:
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
    withdrawn = hold.shown_as(rows.holds_of(gpu))
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
