# SPDX-License-Identifier: Apache-2.0
"""Devices that an operator withdraws from instances, or has cleaned now.

Guests get a whole GPU, or its VFs, never both: a hold of a GPU holds its VFs,
and a GPU that has VFs is released and cleaned by releasing and cleaning these.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import event as event_rules
from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.domain import hold

_State = device_rules.DeviceState
_CLEANABLE = frozenset({hold.HoldKind.QUARANTINED, hold.HoldKind.FAILED})
"""Kinds that end with a cleaning."""


def quarantine(db: api.Database, uuid: str, reason: str, actor: str) -> None:
    """Withdraw a device from instances (Conductor.hold_add)."""
    check_reason(reason)
    host_id = device_db.host_id(db, uuid)

    def work(session: orm.Session) -> None:
        host, device = device_db.lock(session, host_id, uuid)
        check_no_mdev(host, device, 'quarantined')
        kinds = hold_db.kinds(session, device)
        if hold.HoldKind.RETIRED in kinds:
            raise refused(host, device, device_rules.refusal(
                device_rules.RETIRED, 'quarantined'))
        if not holds.add(session, host, device, hold.HoldKind.QUARANTINED,
                         reason, actor):
            raise refused(host, device, _already(session, device))
        record(session, host, 'quarantine', [device], reason + (
            ' (when its assignment ends)'
            if device.state in device_rules.ASSIGNED_STATES else ''))
    db.write(work)


def _already(session: orm.Session, device: models.Device) -> str:
    """Return why a device cannot be quarantined once more."""
    reason = hold_db.texts(holds.of(session, device).values())
    if device.state in device_rules.ASSIGNED_STATES:
        return (f'it cannot be quarantined, since it is {device.state} and is '
                f'already to be quarantined when its assignment ends: '
                f'{reason}; "gpgpu-manage device release" cancels this')
    return (device_rules.refusal(device_rules.QUARANTINED, 'quarantined')
            + f' (reason: {reason})')


def refused(host: models.Host, device: models.Device,
            reason: str) -> exception.Conflict:
    """Return the refusal of what an operator asked for.

    :param reason: what was asked for, why not, and what to do instead
    """
    return exception.Conflict(
        kind='device', name=f'{host.name} {device.address} ({device.uuid})',
        reason=reason)


def check_reason(reason: str) -> None:
    """Refuse a reason that says nothing, or would break a line of the log.

    :raises Invalid: it does
    """
    if not reason.strip() or not reason.isprintable():
        raise exception.Invalid(
            field='reason', value=reason, expected='a text in one line')


def clean(db: api.Database, uuid: str, actor: str) -> None:
    """Have a device cleaned now (Conductor.device_clean)."""
    host_id = device_db.host_id(db, uuid)

    def work(session: orm.Session) -> None:
        host, device = device_db.lock(session, host_id, uuid)
        check_no_mdev(host, device, 'cleaned')
        vgpus = children(session, device)
        parts = parts_of(device, vgpus)
        check_unassigned(session, host, [device, *vgpus], 'cleaned')
        _check_cleanable(session, host, device, parts, vgpus)
        changed = [part for part in (device, *vfs(vgpus)) if holds.remove(
            session, host, part, _CLEANABLE, actor)]
        changed += filter(holds.clean_anew, parts)
        record(session, host, 'clean', list(dict.fromkeys(changed)))
    db.write(work)


def waits_for_vfs(host_name: str, gpu: models.Device) -> str:
    """Return why a GPU with VFs is dirty, and what to do about that."""
    return (f'the whole GPU was used, or may have been, and a GPU that has '
            f'VFs cannot be cleaned as a whole: remove the VFs of '
            f'{gpu.address} on host {host_name}')


def release(session: orm.Session, host: models.Host, device: models.Device,
            actor: str, kinds: Collection[hold.HoldKind]) -> None:
    """Remove what withdraws a device, and have it cleaned.

    On an assigned device the hold that waits is removed. A GPU stands for its
    VFs and mdevs. See Conductor.hold_remove.

    :param actor: who accepts it, for the ledger
    :param kinds: of the holds to remove
    :raises Conflict: nothing withdraws it, or a guest has a vGPU on it
    """
    vgpus = children(session, device)
    held = [part for part in (device, *vgpus)
            if not holds.of(session, part).keys().isdisjoint(kinds)]
    if not held:
        raise refused(host, device, _not_withdrawn(
            session, device, parts_of(device, vgpus)))
    if device in held:
        check_unassigned(session, host, [
            vgpu for vgpu in vgpus if vgpu not in vfs(vgpus)], 'released')
    for part in held:
        removed = holds.remove(session, host, part, kinds, actor)
        if hold.HoldKind.IDENTITY_CHANGED in kinds:
            part.before_swap = None
        record(session, host, 'operator_release', [part], (
            f'by {actor}: it was '
            f'{", ".join(found.kind for found in removed)}'))


def _not_withdrawn(session: orm.Session, device: models.Device,
                   parts: Sequence[models.Device]) -> str:
    """Return why a device has none of the holds that are to be removed."""
    own, gpu = holds.of(session, device), gpu_of(session, device)
    withdrawn = hold.shown_as(holds.of(session, gpu))
    if withdrawn is not None and gpu is not device:
        return (f'it cannot be released: its GPU {gpu.address} is '
                f'{withdrawn}; name the GPU, {gpu.uuid}')
    if own:
        return f'it cannot be released: it is only held as {", ".join(own)}'
    return device_rules.refusal(device.state, 'released') if (
        parts[0].group_id) else (
            f'it cannot be released: it is unmanaged ({device.reason}); '
            f'nothing cleans it, and nothing needs to')


def children(session: orm.Session,
             device: device_db.AnyDevice) -> list[models.Device]:
    """Return the VFs and mdev rows of a device."""
    return [child for child in device_db.of_hosts(session, [device.host_id])
            if child.parent_id == device.id]


def gpu_of(session: orm.Session, device: models.Device) -> models.Device:
    """Return the GPU of a VF or an mdev row; any other device itself."""
    return (device if device.parent_id is None
            else session.get_one(models.Device, device.parent_id))


def parts_of(device: models.Device,
             vgpus: Sequence[models.Device]) -> list[models.Device]:
    """Return the devices that guests get of a GPU: its VFs, or itself.

    :param vgpus: its VFs and mdev rows
    """
    return [vf for vf in vfs(vgpus) if vf.present] or [device]


def check_no_mdev(host: models.Host, device: models.Device,
                  asked: str) -> None:
    """Refuse the row of an mdev.

    :param asked: see domain.device.refusal
    :raises Conflict: it is one
    """
    if device.kind == device_rules.DeviceKind.MDEV:
        raise refused(host, device, (
            f'it cannot be {asked}: it is the row of an mdev '
            f'({device.state}), which is made and removed with its vGPU; name '
            f'the GPU {device.address}'))


def vfs(vgpus: Sequence[models.Device]) -> list[models.Device]:
    """Return the VFs among the VFs and mdev rows of a GPU."""
    return [vgpu for vgpu in vgpus
            if vgpu.kind == device_rules.DeviceKind.PCI]


def check_unassigned(session: orm.Session, host: models.Host,
                     devices: Collection[models.Device],
                     asked: str) -> None:
    """Refuse devices of a (locked) host of which an instance has one.

    :param asked: see domain.device.refusal
    :raises Conflict: names it and the instance
    """
    by_id = {device.id: device for device in devices}
    for row in assignment_db.of_hosts(session, [host.id]):
        if row.device_id in by_id:
            device = by_id[row.device_id]
            raise refused(host, device, (
                f'it cannot be {asked}, since it is {device.state}: instance '
                f'{row.instance_uuid} has it; migrate or delete its server '
                f'first'))


def _check_cleanable(session: orm.Session, host: models.Host,
                     device: models.Device, parts: Sequence[models.Device],
                     vgpus: Sequence[models.Device]) -> None:
    """Refuse what cannot or must not be cleaned.

    :raises Conflict: says why
    """
    reason, gpu = None, gpu_of(session, device)
    kinds = hold_db.kinds(session, device)
    own = holds.of(session, device)
    if hold.HoldKind.RETIRED in kinds:
        reason = ('it is retired; "gpgpu-manage device release" brings it '
                  'back')
    elif hold.HoldKind.IDENTITY_CHANGED in own:
        reason = (f'{own[hold.HoldKind.IDENTITY_CHANGED].reason}; '
                  + ('"gpgpu-manage device replace" accepts the new device, '
                     if gpu is device else '')
                  + '"gpgpu-manage device release" says that it is the same')
    elif hold.is_withdrawn(kinds - own.keys()):
        reason = (f'its GPU {gpu.address} is '
                  f'{hold.shown_as(kinds - own.keys())}; name the GPU')
    elif (parts[0].group_id is None and parts[0].state == _State.AVAILABLE
          and _CLEANABLE.isdisjoint(own)):
        reason = f'it is unmanaged, and the host may use it: {device.reason}'
    elif device_db.waits_for_vfs(gpu):
        reason = waits_for_vfs(host.name, gpu)
    elif parts == [device]:
        used = [vgpu for vgpu in vgpus
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
        raise refused(host, device, f'it cannot be cleaned: {reason}')


def record(session: orm.Session, host: models.Host, kind: event_rules.Kind,
           devices: Sequence[models.Device],
           detail: str | None = None) -> None:
    """Record what was done to devices of a host: one line of the log."""
    if not devices:
        return
    session.flush()
    event_db.add_all(
        session, kind, host.name,
        [(device_db.row_of(device), None) for device in devices], detail)
    host_db.changed(host)
    recleaning.clean_again(session, {host.id: host})
    inventory.refresh(session, host)
