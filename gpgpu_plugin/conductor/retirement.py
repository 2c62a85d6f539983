# SPDX-License-Identifier: Apache-2.0
"""GPUs that leave the cloud, and GPUs that come in their place.

A retired GPU keeps its row, to which its history, ledger and usage refer. Its
place (host and stable id) is free for another card: if a scan finds one there,
the retired row gives up the place, and the other card gets a row of its own.
It is quarantined, unless an operator said that it replaces the retired one.
"""

from __future__ import annotations

import uuid as uuid_mod
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from sqlalchemy import orm

from gpgpu_plugin.conductor import exchange
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.db import api
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import sighting as sighting_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import pci

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


def _change(db: api.Database, uuid: str,
            rule: Callable[[orm.Session, _Rows, _Device], _Rows],
            ) -> None:
    """Apply a rule to a GPU, and bring groups in line with what changed."""
    host_id = device_db.host_id(db, uuid)

    def work(session: orm.Session) -> None:
        [host] = host_db.lock_ids(session, [host_id])
        before = host_rows.load_one(session, host)
        rows = rule(session, before, before.device(uuid))
        settle.settle(
            session, before, variant_matching.apply(session, rows))
    db.write(work)


def retire(db: api.Database, uuid: str, reason: str | None,
           actor: str) -> None:
    """Take a GPU out of the cloud for good (Conductor.hold_add)."""
    if reason is not None:
        withdrawal.check_reason(reason)

    def rule(_: orm.Session, rows: _Rows, gpu: _Device) -> _Rows:
        _check_whole(rows, gpu, 'retired')
        if hold.HoldKind.RETIRED in gpu.holds:
            raise withdrawal.refused(rows, gpu, device_rules.refusal(
                device_rules.RETIRED, 'retired'))
        return _retire(rows, gpu, reason, actor).note(
            'retire', _parts(rows, gpu), reason)
    _change(db, uuid, rule)


def _retire(rows: _Rows, gpu: _Device, reason: str | None, actor: str,
            asked: str = 'retired') -> _Rows:
    """Retire a GPU with all its parts.

    :param asked: see domain.device.refusal
    :raises Conflict: an instance has one of them
    """
    withdrawal.check_unassigned(rows, _parts(rows, gpu), asked)
    # Else the host would be fenced when it boots with another card.
    rows = sessions.without_gpu(rows, gpu.stable_id)
    return holds.add(rows, gpu, hold.HoldKind.RETIRED, reason, actor)


def replace(db: api.Database, uuid: str, actor: str) -> str:
    """Let another card take the place of a GPU (Conductor.device_replace).

    :param actor: who accepts the other card, for the ledger
    :returns: UUID of the other card; of the GPU if it is still awaited
    """
    found = [uuid]

    def rule(session: orm.Session, rows: _Rows, gpu: _Device) -> _Rows:
        _check_whole(rows, gpu, 'replaced')
        rows, found[0] = _replace(session, rows, gpu, actor)
        return rows
    _change(db, uuid, rule)
    return found[0]


def _replace(session: orm.Session, rows: _Rows, gpu: _Device,
             actor: str) -> tuple[_Rows, str]:
    is_retired = hold.HoldKind.RETIRED in gpu.holds
    if is_retired and gpu.replaced_by is not None:
        return _accept(rows, rows.device(gpu.replaced_by), gpu, actor)
    if gpu.before_swap is not None:
        return _split(session, rows, gpu, actor)
    before = next((device for device in rows.devices
                   if device.replaced_by == gpu.uuid), None)
    if (before is not None
            and hold.HoldKind.IDENTITY_CHANGED in rows.holds_of(gpu)):
        return _accept(rows, gpu, before, actor)
    if gpu.awaits_replacement:
        return rows, gpu.uuid
    if not is_retired:
        rows = _retire(rows, gpu, None, actor, 'replaced')
    return rows.change(gpu, awaits_replacement=True).note(
        'replace', _parts(rows, gpu),
        f'the next card at {gpu.address} takes its place'), gpu.uuid


def _accept(rows: _Rows, gpu: _Device, before: _Device,
            actor: str) -> tuple[_Rows, str]:
    """Have a card cleaned that was found in the place of a retired one.

    :raises Conflict: it was accepted before
    """
    rows, removed = holds.remove(
        rows, gpu, [hold.HoldKind.IDENTITY_CHANGED], actor)
    if not removed:
        raise withdrawal.refused(rows, before, (
            f'it cannot be replaced: it is retired, and device '
            f'{gpu.uuid} has replaced it already; name that one to '
            f'replace it in turn'))
    return _record(rows.change(gpu, before_swap=None), before, gpu), gpu.uuid


def _split(session: orm.Session, rows: _Rows, gpu: _Device,
           actor: str) -> tuple[_Rows, str]:
    """Give a card a row of its own that was found in the place of a GPU.

    Until now the row of the GPU stood for both.
    """
    if not gpu.present:
        raise withdrawal.refused(rows, gpu, (
            'it cannot be replaced: its host does not find the other card any '
            'more; "gpgpu-manage device retire" takes it out of the cloud'))
    assert gpu.before_swap is not None
    found = [device for device in _parts(rows, gpu) if device.present
             and device.kind == device_rules.DeviceKind.PCI]
    rows, of_card = _without_new_card(rows, gpu)
    rows = _retire(rows, gpu, None, actor, 'replaced')
    for device in _parts(rows, gpu):
        rows = leave_place(rows, device)
    function = device_db.read_function(gpu.before_swap)
    vendor_id, product_id = device_db.ids(function)
    rows = rows.change(
        gpu, pci_function=gpu.before_swap, identity=None, before_swap=None,
        vendor_id=vendor_id, product_id=product_id, awaits_replacement=True)
    copies: dict[int, _Device] = {}
    for device in found:
        copies[device.id] = _copy(rows, device, copies)
        rows = rows.put(copies[device.id])
    card = copies[gpu.id]
    sighting_db.move(
        session, gpu.uuid,
        sighting_db.numbers(device_db.identity(card)), card.uuid)
    rows = occupy(rows, rows.now(gpu), card)
    for held in of_card:
        rows = holds.add(
            rows, card, hold.HoldKind(held.kind), held.reason, held.actor)
    return rows, card.uuid


def _without_new_card(rows: _Rows, gpu: _Device,
                      ) -> tuple[_Rows, list[hold_db.Hold]]:
    """Take from a GPU the holds of the card that was found in its place.

    Those are younger than the finding: the card's number brought them along
    (sightings), or an operator set them since.
    """
    own = dict(rows.holds_of(gpu))
    changed = own.pop(hold.HoldKind.IDENTITY_CHANGED, None)
    found = [held for kind, held in own.items() if kind in hold.DECIDED
             and changed is not None and held.id > changed.id]
    return rows.release(gpu, {
        hold.HoldKind.IDENTITY_CHANGED, *(held.kind for held in found)}), found


def _copy(rows: _Rows, device: _Device,
          copies: Mapping[int, _Device]) -> _Device:
    """Return a new row for what the last scan found at a place.

    :param copies: of its GPU, by the id of the old row
    """
    gpu = copies.get(device.parent_id or 0)
    return host_rows.Device(
        id=rows.new_id(), uuid=str(uuid_mod.uuid4()),
        parent_id=None if gpu is None else gpu.id, **{
            name: getattr(device, name) for name in (
                'host_id', 'kind', 'stable_id', 'address', 'present',
                'pci_function', 'identity', 'vendor_id', 'product_id',
                'vgpu_capability', 'driver_capacity')})


def leave_place(rows: _Rows, device: _Device) -> _Rows:
    """Let a retired device give up its place on its host.

    Where it was is in its PCI function.
    """
    return rows.change(device, stable_id=f'retired-{device.uuid}',
                       present=False)


def leave(rows: _Rows, functions: Iterable[pci.PCIFunction],
          ) -> tuple[_Rows, Mapping[str, _Device]]:
    """Let retired GPUs give up places where a scan found another card.

    :param rows: before the scan is stored
    :returns: the rows, and these GPUs by the stable ids of the places
    """
    found = {
        function.id: gpu for function in functions
        if (gpu := rows.by_stable_id.get(function.id)) is not None
        and gpu.parent_id is None and hold.HoldKind.RETIRED in gpu.holds
        and device_db.identity(gpu).swap_reason(
            pci.Identity.of(function)) is not None}
    for gpu in found.values():
        for device in _parts(rows, gpu):
            rows = leave_place(rows, device)
    return rows, found


def occupy(rows: _Rows, before: _Device, gpu: _Device) -> _Rows:
    """Let a new card have the place of a retired one.

    It is cleaned if the retired one awaited it, else held.

    :param before: the retired GPU
    :param gpu: row of the new card
    """
    rows = rows.change(before, replaced_by=gpu.uuid, awaits_replacement=False)
    return _record(rows, before, gpu) if before.awaits_replacement else (
        exchange.hold_changed(rows, gpu, (
            f'another card was found in the place of retired device '
            f'{before.uuid}; "gpgpu-manage device replace" accepts it')))


def _record(rows: _Rows, before: _Device, after: _Device) -> _Rows:
    """Record with both devices that one replaces the other."""
    return rows.note(
        'replace', [before], f'device {after.uuid} takes its place').note(
            'replace', [after], f'it takes the place of device {before.uuid}')


def reinstate(rows: _Rows, gpu: _Device, actor: str,
              kinds: Collection[hold.HoldKind]) -> _Rows:
    """Have a retired GPU cleaned and offered again.

    :param actor: who brings it back, for the ledger
    :param kinds: of all holds to remove
    :raises Conflict: another card is in its place, or it is a part of a GPU
    """
    _check_whole(rows, gpu, 'released')
    if gpu.replaced_by is not None:
        raise withdrawal.refused(rows, gpu, (
            f'it cannot be released: it is retired, and device '
            f'{gpu.replaced_by} is in its place; name that one'))
    return withdrawal.release(
        rows.change(gpu, awaits_replacement=False), gpu, actor, kinds)
