# SPDX-License-Identifier: Apache-2.0
"""Cleaning of devices between two assignments, which the host carries out."""

from __future__ import annotations

import typing
import uuid as uuid_mod
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import cleaning as rules
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import event as event_rules
from gpgpu_plugin.domain import ledger as ledger_rules
from gpgpu_plugin.objects import claim as objects
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj

_Event = device_rules.DeviceEvent
_State = device_rules.DeviceState


class EndedCleaning(typing.NamedTuple):
    """End of a cleaning.

    ``seconds``: since it began; None: it is not known when.
    """

    verdict: ledger_rules.Verdict
    seconds: float | None


_VERDICTS: Mapping[event_rules.Kind, ledger_rules.Verdict] = {
    'clean_passed': ledger_rules.Verdict.PASSED,
    'clean_failed': ledger_rules.Verdict.FAILED,
    'clean_interrupted': ledger_rules.Verdict.OUTDATED}
"""Verdicts of the ledger, by the event that ends a cleaning."""


def tasks(db: api.Database, host_name: str) -> tuple[objects.CleanTask, ...]:
    """Return the host's present devices in state dirty or cleaning."""
    with db.reader() as session:
        host = host_db.find(session, host_name)
        if host is None:
            return ()
        rows = host_rows.load_one(session, host)
        devices = [device for device in rows.devices
                   if _is_to_clean(rows, device)]
        ids = [device.id for device in devices]
        last = assignment_db.last_of(session, ids) if ids else {}
        activated = assignment_db.activated(session, ids) if ids else set()
        return tuple(
            objects.CleanTask(
                device_uuid=device.uuid, stable_id=device.stable_id,
                address=device.address, token=_token(device) or '',
                request=device.clean_token or '',
                variant=group.variant.name if group else None,
                assignment_uuid=last.get(device.id),
                had_guest=(device.id in activated
                           and not device.new_in_place),
                replaces=device.new_in_place,
                vgpu_type=device.vgpu_type,
                steps=capacity.required_steps(
                    device, rows.cleaning_policy(device)),
                memory_mib=group.variant.memory_mib if group else None)
            for device in devices for group in [rows.group_of(device)])


def _is_to_clean(rows: host_rows.HostRows,
                 device: host_rows.Device) -> bool:
    """Return whether a host cleans a device now.

    One that is withdrawn is not cleaned (domain.device), but the vGPUs on a
    GPU that is are removed. A device without a token waits until it is in a
    group, and a GPU until its mdevs are removed: its host resets no GPU that
    has one.
    A VF waits for the cleaning of its GPU, and a GPU until its VFs are
    removed.
    """
    is_pci = device.kind == device_rules.DeviceKind.PCI
    gpu = rows.gpu_of(device)
    return (
        device.state in device_rules.UNCLEAN_STATES
        and device.present and device.clean_token is not None
        and not device_db.waits_for_policy(device)
        and not device_rules.is_withdrawn(
            device.holds if is_pci else rows.holds_of(device))
        and not device_db.waits_for_vfs(device)
        and not (is_pci and gpu is not device
                 and gpu.state in device_rules.UNCLEAN_STATES)
        and all(child.kind != device_rules.DeviceKind.MDEV
                or child.state == _State.AVAILABLE
                for child in rows.children(device)))


def vfs_refused(db: api.Database, origin: report_obj.Origin,
                gpus: Sequence[str]) -> tuple[str, ...]:
    """Return which GPUs must not get VFs now (Conductor.vfs_refused)."""
    with db.reader() as session:
        host = host_db.find(session, origin.host)
        sessions.refuse(host, origin, reported=False)
        assert host is not None
        rows = host_rows.load_one(session, host)
        if rows.is_held(device_rules.HostHoldKind.RESTORED):
            # Nobody knows what the backup does not; they are cleaned first.
            return tuple(gpus)
        return tuple(
            gpu.stable_id for gpu in rows.devices if gpu.stable_id in gpus
            and (device_rules.is_withdrawn(gpu.holds)
                 or not (gpu.state == _State.AVAILABLE or (
                     # Nobody had it, and nobody gets it as a whole then.
                     gpu.state == _State.DIRTY and gpu.cleaned_steps is None))
                 or device_db.pci_function(gpu).owner is not None))


def _lock(session: orm.Session, host_id: int, device_uuid: str,
          origin: report_obj.Origin | None,
          ) -> tuple[host_rows.HostRows, host_rows.Device]:
    """Return a device and the rows of its host, which is locked.

    :raises NotFound: the device was deleted
    """
    [host] = host_db.lock_ids(session, [host_id])
    sessions.check(session, host, origin)
    rows = host_rows.load_one(session, host)
    return rows, rows.device(device_uuid)


def _token(device: device_db.DeviceRow) -> str | None:
    """Return the attempt to clean a device, or what made it dirty."""
    return (device.clean_attempt if device.state == _State.CLEANING
            else device.clean_token)


def _check(device: host_rows.Device, token: str,
           states: tuple[device_rules.DeviceState, ...]) -> None:
    if device.state not in states or _token(device) != token:
        state = device_rules.own_state(device.state, device.holds)
        raise exception.Conflict(
            kind='device', name=device.uuid,
            reason=f'it is {state}, cleaning {_token(device)}, not in '
                   f'cleaning {token}')


def started(db: api.Database, device_uuid: str, token: str, attempt: str,
            origin: report_obj.Origin | None = None) -> None:
    """Record that a cleaning began (ConductorAPI.clean_started)."""
    host_id = device_db.host_id(db, device_uuid)

    def work(session: orm.Session) -> None:
        before, device = _lock(session, host_id, device_uuid, origin)
        if (device.state == _State.CLEANING
                and device.clean_attempt == attempt):
            # The same call came twice, and its caller sees one answer only.
            return
        _check(device, token, (_State.DIRTY, _State.CLEANING))
        rows = before
        if device.state == _State.CLEANING:
            # The host was restarted meanwhile; all steps begin anew.
            rows = rows.apply(device, _Event.CLEAN_INTERRUPTED).note(
                'clean_interrupted', [device]).record(
                    device, ledger_rules.Verdict.INTERRUPTED,
                    'its host began another cleaning before this one had a '
                    'verdict')
        # A verdict on an earlier attempt is refused from now on.
        settle.settle(session, before, rows.apply(
            device, _Event.CLEAN, clean_attempt=attempt,
            reason=None).note('clean_started', [device]))
        ledger.start(session, device)
    db.write(work)


def failure(db: api.Database, device_uuid: str, attempt: str,
            results: Sequence[rules.StepResult],
            origin: report_obj.Origin | None = None) -> str | None:
    """Return why a device is not clean (ConductorAPI.clean_failure)."""
    with db.reader() as session:
        [host] = host_db.by_ids(session, [
            device_db.get(session, device_uuid).host_id])
        rows = host_rows.load_one(session, host)
        device = rows.device(device_uuid)
        sessions.refuse(host, origin)
        _check(device, attempt, (_State.CLEANING,))
        group = rows.group_of(device)
        return rules.failure(
            ledger.compared(session, device, rules.bounded(results)),
            capacity.required_steps(device, rows.cleaning_policy(device)),
            group.variant.memory_mib if group else None)


def finished(db: api.Database, device_uuid: str, attempt: str,
             steps: Sequence[str], results: Sequence[rules.StepResult],
             driver_capacities: report_obj.DriverCapacities | None = None,
             origin: report_obj.Origin | None = None,
             observer: Callable[[EndedCleaning], None] = lambda ended: None,
             ) -> inventory_obj.HostInventory:
    """Record how a cleaning ended (ConductorAPI.clean_finished).

    :param observer: called with the end once it is committed
    """
    host_id = device_db.host_id(db, device_uuid)

    def work(session: orm.Session,
             ) -> tuple[EndedCleaning, inventory_obj.HostInventory]:
        before, device = _lock(session, host_id, device_uuid, origin)
        _check(device, attempt, (_State.CLEANING,))
        group = before.group_of(device)
        required = capacity.required_steps(
            device, before.cleaning_policy(device))
        found = ledger.compared(session, device, rules.bounded(results))
        rows, kind, detail = _judged(
            before, device, required,
            group.variant.memory_mib if group else None, steps, found)
        rows = capacity.with_driver_capacity(
            session, rows.note(kind, [device], detail), driver_capacities)
        if kind == 'clean_passed':
            # While it was assigned, it kept a variant that may match no more.
            rows = variant_matching.apply(session, rows)
        verdict = _VERDICTS[kind]
        ended = EndedCleaning(verdict, ledger.add(
            session, rows.host.name, device, verdict, steps=required,
            results=found,
            reason=None if verdict is ledger_rules.Verdict.PASSED
            else rules.shortened(detail)))
        return ended, settle.settle(session, before, rows)
    ended, offered = db.write(work)
    observer(ended)
    return offered


def postponed(db: api.Database, device_uuid: str, attempt: str, reason: str,
              origin: report_obj.Origin | None = None) -> None:
    """Record that a host cannot clean yet (ConductorAPI.clean_postponed)."""
    host_id = device_db.host_id(db, device_uuid)

    def work(session: orm.Session) -> None:
        before, device = _lock(session, host_id, device_uuid, origin)
        _check(device, attempt, (_State.CLEANING,))
        settle.settle(session, before, before.apply(
            device, _Event.CLEAN_INTERRUPTED, clean_attempt=None,
            reason=rules.shortened(f'waits: {reason}')).note(
                'clean_interrupted', [device], reason))
    db.write(work)


def _judged(rows: host_rows.HostRows, device: host_rows.Device,
            required: Sequence[str], memory_mib: int | None,
            steps: Sequence[str], results: Sequence[rules.StepResult],
            ) -> tuple[host_rows.HostRows, event_rules.Kind, str]:
    """Return the rows after a cleaning, with the event that records it.

    :param required: steps that the policy requires now
    :param steps: those that it required when the host was asked
    :returns: the rows, the kind of the event and its detail
    """
    failure = rules.failure(results, required, memory_mib)
    if failure is None:
        return (holds.accept_lost_vfs(rows.apply(
            device, _Event.CLEAN_PASSED, clean_attempt=None,
            clean_token=None, reason=None,
            cleaned_steps=rules.SEPARATOR.join(required)), device),
            'clean_passed', '; '.join(map(str, results)))
    rows = rows.apply(device, _Event.CLEAN_INTERRUPTED, clean_attempt=None)
    if rules.is_harmless(results, steps, memory_mib):
        if set(steps) != set(required):
            # The policy changed meanwhile.
            return rows, 'clean_interrupted', failure
        return (rows.change(
            device, clean_attempt=device.clean_token, reason=rules.shortened(
                f'waits: cleaning policy: {failure}; "gpgpu-manage variant '
                f'set" chooses another one, "gpgpu-manage device release" '
                f'tries it again'
                + (', "gpgpu-manage device accept" takes it as clean, since '
                   'it is new' if device.cleaned_steps is None else ''))),
            'clean_failed', failure)
    # Another request: an operator has looked at it when it is cleaned next.
    return (rows.change(
        device, cleaned_steps=device_db.NOTHING_PASSED,
        clean_token=str(uuid_mod.uuid4())).hold(
            device, device_rules.HoldKind.FAILED,
            rules.shortened(f'cleaning failed: {failure}')),
        'clean_failed', failure)
