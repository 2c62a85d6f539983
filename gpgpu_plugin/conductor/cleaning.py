# SPDX-License-Identifier: Apache-2.0
"""Cleaning of devices between two assignments, which the host carries out."""

from __future__ import annotations

import dataclasses
import typing
import uuid as uuid_mod
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import driver_capacity
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import cleaning as rules
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import event as event_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import ledger as ledger_rules
from gpgpu_plugin.domain import unsupported
from gpgpu_plugin.objects import claim as objects
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.objects import session as session_obj

_Event = device_rules.DeviceEvent
_State = device_rules.DeviceState


class Ended(typing.NamedTuple):
    """End of a cleaning.

    ``seconds``: since it began; None: it is not known when.
    """

    verdict: ledger_rules.Verdict
    seconds: float | None


_VERDICTS: Mapping[event_rules.Kind, ledger_rules.Verdict] = {
    'clean_passed': ledger_rules.Verdict.PASSED,
    'clean_failed': ledger_rules.Verdict.FAILED,
    'clean_interrupted': ledger_rules.Verdict.OUTDATED}
"""What the ledger calls the events that end a cleaning."""


def tasks(db: api.Database, host_name: str) -> tuple[objects.CleanTask, ...]:
    """Return the host's present devices in state dirty or cleaning."""
    with db.reader() as session:
        host = host_db.find(session, host_name)
        if host is None:
            return ()
        devices = device_db.to_clean(session, host.id)
        ids = [device.id for device in devices]
        last = assignment_db.last_of(session, ids) if ids else {}
        activated = assignment_db.activated(session, ids) if ids else set()
        policies = {group_id: group_db.policy(session, group_id)
                    for group_id in {device.group_id for device in devices}}
        return tuple(
            objects.CleanTask(
                device_uuid=device.uuid, stable_id=device.stable_id,
                address=device.address, token=_token(device) or '',
                request=device.clean_token or '',
                variant=policies[device.group_id][0],
                assignment_uuid=last.get(device.id),
                had_guest=device.id in activated,
                replaces=(device.id not in activated
                          and _took_a_place(session, device)),
                vgpu_type=device.vgpu_type,
                steps=capacity.required_steps(
                    device, policies[device.group_id][1]),
                memory_mib=policies[device.group_id][2])
            for device in devices)


def vfs_refused(db: api.Database, origin: session_obj.Origin,
                gpus: Sequence[str]) -> tuple[str, ...]:
    """Return which GPUs must not get VFs now (Conductor.vfs_refused)."""
    with db.reader() as session:
        host = host_db.find(session, origin.host)
        sessions.refuse(host, origin, reported=False)
        assert host is not None
        if host.restored:
            # Nobody knows what the backup does not; they are cleaned first.
            return tuple(gpus)
        kinds = hold_db.kinds_of_hosts(session, [host.id])
        return tuple(
            gpu.stable_id
            for gpu in device_db.by_stable_id(session, host.id, gpus)
            if hold.is_withdrawn(kinds.get(gpu.id, ()))
            or not (gpu.state == _State.AVAILABLE or (
                # Nobody had it, and nobody gets it as a whole then.
                gpu.state == _State.DIRTY and gpu.cleaned_steps is None))
            or device_db.pci_function(gpu).owner is not None)


def _took_a_place(session: orm.Session, device: models.Device) -> bool:
    """Return whether a GPU, or that of a VF, replaced a retired one."""
    if device.kind == device_rules.DeviceKind.MDEV:
        return False
    return device_db.replaced(
        session, withdrawal.gpu_of(session, device)) is not None


def _lock(session: orm.Session, host_id: int, device_uuid: str,
          origin: session_obj.Origin | None,
          ) -> tuple[models.Host, capacity.LoadedHost, device_db.DeviceRow]:
    """Return a device and its host, which is locked.

    :raises NotFound: the device was deleted
    """
    [host] = host_db.lock_ids(session, [host_id])
    sessions.check(host, origin)
    loaded = capacity.load_host(session, host.id)
    found = [row for row in loaded.rows.devices if row.uuid == device_uuid]
    return host, loaded, (
        found[0] if found else device_db.row(session, device_uuid))


def _token(device: device_db.AnyDevice) -> str | None:
    """Return the attempt to clean a device, or what made it dirty."""
    return (device.clean_attempt if device.state == _State.CLEANING
            else device.clean_token)


def _check(device: device_db.DeviceRow, token: str,
           states: tuple[device_rules.DeviceState, ...]) -> None:
    if device.state not in states or _token(device) != token:
        state = device_rules.own_state(device.state, device.holds)
        raise exception.Conflict(
            kind='device', name=device.uuid,
            reason=f'it is {state}, cleaning {_token(device)}, not in '
                   f'cleaning {token}')


def started(db: api.Database, device_uuid: str, token: str, attempt: str,
            origin: session_obj.Origin | None = None) -> None:
    """Record that a cleaning began (ConductorAPI.clean_started)."""
    host_id = device_db.host_id(db, device_uuid)

    def work(session: orm.Session) -> None:
        host, loaded, device = _lock(session, host_id, device_uuid, origin)
        if (device.state == _State.CLEANING
                and device.clean_attempt == attempt):
            # The same call came twice, and its caller sees one answer only.
            return
        _check(device, token, (_State.DIRTY, _State.CLEANING))
        now = device
        if now.state == _State.CLEANING:
            # The host was restarted meanwhile; all steps begin anew.
            now = device_db.after(now, _Event.CLEAN_INTERRUPTED)
            event_db.add_all(
                session, 'clean_interrupted', host.name, [(now, None)])
            ledger.add(session, host, device, ledger_rules.Verdict.INTERRUPTED,
                       reason='its host began another cleaning before this '
                              'one had a verdict')
        # A verdict on an earlier attempt is refused from now on.
        now = dataclasses.replace(
            device_db.after(now, _Event.CLEAN), clean_attempt=attempt,
            reason=None)
        device_db.swap(session, [(device, now)])
        ledger.start(session, device)
        event_db.add_all(session, 'clean_started', host.name, [(now, None)])
        host_db.changed(host)
        inventory.refresh(session, host, loaded.after([now]).groups)
    db.write(work)


def failure(db: api.Database, device_uuid: str, attempt: str,
            results: Sequence[rules.StepResult],
            origin: session_obj.Origin | None = None) -> str | None:
    """Return why a device is not clean (ConductorAPI.clean_failure)."""
    with db.reader() as session:
        device = device_db.row(session, device_uuid)
        sessions.refuse(session.get(models.Host, device.host_id), origin)
        _check(device, attempt, (_State.CLEANING,))
        _, policy, memory_mib = group_db.policy(session, device.group_id)
        return rules.failure(
            ledger.compared(session, device, rules.bounded(results)),
            capacity.required_steps(device, policy), memory_mib)


def finished(db: api.Database, device_uuid: str, attempt: str,
             steps: Sequence[str], results: Sequence[rules.StepResult],
             driver_capacities: report_obj.DriverCapacities | None = None,
             origin: session_obj.Origin | None = None,
             observer: Callable[[Ended], None] = lambda ended: None,
             ) -> inventory_obj.HostInventory:
    """Record how a cleaning ended (ConductorAPI.clean_finished).

    :param observer: called with the end once it is committed
    """
    host_id = device_db.host_id(db, device_uuid)

    def work(session: orm.Session,
             ) -> tuple[Ended, inventory_obj.HostInventory]:
        host, loaded, device = _lock(session, host_id, device_uuid, origin)
        _check(device, attempt, (_State.CLEANING,))
        _, policy, memory_mib = group_db.policy(session, device.group_id)
        required = capacity.required_steps(device, policy)
        found = ledger.compared(session, device, rules.bounded(results))
        now, kind, detail = _judged(
            device, required, memory_mib, steps, found)
        # Else it waits for another policy.
        if kind == 'clean_failed' and now.clean_attempt is None:
            hold_db.add(session, device.id, hold.HoldKind.FAILED,
                        rules.shortened(f'cleaning failed: {detail}'))
        device_db.swap(session, [(device, now)])
        event_db.add_all(session, kind, host.name, [(now, None)], detail)
        verdict = _VERDICTS[kind]
        ended = Ended(verdict, ledger.add(
            session, host, device, verdict, steps=required, results=found,
            reason=None if verdict is ledger_rules.Verdict.PASSED
            else rules.shortened(detail)))
        host_db.changed(host)
        is_stored = driver_capacity.store(session, host, driver_capacities)
        return ended, _offered(session, host, loaded, now,
                               are_others_changed=is_stored)
    ended, offered = db.write(work)
    observer(ended)
    return offered


def _offered(session: orm.Session, host: models.Host,
             loaded: capacity.LoadedHost, device: device_db.DeviceRow, *,
             are_others_changed: bool) -> inventory_obj.HostInventory:
    """Return what a host offers after a cleaning.

    :param loaded: what was read before it
    :param device: as it is now
    :param are_others_changed: other rows are not as they were read
    """
    is_unsupported = _is_unsupported(loaded, device)
    if is_unsupported:
        variant_matching.apply(session, [host])
    if are_others_changed or is_unsupported:
        return inventory.refresh(session, host)
    return inventory.refresh(session, host, loaded.after([device]).groups)


def _is_unsupported(loaded: capacity.LoadedHost,
                    device: device_db.DeviceRow) -> bool:
    """Return whether a device that is free now may have to leave its group.

    While it was assigned, its variant may have stopped accepting unsupported
    hardware.
    """
    return device.state == _State.AVAILABLE and any(
        group.rows.id == device.group_id
        and not group.value.variant.unsupported_ok
        and unsupported.reason(device_db.pci_function(device)) is not None
        for group in loaded.groups)


def postponed(db: api.Database, device_uuid: str, attempt: str, reason: str,
              origin: session_obj.Origin | None = None) -> None:
    """Record that a host cannot clean yet (ConductorAPI.clean_postponed)."""
    host_id = device_db.host_id(db, device_uuid)

    def work(session: orm.Session) -> None:
        host, loaded, device = _lock(session, host_id, device_uuid, origin)
        _check(device, attempt, (_State.CLEANING,))
        now = dataclasses.replace(
            device_db.after(device, _Event.CLEAN_INTERRUPTED),
            clean_attempt=None, reason=rules.shortened(f'waits: {reason}'))
        device_db.swap(session, [(device, now)])
        event_db.add_all(session, 'clean_interrupted', host.name,
                         [(now, None)], reason)
        host_db.changed(host)
        inventory.refresh(session, host, loaded.after([now]).groups)
    db.write(work)


def _judged(device: device_db.DeviceRow, required: Sequence[str],
            memory_mib: int | None, steps: Sequence[str],
            results: Sequence[rules.StepResult],
            ) -> tuple[device_db.DeviceRow, event_rules.Kind, str]:
    """Return a device after its cleaning, with the event that records it.

    :param required: steps that the policy requires now
    :param steps: those that it required when the host was asked
    :returns: the device, the kind of the event and its detail
    """
    failure = rules.failure(results, required, memory_mib)
    now = dataclasses.replace(device, clean_attempt=None)
    if failure is None:
        return (dataclasses.replace(
            device_db.after(now, _Event.CLEAN_PASSED), clean_token=None,
            reason=None, cleaned_steps=rules.SEPARATOR.join(required)),
            'clean_passed', '; '.join(map(str, results)))
    now = device_db.after(now, _Event.CLEAN_INTERRUPTED)
    if rules.is_harmless(results, steps, memory_mib):
        if set(steps) != set(required):
            # The policy changed meanwhile.
            return now, 'clean_interrupted', failure
        return (dataclasses.replace(
            now, clean_attempt=now.clean_token, reason=rules.shortened(
                f'waits: cleaning policy: {failure}; "gpgpu-manage variant '
                f'set" chooses another one, "gpgpu-manage device clean" tries '
                f'it again'
                + (', "gpgpu-manage device accept" takes it as clean, since '
                   'it is new' if now.cleaned_steps is None else ''))),
            'clean_failed', failure)
    return (dataclasses.replace(
        now, cleaned_steps=device_db.NOTHING_PASSED,
        # Another request: an operator has looked at it then (holds).
        clean_token=str(uuid_mod.uuid4()),
        holds=now.holds | {hold.HoldKind.FAILED}), 'clean_failed', failure)
