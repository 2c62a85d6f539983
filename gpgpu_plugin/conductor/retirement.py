# SPDX-License-Identifier: Apache-2.0
"""GPUs that leave the cloud, and GPUs that come in their place.

A retired GPU keeps its row, to which its history, ledger and usage refer. Its
place (host and stable id) is free for another card: if a scan finds one there,
the retired row gives up the place, and the other card gets a row of its own.
It is quarantined, unless an operator said that it replaces the retired one.

All functions but ``retire`` and ``replace`` run in a transaction that locked
the device's host.
"""

from __future__ import annotations

import dataclasses
import uuid as uuid_mod
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import exchange
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import type_sync
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.db import api
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import sighting as sighting_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import pci

_State = device_rules.DeviceState


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Card:
    """A GPU with its VFs and mdev rows, of a host that is locked."""

    session: orm.Session
    host: models.Host
    gpu: models.Device
    vgpus: Sequence[models.Device]

    @classmethod
    def lock(cls, session: orm.Session, host_id: int, uuid: str,
             asked: str) -> _Card:
        """Return a GPU, locked.

        :param asked: see domain.device.refusal
        :raises NotFound: no device has this UUID
        :raises Conflict: it is a VF or an mdev row
        """
        host, gpu = device_db.lock(session, host_id, uuid)
        _check_whole(session, host, gpu, asked)
        return cls(session=session, host=host, gpu=gpu,
                   vgpus=withdrawal.children(session, gpu))

    @property
    def is_retired(self) -> bool:
        """Return whether an operator took the GPU out of the cloud."""
        return hold.HoldKind.RETIRED in holds.of(self.session, self.gpu)

    @property
    def devices(self) -> list[models.Device]:
        """Return the GPU, and its VFs and mdev rows."""
        return [self.gpu, *self.vgpus]

    def end(self) -> None:
        """Bring groups and capacities in line with what changed."""
        self.session.flush()
        host_db.changed(self.host)
        variant_matching.apply(self.session, [self.host])
        type_sync.sync(self.session, [self.host.id])
        inventory.refresh(self.session, self.host)


def _check_whole(session: orm.Session, host: models.Host,
                 device: models.Device, asked: str) -> None:
    """Refuse a part of a GPU, which leaves and returns with it.

    :param asked: see domain.device.refusal
    :raises Conflict: it is a VF or an mdev row
    """
    if device.parent_id is not None:
        parent = _parent(session, device)
        raise withdrawal.refused(host, device, (
            f'it cannot be {asked}: it is {device.state} and a part of a '
            f'GPU; name the GPU itself: {parent.address} ({parent.uuid})'))


def _parent(session: orm.Session, device: models.Device) -> models.Device:
    return next(row for row in device_db.of_hosts(session, [device.host_id])
                if row.id == device.parent_id)


def retire(db: api.Database, uuid: str, reason: str | None,
           actor: str) -> None:
    """Take a GPU out of the cloud for good (Conductor.hold_add)."""
    if reason is not None:
        withdrawal.check_reason(reason)
    host_id = device_db.host_id(db, uuid)

    def work(session: orm.Session) -> None:
        card = _Card.lock(session, host_id, uuid, 'retired')
        if card.is_retired:
            raise withdrawal.refused(card.host, card.gpu, device_rules.refusal(
                device_rules.RETIRED, 'retired'))
        _retire(card, reason, actor)
        withdrawal.record(session, card.host, 'retire', card.devices, reason)
        card.end()
    db.write(work)


def _retire(card: _Card, reason: str | None, actor: str,
            asked: str = 'retired') -> None:
    """Retire a GPU with all its parts.

    :param asked: see domain.device.refusal
    :raises Conflict: an instance has one of them
    """
    withdrawal.check_unassigned(card.session, card.host, card.devices, asked)
    # Else the host would be fenced when it boots with another card.
    sessions.forget_gpu(card.host, card.gpu.stable_id)
    holds.add(card.session, card.host, card.gpu, hold.HoldKind.RETIRED,
              reason, actor)


def replace(db: api.Database, uuid: str, actor: str) -> str:
    """Let another card take the place of a GPU (Conductor.device_replace).

    :param actor: who accepts the other card, for the ledger
    :returns: UUID of the other card; of the GPU if it is still awaited
    """
    host_id = device_db.host_id(db, uuid)

    def work(session: orm.Session) -> str:
        card = _Card.lock(session, host_id, uuid, 'replaced')
        found = _replace(card, actor)
        card.end()
        return found
    return db.write(work)


def _replace(card: _Card, actor: str) -> str:
    gpu = card.gpu
    if card.is_retired and gpu.replaced_by is not None:
        session = card.session
        return _accept(_Card.lock(
            session, gpu.host_id, gpu.replaced_by, 'replaced'), gpu, actor)
    if gpu.before_swap is not None:
        return _split(card, actor)
    before = device_db.replaced(card.session, gpu)
    if before is not None and _is_unaccepted(card):
        return _accept(card, before, actor)
    if gpu.awaits_replacement:
        return gpu.uuid
    if not card.is_retired:
        _retire(card, None, actor, 'replaced')
    gpu.awaits_replacement = True
    withdrawal.record(
        card.session, card.host, 'replace', card.devices,
        f'the next card at {gpu.address} takes its place')
    return gpu.uuid


def _is_unaccepted(card: _Card) -> bool:
    return hold.HoldKind.IDENTITY_CHANGED in holds.of(card.session, card.gpu)


def _accept(card: _Card, before: models.Device, actor: str) -> str:
    """Have a card cleaned that was found in the place of a retired one.

    :raises Conflict: it was accepted before
    """
    if not holds.remove(card.session, card.host, card.gpu,
                        [hold.HoldKind.IDENTITY_CHANGED], actor):
        raise withdrawal.refused(card.host, before, (
            f'it cannot be replaced: it is retired, and device '
            f'{card.gpu.uuid} has replaced it already; name that one to '
            f'replace it in turn'))
    card.gpu.before_swap = None
    _record(card.session, card.host, before, [card.gpu])
    return card.gpu.uuid


def _split(card: _Card, actor: str) -> str:
    """Give a card a row of its own that was found in the place of a GPU.

    Until now the row of the GPU stood for both.
    """
    session, gpu = card.session, card.gpu
    if not gpu.present:
        raise withdrawal.refused(card.host, gpu, (
            'it cannot be replaced: its host does not find the other card any '
            'more; "gpgpu-manage device retire" takes it out of the cloud'))
    of_card = _of_new_card(card)
    found = [device for device in card.devices if device.present
             and device.kind == device_rules.DeviceKind.PCI]
    copies = {device.id: _copy(device) for device in found}
    before = gpu.before_swap
    _retire(card, None, actor, 'replaced')
    for device in card.devices:
        leave_place(device)
    assert before is not None
    gpu.pci_function, gpu.identity = before, None
    gpu.before_swap = None
    gpu.vendor_id, gpu.product_id = device_db.ids(
        device_db.pci_function(gpu))
    # Their places must be free before the copies get them.
    session.flush()
    session.add_all(copies.values())
    session.flush()
    for device in found:
        if device.parent_id is not None:
            copies[device.id].parent_id = copies[gpu.id].id
    gpu.awaits_replacement = True
    sighting_db.move(
        session, gpu.uuid,
        sighting_db.numbers(device_db.identity(copies[gpu.id])),
        copies[gpu.id].uuid)
    occupy(session, card.host, gpu, copies[gpu.id])
    for held in of_card:
        holds.add(session, card.host, copies[gpu.id],
                  hold.HoldKind(held.kind), held.reason, held.actor)
    return copies[gpu.id].uuid


def _of_new_card(card: _Card) -> list[models.Hold]:
    """Take from a GPU the holds of the card that was found in its place.

    Those are younger than the finding: the card's number brought them along
    (sightings), or an operator set them since.
    """
    own = holds.of(card.session, card.gpu)
    changed = own.pop(hold.HoldKind.IDENTITY_CHANGED, None)
    found = [held for kind, held in own.items() if kind in hold.DECIDED
             and changed is not None and held.id > changed.id]
    hold_db.remove(card.session, card.gpu.id, {
        hold.HoldKind.IDENTITY_CHANGED, *(held.kind for held in found)})
    return found


def _copy(device: models.Device) -> models.Device:
    """Return a new row for what the last scan found at a place."""
    return models.Device(
        uuid=str(uuid_mod.uuid4()), generation=0,
        state=str(_State.AVAILABLE), cleaned_steps=None, **{
            name: getattr(device, name) for name in (
                'host_id', 'kind', 'stable_id', 'address', 'present',
                'pci_function', 'identity', 'vendor_id', 'product_id',
                'vgpu_capability', 'driver_capacity')})


def leave_place(device: models.Device) -> None:
    """Let a retired device give up its place on its host.

    Where it was is in its PCI function.
    """
    device.stable_id = f'retired-{device.uuid}'
    device.present = False


Exchanged = Mapping[str, models.Device]
"""Retired GPUs in whose place a scan found another card, by stable id."""


def leave(session: orm.Session, devices: Collection[models.Device],
          functions: Iterable[pci.PCIFunction],
          kinds: Callable[[], Mapping[int, hold_db.Kinds]]) -> Exchanged:
    """Let retired GPUs give up places where a scan found another card.

    :param devices: all of a host, before the scan is stored
    :param kinds: of their holds, by id
    """
    rows = {device.stable_id: device for device in devices
            if device.parent_id is None}
    found = {
        function.id: row for function in functions
        if (row := rows.get(function.id)) is not None
        and device_db.identity(row).swap_reason(
            pci.Identity.of(function)) is not None
        and hold.HoldKind.RETIRED in kinds().get(row.id, ())}
    gone = {row.id for row in found.values()}
    for device in devices:
        if device.id in gone or device.parent_id in gone:
            leave_place(device)
    if gone:
        session.flush()
    return found


def occupy(session: orm.Session, host: models.Host, before: models.Device,
           gpu: models.Device) -> None:
    """Let a new card have the place of a retired one.

    It is cleaned if the retired one awaited it, else held.

    :param before: the retired GPU
    :param gpu: row of the new card, which the session has
    """
    session.flush()
    before.replaced_by = gpu.uuid
    if not before.awaits_replacement:
        exchange.hold_changed(session, host, gpu, (
            f'another card was found in the place of retired device '
            f'{before.uuid}; "gpgpu-manage device replace" accepts it'))
        return
    before.awaits_replacement = False
    _record(session, host, before, [gpu])


def _record(session: orm.Session, host: models.Host, before: models.Device,
            after: Sequence[models.Device]) -> None:
    """Record with both devices that one replaces the other."""
    withdrawal.record(session, host, 'replace', [before],
                      f'device {after[0].uuid} takes its place')
    withdrawal.record(session, host, 'replace', after,
                      f'it takes the place of device {before.uuid}')


def reinstate(session: orm.Session, host: models.Host, gpu: models.Device,
              actor: str, kinds: Collection[hold.HoldKind]) -> None:
    """Have a retired GPU cleaned and offered again.

    :param actor: who brings it back, for the ledger
    :param kinds: of all holds to remove
    :raises Conflict: another card is in its place, or it is a part of a GPU
    """
    _check_whole(session, host, gpu, 'released')
    if gpu.replaced_by is not None:
        raise withdrawal.refused(host, gpu, (
            f'it cannot be released: it is retired, and device '
            f'{gpu.replaced_by} is in its place; name that one'))
    gpu.awaits_replacement = False
    card = _Card(session=session, host=host, gpu=gpu,
                 vgpus=withdrawal.children(session, gpu))
    withdrawal.release(session, host, gpu, actor, kinds)
    card.end()
