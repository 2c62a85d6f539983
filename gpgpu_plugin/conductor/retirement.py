# SPDX-License-Identifier: Apache-2.0
"""GPUs that leave the cloud, and GPUs that come in their place.

A GPU that left keeps its row, to which its history, ledger and usage refer
(conductor.card_identity). A card in its place is held, unless an operator said
that the next one replaces the GPU.
"""

from __future__ import annotations

from collections.abc import Collection

from gpgpu_plugin.conductor import card_identity
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.db import api
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import device as device_rules

_Rows = host_rows.HostRows
_Device = host_rows.Device


def _check_whole(rows: _Rows, device: _Device, asked: str) -> None:
    """Refuse a part of a GPU, which leaves and returns with it.

    :param asked: see domain.device.refusal
    :raises Conflict: it is a VF or an mdev row
    """
    if device.parent_id is not None:
        gpu = rows.gpu_of(device)
        raise withdrawal.refused(rows, device, (
            f'it cannot be {asked}: it is {device.state} and a part of a '
            f'GPU; name the GPU itself: {gpu.address} ({gpu.uuid})'))


def _parts(rows: _Rows, gpu: _Device) -> list[_Device]:
    """Return a GPU, and its VFs and mdev rows."""
    return [gpu, *rows.children(gpu)]


def retire(db: api.Database, uuid: str, reason: str | None,
           actor: str) -> None:
    """Take a GPU out of the cloud for good (Conductor.hold_add)."""
    if reason is not None:
        withdrawal.check_reason(reason)

    def rule(rows: _Rows, gpu: _Device) -> _Rows:
        _check_whole(rows, gpu, 'retired')
        if device_rules.HoldKind.RETIRED in gpu.holds:
            raise withdrawal.refused(rows, gpu, device_rules.refusal(
                device_rules.RETIRED, 'retired'))
        return _retired(rows, gpu, reason, actor).note(
            'retire', _parts(rows, gpu), reason)
    withdrawal.change(db, uuid, rule)


def _retired(rows: _Rows, gpu: _Device, reason: str | None, actor: str,
             asked: str = 'retired') -> _Rows:
    """Return the rows with a GPU that is retired with all its parts.

    :param asked: see domain.device.refusal
    :raises Conflict: an instance has one of them
    """
    withdrawal.check_unassigned(rows, _parts(rows, gpu), asked)
    # Else the host would be fenced when it boots with another card.
    rows = sessions.without_gpu(rows, gpu.stable_id)
    return holds.add(rows, gpu, device_rules.HoldKind.RETIRED, reason, actor)


def replace(db: api.Database, uuid: str, actor: str) -> str:
    """Let another card take the place of a GPU (Conductor.device_replace).

    :param actor: who accepts the other card, for the ledger
    :returns: UUID of the other card; of the GPU if it is still awaited
    """
    found = [uuid]

    def rule(rows: _Rows, gpu: _Device) -> _Rows:
        _check_whole(rows, gpu, 'replaced')
        rows, found[0] = _replaced(rows, gpu, actor)
        return rows
    withdrawal.change(db, uuid, rule)
    return found[0]


def _replaced(rows: _Rows, gpu: _Device, actor: str) -> tuple[_Rows, str]:
    if gpu.replaced_by is not None and not gpu.present:
        return _accepted(rows, rows.device(gpu.replaced_by), gpu, actor)
    if device_rules.HoldKind.IDENTITY_CHANGED in rows.holds_of(gpu):
        before = next((device for device in rows.devices
                       if device.replaced_by == gpu.uuid), None)
        return _accepted(rows, gpu, before, actor) if before is not None else (
            withdrawal.release(rows, gpu, actor, [
                device_rules.HoldKind.IDENTITY_CHANGED]), gpu.uuid)
    if gpu.awaits_replacement:
        return rows, gpu.uuid
    if device_rules.HoldKind.RETIRED not in gpu.holds:
        rows = _retired(rows, gpu, None, actor, 'replaced')
    return rows.change(gpu, awaits_replacement=True).note(
        'replace', _parts(rows, gpu),
        f'the next card at {gpu.address} takes its place'), gpu.uuid


def _accepted(rows: _Rows, gpu: _Device, before: _Device,
              actor: str) -> tuple[_Rows, str]:
    """Have a card cleaned that was found in the place of another one.

    The other one is retired.

    :raises Conflict: it was accepted before, or is not there any more
    """
    if not gpu.present:
        raise withdrawal.refused(rows, before, (
            'it cannot be replaced: its host does not find the other card any '
            'more; "gpgpu-manage hold add --kind retired" takes it out of the '
            'cloud'))
    rows, removed = holds.remove(
        rows, gpu, [device_rules.HoldKind.IDENTITY_CHANGED], actor)
    if not removed:
        raise withdrawal.refused(rows, before, (
            f'it cannot be replaced: device {gpu.uuid} has replaced it '
            f'already; name that one to replace it in turn'))
    if device_rules.HoldKind.RETIRED not in before.holds:
        rows = _retired(rows, before, None, actor, 'replaced')
    return _record(rows, before, gpu), gpu.uuid


def occupy(rows: _Rows, before: _Device, gpu: _Device, *,
           is_new: bool) -> _Rows:
    """Let a card have the place of another one.

    It is held if nobody knows it, nor where the other one is, unless the other
    one awaited it. It is also held if an operator withdrew the other one, and
    it may be the other one: it shows no number, as another GPU on one board
    may that shows the same.

    :param before: the other GPU
    :param gpu: row of the card
    :param is_new: whether no scan found the card before
    """
    difference = device_db.identity(before).difference(device_db.identity(gpu))
    may_be_held = is_new and difference is None and device_rules.is_withdrawn(
        before.holds)
    if before.present and not before.awaits_replacement and not may_be_held:
        return rows
    rows = rows.change(before, replaced_by=gpu.uuid, awaits_replacement=False)
    if before.awaits_replacement:
        return _record(rows, before, gpu)
    return card_identity.hold_changed(rows, gpu, (
        f'another device was in its place: '
        f'{difference or "this one shows no number"}; "gpgpu-manage device '
        f'release" accepts this one, "gpgpu-manage device replace" also '
        f'retires device {before.uuid}')) if is_new else rows


def _record(rows: _Rows, before: _Device, after: _Device) -> _Rows:
    """Record with both devices that one replaces the other."""
    return rows.note(
        'replace', [before], f'device {after.uuid} takes its place').note(
            'replace', [after], f'it takes the place of device {before.uuid}')


def reinstate(rows: _Rows, gpu: _Device, actor: str,
              kinds: Collection[device_rules.HoldKind]) -> _Rows:
    """Have a retired GPU cleaned and offered again.

    :param actor: who brings it back, for the ledger
    :param kinds: of all holds to remove
    :raises Conflict: another card is in its place, or it is a part of a GPU
    """
    _check_whole(rows, gpu, 'released')
    if gpu.replaced_by is not None and not gpu.present:
        raise withdrawal.refused(rows, gpu, (
            f'it cannot be released: it is retired, and device '
            f'{gpu.replaced_by} is in its place; name that one'))
    return withdrawal.release(
        rows.change(gpu, awaits_replacement=False), gpu, actor, kinds)
