# SPDX-License-Identifier: Apache-2.0
"""Devices that an operator withdraws from instances, or has cleaned now.

Guests get a whole GPU, or its VFs, never both: what is done to a GPU that has
VFs is done to these.
"""

from __future__ import annotations

import uuid as uuid_mod
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import event as event_rules
from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.domain import ledger as ledger_rules

_Event = device_rules.DeviceEvent
_State = device_rules.DeviceState

_AT_ONCE = frozenset({_State.AVAILABLE, _State.DIRTY, _State.CLEANING})
"""States in which a device is quarantined at once."""


def quarantine(db: api.Database, uuid: str, reason: str, actor: str) -> None:
    """Withdraw a device from instances (Conductor.device_quarantine)."""
    check_reason(reason)
    host_id = device_db.host_id(db, uuid)

    def work(session: orm.Session) -> None:
        host, device = device_db.lock(session, host_id, uuid)
        check_no_mdev(host, device, 'quarantined')
        text = cleaning.shortened(f'quarantined by {actor}: {reason}')
        parts = _all_parts(device, children(session, device))
        at_once = [part for part in parts if part.state in _AT_ONCE]
        later = [part for part in parts if part.withdrawn is None
                 and part.state in device_rules.ASSIGNED_STATES]
        if not at_once and not later:
            raise refused(host, device, _already(parts[0]))
        for part in at_once:
            ledger.add(session, host, part, ledger_rules.Verdict.QUARANTINED,
                       reason=text, actor=actor)
            # The notification of the transition has the reason.
            part.reason = text
            part.clean_token = part.clean_attempt = None
            device_db.transition(session, part, _Event.QUARANTINE)
        for part in later:
            part.withdrawn, part.withdrawn_by = text, actor
        record(session, host, 'quarantine', at_once, reason)
        record(session, host, 'quarantine', later,
                f'{reason} (when its assignment ends)')
    db.write(work)


def _already(device: models.Device) -> str:
    """Return why a device cannot be quarantined once more."""
    state = _State(device.state)
    if device.withdrawn is not None:
        return (f'it cannot be quarantined, since it is {state} and is '
                f'already to be quarantined when its assignment ends: '
                f'{device.withdrawn}; "gpgpu-manage device release" cancels '
                f'this')
    return (device_rules.refusal(state, 'quarantined')
            + (f' (reason: {device.reason})' if device.reason else ''))


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
        _check_cleanable(host, device, gpu_of(session, device), parts, vgpus)
        changed = [
            part for part in dict.fromkeys((device, *_all_parts(
                device, vgpus)))
            if part.state == _State.QUARANTINED
            or (part.state == _State.DIRTY and part.clean_attempt is not None)
            or (part.state == _State.AVAILABLE and part in parts)]
        for part in changed:
            if part.state == _State.QUARANTINED:
                accept(session, host, part, actor)
            elif part.state == _State.DIRTY:
                device_db.try_again(part)
            else:
                part.cleaned_steps = device_db.NOTHING_PASSED
        record(session, host, 'clean', changed)
    db.write(work)


def accept(session: orm.Session, host: models.Host, device: models.Device,
           actor: str) -> None:
    """Have the host clean a device that is quarantined or retired.

    A GPU that has VFs is never reset: guests get these, which are cleaned, at
    once or, if the whole GPU was used, after the VFs were removed and the GPU
    was cleaned. An unmanaged one that its host cannot reset would only be
    quarantined again: it is cleaned when somebody can get it.

    :param actor: who accepts it, for the ledger
    :raises InvalidTransition: it is neither
    """
    function = device_db.pci_function(device)
    unmanaged = (gpu_rules.passthrough_refusal(function)
                 if device.group_id is None else None)
    if function.has_vfs or unmanaged is not None:
        device_db.transition(session, device, _Event.ACCEPT)
        device.clean_token = None
        if not function.has_vfs:
            device.cleaned_steps = device_db.NOTHING_PASSED
    else:
        device_db.transition(session, device, _Event.OPERATOR_RELEASE)
        device.clean_token = str(uuid_mod.uuid4())
    ledger.add(session, host, device, ledger_rules.Verdict.RELEASED,
               reason=device.reason, actor=actor)
    device.before_swap = device.swapped = None
    device.reason = unmanaged


def waits_for_vfs(host_name: str, gpu: models.Device) -> str:
    """Return why a GPU with VFs is dirty, and what to do about that."""
    return (f'the whole GPU was used, or may have been, and a GPU that has '
            f'VFs cannot be cleaned as a whole: remove the VFs of '
            f'{gpu.address} on host {host_name}')


def withhold(session: orm.Session, host: models.Host,
             devices: Iterable[models.Device], reason: str) -> None:
    """Quarantine devices now, or when their assignment ends."""
    for device in devices:
        if device.state in device_rules.ASSIGNED_STATES:
            if device.withdrawn is None:
                device.withdrawn, device.withdrawn_by = reason, None
        elif device.state not in (_State.RETIRED, _State.QUARANTINED):
            device.reason = reason
            ledger.add(session, host, device,
                       ledger_rules.Verdict.QUARANTINED, reason=reason)
            device_db.transition(session, device, _Event.QUARANTINE)
            device.clean_token = device.clean_attempt = None


def retire(session: orm.Session, devices: Iterable[models.Device],
           reason: str) -> None:
    """Retire devices that nobody is assigned."""
    for device in devices:
        if device.state not in (*device_rules.ASSIGNED_STATES,
                                _State.RETIRED):
            device_db.transition(session, device, _Event.RETIRE)
            device.reason = reason
            device.clean_token = device.clean_attempt = None


def release(session: orm.Session, host: models.Host, device: models.Device,
            actor: str) -> None:
    """Have quarantined parts of a device cleaned (Conductor.device_release).

    For parts that are assigned, the quarantine that is yet to come is
    cancelled.

    :param actor: who accepts it, for the ledger
    :raises Conflict: nothing of it is quarantined, or a guest has a vGPU on it
    """
    vgpus = children(session, device)
    parts = ([device] if device.kind == device_rules.DeviceKind.MDEV
             else _all_parts(device, vgpus))
    quarantined = [part for part in dict.fromkeys((device, *parts))
                   if part.state == _State.QUARANTINED]
    marked = [part for part in parts if part.withdrawn is not None]
    if not quarantined and not marked:
        raise refused(host, device, device_rules.refusal(
            _State(device.state), 'released') if parts[0].group_id else (
                f'it cannot be released: it is unmanaged ({device.reason}); '
                f'nothing cleans it, and nothing needs to'))
    if device in quarantined:
        check_unassigned(session, host, vgpus, 'released')
    for part in quarantined:
        accept(session, host, part, actor)
    record(session, host, 'operator_release', quarantined, f'by {actor}')
    for part in marked:
        part.withdrawn = part.withdrawn_by = None
    record(session, host, 'operator_release', marked,
           'it is no longer quarantined when its assignment ends')


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


def _all_parts(device: models.Device,
               vgpus: Sequence[models.Device]) -> list[models.Device]:
    """Return what ``parts_of`` does, and VFs that are away.

    They return when the driver of a host that was rebooted makes them.
    """
    return [*parts_of(device, vgpus),
            *(vf for vf in vfs(vgpus) if not vf.present)]


def vfs(vgpus: Sequence[models.Device]) -> list[models.Device]:
    """Return the VFs among the VFs and mdev rows of a GPU."""
    return [vgpu for vgpu in vgpus
            if vgpu.kind == device_rules.DeviceKind.PCI]


def inherit(session: orm.Session, host: models.Host, gpu: models.Device,
            vf: models.Device, known: Sequence[models.Device]) -> None:
    """Withhold a VF that was never there before, if its GPU is withheld.

    :param known: VFs and mdev rows that the GPU had before
    """
    vf.enabled = gpu.enabled
    if vf.state != _State.AVAILABLE:
        return
    session.flush()
    if gpu.state == _State.RETIRED:
        vf.reason = gpu.reason
        device_db.transition(session, vf, _Event.RETIRE)
    elif (reason := _quarantined(gpu, vfs(known))) is not None:
        vf.reason = reason
        ledger.add(session, host, vf, ledger_rules.Verdict.QUARANTINED,
                   reason=reason)
        device_db.transition(session, vf, _Event.QUARANTINE)


def _quarantined(gpu: models.Device,
                 known: Sequence[models.Device]) -> str | None:
    """Return why a GPU is quarantined: itself, or all VFs that it had."""
    if gpu.state == _State.QUARANTINED:
        return gpu.reason or ''
    reasons = [vf.reason or '' if vf.state == _State.QUARANTINED
               else vf.withdrawn for vf in known]
    return None if not reasons or None in reasons else reasons[0]


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


def _check_cleanable(host: models.Host, device: models.Device,
                     gpu: models.Device, parts: Sequence[models.Device],
                     vgpus: Sequence[models.Device]) -> None:
    """Refuse what cannot or must not be cleaned.

    :param gpu: that of a VF; any other device itself
    :raises Conflict: says why
    """
    reason = None
    if device.state == _State.RETIRED:
        reason = ('it is retired; "gpgpu-manage device release" brings it '
                  'back')
    elif device.swapped is not None:
        reason = (f'{device.swapped}; "gpgpu-manage device replace" accepts '
                  f'the new device, "gpgpu-manage device release" says that '
                  f'it is the same')
    elif (parts[0].group_id is None
          and parts[0].state == _State.AVAILABLE):
        reason = f'it is unmanaged, and the host may use it: {device.reason}'
    elif device_db.waits_for_vfs(gpu):
        reason = waits_for_vfs(host.name, gpu)
    elif parts == [device]:
        used = [vgpu for vgpu in vgpus
                if vgpu.present and vgpu.state != _State.AVAILABLE]
        if used:
            reason = (f'a vGPU on it is {used[0].state}; wait until it is '
                      f'available')
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
