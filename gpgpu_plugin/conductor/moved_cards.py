# SPDX-License-Identifier: Apache-2.0
"""Cards that a scan finds in another place than before, on any host.

A card is recognised by its serial numbers. If it was unclean, disabled or
retired in its last place, it is so in its new place. The host that had it may
be off and still have it by its rows, or be alive and have another card with
the same number. Until this is known, which takes minutes, the card is neither
cleaned nor offered. Numbers that several cards show at once name none of them.

Transactions lock the host of the new place; the rows of the other host are
only read.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import card_places
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.conductor import type_sync
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import card as card_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules

LOG = logging.getLogger(__name__)

_Event = device_rules.DeviceEvent
_State = device_rules.DeviceState

INTERVAL = 60
"""Seconds between two times that a conductor looks for what hosts said."""

SILENT_AFTER = 900.0
"""Seconds without a call after which a host may be off (default)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Record:
    """Last known state of a card in another place.

    :ivar state: retired, quarantined or dirty; None: it was clean
    :ivar is_whole: the whole card was not clean, rather than a VF or mdev
    """

    seen: card_places.Place
    state: device_rules.DeviceState | None
    enabled: bool
    is_whole: bool

    @property
    def is_clean(self) -> bool:
        """Return whether nothing speaks against offering the card."""
        return self.state is None and self.enabled

    @property
    def text(self) -> str:
        """Return where the card was, and what it was there."""
        device, host = self.seen.device, self.seen.host
        facts = [self.state or 'clean', *(
            [] if self.enabled else [device_rules.DISABLED])]
        return cleaning.shortened(
            f'it was at {card_places.address(device)} of {host.name}, where '
            f'it was {" and ".join(facts)}'
            + (f': {device.reason}' if device.reason else ''))


class _Arrived(typing.NamedTuple):
    """A GPU that is or may be new in its place, with its numbers.

    ``before``: when an earlier scan found the numbers there; None: none did.
    ``stayed``: no scan missed it, but its host was off.
    """

    card: models.Card
    gpu: models.Device
    before: datetime.datetime | None
    stayed: bool = False


def check(session: orm.Session, host: models.Host,
          devices: Iterable[models.Device], returned: Collection[str],
          new: Collection[str] = (), silent_after: float = SILENT_AFTER, *,
          rebooted: bool = False) -> None:
    """Give GPUs that are new in their place the state that they had before.

    :param devices: those that a scan found; their rows are up to date
    :param returned: stable ids of those that the scan before had missed
    :param new: likewise of those that no scan found before
    :param rebooted: while the host was off, any of them may have been
        elsewhere, and nobody saw it
    """
    session.flush()
    devices = list(devices)
    _hold(session, host, [
        device for device in devices if device.parent_id is None and (
            device.stable_id in new
            or (rebooted and device.stable_id in returned))])
    _explain(session, [
        device for device in devices if device.before_swap is not None
        and device.parent_id is None and device.reason == device.swapped])
    now = clock.utc(session)
    arrived = _arrived(session, devices, {*returned, *new}, now,
                       rebooted=rebooted)
    if not arrived:
        return
    gpus = [found.gpu for found in arrived]
    places = card_places.others(session, gpus)
    deleted = card_places.left_behind(session, gpus)
    unrecognised = card_places.unrecognised(session, gpus)
    for card, gpu, before, stayed in arrived:
        others = [other for other in places[gpu.uuid]
                  if _is_news(host, other, before)]
        if others:
            card.found_at, card.waits_for = now, None
            _check(session, host, card, gpu, others,
                   clock.epoch(session) - silent_after, before=before,
                   stayed=stayed)
        if stayed and gpu.uuid in unrecognised:
            # What is known of the number is of another card.
            continue
        left = card_places.newest_left(deleted[gpu.uuid], max((
            before or card_places.NEVER,
            *(other.found_at for other in places[gpu.uuid]))))
        if left is not None:
            card.found_at = now
            _recall(session, host, gpu, is_whole=left.whole_unclean)
        if gpu.uuid in unrecognised:
            _distrust(session, host, gpu)


def _hold(session: orm.Session, host: models.Host,
          arrived: Sequence[models.Device]) -> None:
    """Withhold GPUs that may be assigned ones which left their places.

    :param arrived: GPUs that are new in their place, or may be
    """
    if not arrived:
        return
    users = {}
    for row in assignment_db.of_hosts(session, [host.id]):
        device = session.get_one(models.Device, row.device_id)
        # An mdev may be on a VF.
        users[withdrawal.gpu_of(
            session, withdrawal.gpu_of(session, device))] = row.instance_uuid
    for gpu in arrived:
        lost = [other for other in users if gpu not in users
                and (not other.present or other.before_swap is not None)
                and card_places.may_be(gpu, other)]
        if not lost:
            continue
        reason = (
            f'it may be the card of instance {users[lost[0]]} at '
            f'{card_places.address(lost[0])}, which is missing: both are of '
            f'one model, and no number tells them apart. Delete or migrate '
            f'that server, or make sure that this is another card; then run '
            f'"gpgpu-manage device release {host.name} {gpu.address}"')
        withdrawal.withhold(session, host, [
            gpu, *withdrawal.vfs(withdrawal.children(session, gpu))], reason)
        event_db.add(session, 'quarantine', host.name, gpu, detail=reason)
        host_db.changed(host)


def _distrust(session: orm.Session, host: models.Host,
              gpu: models.Device) -> None:
    """Have a GPU cleaned whose number says nothing of what it was before."""
    withdrawal.distrust_parts(session, gpu, withdrawal.children(session, gpu))
    event_db.add(session, 'moved', host.name, gpu, detail=(
        f'more than {card_db.MOST} hosts have cards with its number, which '
        f'identifies none of them: the card here is cleaned'))
    host_db.changed(host)


def _recall(session: orm.Session, host: models.Host, gpu: models.Device, *,
            is_whole: bool) -> None:
    """Withhold a GPU that was not clean when its last host was deleted.

    :param is_whole: the whole card was not clean, rather than a VF or mdev
    """
    vfs = withdrawal.vfs(withdrawal.children(session, gpu))
    if is_whole and withdrawal.parts_of(gpu, vfs) != [gpu]:
        withdrawal.withhold(session, host, [gpu, *vfs], card_places.withheld(
            host, gpu, card_places.LEFT_BEHIND))
    else:
        withdrawal.distrust_parts(session, gpu, vfs)
    event_db.add(session, 'moved', host.name, gpu, detail=(
        'it was on a host that was deleted when the card was not clean'))
    host_db.changed(host)


def _explain(session: orm.Session, came: Sequence[models.Device]) -> None:
    """Say what cards were before that came in the place of another.

    Whoever accepts one of them must know.
    """
    for uuid, others in (
            card_places.others(session, came) if came else {}).items():
        [gpu] = [device for device in came if device.uuid == uuid]
        known = [other for other in others
                 if other.host.id != gpu.host_id
                 or not card_places.is_there(gpu, other.device)]
        if not known:
            continue
        last = _record(session, max(
            known, key=lambda other: other.found_at))
        if not last.is_clean:
            gpu.reason = cleaning.shortened(f'{gpu.swapped}; {last.text}')


def _arrived(session: orm.Session, devices: Iterable[models.Device],
             returned: Collection[str], now: datetime.datetime, *,
             rebooted: bool) -> list[_Arrived]:
    """Return the GPUs that are or may be new in their place, with numbers.

    Until an operator accepts a card that came in the place of another, the
    numbers of the device are those of the other: it says what that one was.
    """
    gpus = {device.uuid: device for device in devices
            if device.parent_id is None and device.before_swap is None
            and device.kind == device_rules.DeviceKind.PCI
            and any(card_db.numbers(device_db.identity(device)))}
    known = card_db.of_devices(session, gpus) if gpus else {}
    found: list[_Arrived] = []
    for uuid, gpu in gpus.items():
        dsn, serial = card_db.numbers(device_db.identity(gpu))
        card, before = known.get(uuid), None
        if card is None:
            card = models.Card(device_uuid=uuid)
            session.add(card)
        elif (card.dsn, card.serial and card.serial.upper()) == (dsn, serial):
            if gpu.stable_id not in returned:
                if rebooted:
                    found.append(_Arrived(
                        card, gpu, card.found_at or datetime.datetime.min,
                        stayed=True))
                continue
            before = card.found_at
        if before is None:
            card.waits_for = None
        card.dsn, card.serial, card.found_at = dsn, serial, now
        found.append(_Arrived(card, gpu, before))
    session.flush()
    return found


def _is_news(host: models.Host, other: card_places.Place,
             before: datetime.datetime | None) -> bool:
    """Return whether a card was found elsewhere after it was found here.

    :param before: when it was found here
    """
    if before is None:
        return True
    # Databases may store whole seconds.
    return other.found_at > before or (
        other.host is not host
        and other.found_at == before != card_places.NEVER)


def _check(session: orm.Session, host: models.Host, card: models.Card,
           gpu: models.Device, others: Sequence[card_places.Place],
           silent_since: float, *, before: datetime.datetime | None,
           stayed: bool) -> None:
    """Withhold a GPU that was not clean where it was last.

    :param others: other places where its numbers were found
    :param before: when they were found here, which was before that
    :param stayed: no scan missed it, but its host was off
    """
    elsewhere = [other for other in others if other.host is not host
                 or not card_places.is_there(gpu, other.device)]
    if not elsewhere:
        return
    there = [other for other in elsewhere
             if card_places.is_there(gpu, other.device)
             and (other.host.heard_at or 0) >= silent_since]
    newest = max(other.found_at for other in elsewhere)
    last = [other for other in elsewhere if other.found_at == newest]
    if (len(elsewhere) < len(others) or len(last) > 1
            or there not in ([], last)):
        _doubt(session, host, card, gpu, elsewhere, there)
        return
    record = _record(session, last[0])
    unclean = [other for other in elsewhere if other is not last[0]
               and _record(session, other).state is not None
               and not _is_proven(session, other, last[0])]
    if unclean and (there or record.state not in (
            _State.RETIRED, _State.QUARANTINED)):
        _doubt(session, host, card, gpu, [*unclean, last[0]], there)
        return
    if record.is_clean:
        if before is not None and not there and _is_proven(
                session, card_places.Place(
                    device=gpu, host=host, found_at=before), last[0]):
            gpu.whole_use = None
        return
    if (stayed and record.seen.host is not host
            and _is_quarantined_by_host(session, record)
            and not (record.is_whole and _has_parts(session, gpu))):
        # It may never have been there. A cleaning tells whether it is good.
        _take_over(session, host, gpu, record, _State.DIRTY)
    elif there:
        _wait(session, host, card, gpu, record)
    else:
        _take_over(session, host, gpu, record)


def _has_parts(session: orm.Session, gpu: models.Device) -> bool:
    """Return whether guests get VFs of a GPU, and not itself."""
    return withdrawal.parts_of(
        gpu, withdrawal.children(session, gpu)) != [gpu]


def _is_quarantined_by_host(session: orm.Session, record: _Record) -> bool:
    """Return whether a scan or a cleaning quarantined a card elsewhere.

    Without an operator it is the word of that host alone.
    """
    gpu = record.seen.device
    return record.state is _State.QUARANTINED and not (
        record.seen.is_accepted and any(
            _is_withheld_by_operator(session, device)
            for device in (gpu, *withdrawal.children(session, gpu))))


def _is_withheld_by_operator(session: orm.Session,
                             device: models.Device) -> bool:
    """Return whether an operator had a device quarantined, or to be so."""
    return device.withdrawn_by is not None or (
        device.state == _State.QUARANTINED
        and ledger.is_last_by_operator(session, device.uuid))


def _is_proven(session: orm.Session, before: card_places.Place,
               last: card_places.Place) -> bool:
    """Return whether a card was cleaned where it was last.

    It was not if it may have been in the place before all the time: then the
    last place had another card with the number, or a host that is not honest.
    """
    return card_places.has_left_before_cleaning(session, before, [
        last.device, *withdrawal.children(session, last.device)])


def _doubt(session: orm.Session, host: models.Host, card: models.Card,
           gpu: models.Device, others: Sequence[card_places.Place],
           there: Sequence[card_places.Place]) -> None:
    """Have a GPU cleaned if any card with its number was not clean.

    :param there: places that have their card, as far as is known
    """
    unclean = [record for record in (
        _record(session, other) for other in others)
        if record.state is not None]
    if not unclean:
        return
    last = max(unclean, key=lambda record: (
        record.is_whole and record.seen not in there, record.seen.found_at))
    vfs = withdrawal.vfs(withdrawal.children(session, gpu))
    is_whole = last.is_whole and last.seen not in there
    whole = [record for record in unclean if record.is_whole]
    if whole and not is_whole and _has_parts(session, gpu):
        # If it came from there, it does not suffice to clean its VFs. Its
        # last host is more likely the one that called longest ago.
        _wait(session, host, card, gpu, min(
            whole, key=lambda record: record.seen.host.heard_at or 0.0))
        return
    event_db.add(session, 'moved', host.name, gpu, detail=(
        f'{last.text}. Several cards have this number, so that it identifies '
        f'none of them: the card here is cleaned'))
    _clean(session, host, gpu, vfs, dataclasses.replace(
        last, is_whole=is_whole))
    host_db.changed(host)


def _record(session: orm.Session, seen: card_places.Place) -> _Record:
    """Return what is known about a card in another place."""
    gpu = seen.device
    if not seen.is_accepted:
        return _Record(seen=seen, state=_State.QUARANTINED, enabled=True,
                       is_whole=True)
    devices = [gpu, *withdrawal.children(session, gpu)]
    states = {device.state for device in devices}
    state = None
    if gpu.state == _State.RETIRED:
        state = _State.RETIRED
    elif any(_is_quarantined(session, device, left=gpu.before_swap is not None)
             for device in devices):
        state = _State.QUARANTINED
    elif (states - {_State.AVAILABLE, _State.RETIRED} or seen.host.restored
            or gpu.whole_use is not None
            or any(map(device_db.is_doubted, devices))):
        # After a restore, nobody knows what the host did since the backup.
        state = _State.DIRTY
    return _Record(
        seen=seen, state=state, enabled=gpu.enabled,
        is_whole=gpu.state != _State.AVAILABLE or gpu.whole_use is not None
        or device_db.is_doubted(gpu)
        or (seen.host.restored and not device_db.pci_function(gpu).has_vfs))


def _is_quarantined(session: orm.Session, device: models.Device, *,
                    left: bool) -> bool:
    """Return whether a card or a part of it was quarantined, or was to be.

    :param left: another card is in its place, and is quarantined
    """
    if device.withdrawn or not left or device.swapped is None:
        return bool(device.state == _State.QUARANTINED or device.withdrawn
                    or device.swapped)
    # If it was not before the other card came, this is the newest record.
    last = ledger.last_entry(session, device.uuid)
    return (device.state == _State.QUARANTINED
            and (last is None or last[1] != device.swapped))


def _wait(session: orm.Session, host: models.Host, card: models.Card,
          gpu: models.Device, last: _Record) -> None:
    """Withhold a GPU until its other host says whether it has it still."""
    card.waits_for = last.seen.device.uuid
    withdrawal.distrust_parts(session, gpu, withdrawal.children(session, gpu))
    event_db.add(session, 'moved', host.name, gpu, detail=(
        f'{last.text}. Host {last.seen.host.name} may be alive and have '
        f'another card with this number: the card here is cleaned when that '
        f'is known, or on "gpgpu-manage device clean"'))


def _take_over(session: orm.Session, host: models.Host, gpu: models.Device,
               last: _Record, state: _State | None = None) -> None:
    """Give a GPU the state that it had in another place.

    :param state: None: that one; or another one that it gets instead
    """
    vfs = withdrawal.vfs(withdrawal.children(session, gpu))
    state = state or last.state
    if state is _State.RETIRED:
        _retire(session, [gpu, *vfs], last.text)
    elif state is _State.QUARANTINED:
        withdrawal.withhold(session, host, [gpu, *vfs], last.text)
    elif state is _State.DIRTY:
        _clean(session, host, gpu, vfs, last)
    if not last.enabled:
        for part in (gpu, *vfs):
            part.enabled = False
    event_db.add(session, 'moved', host.name, gpu, detail=last.text)
    host_db.changed(host)


def _clean(session: orm.Session, host: models.Host, gpu: models.Device,
           vfs: Sequence[models.Device], last: _Record) -> None:
    """Have a GPU cleaned, or the VFs that guests get of it.

    If the GPU itself was not clean in its last place, it is not enough to
    clean its VFs.
    """
    if last.is_whole:
        gpu.whole_use = gpu.whole_use or last.seen.device.whole_use or (
            last.text if last.seen.host.restored else None)
    if withdrawal.parts_of(gpu, vfs) == [gpu] or not last.is_whole:
        withdrawal.distrust_parts(session, gpu, vfs)
        return
    use = card_places.last_whole(session, gpu)
    withdrawal.withhold(session, host, [gpu, *vfs], card_places.withheld(
        host, gpu, last.text if use is None else use))


def _retire(session: orm.Session, devices: Iterable[models.Device],
            reason: str) -> None:
    for device in devices:
        if device.state not in (*device_rules.ASSIGNED_STATES,
                                _State.RETIRED):
            device_db.transition(session, device, _Event.RETIRE)
            device.reason = reason
            device.clean_token = device.clean_attempt = None


# -- cards that wait --------------------------------------------------------


def decide(db: api.Database, silent_after: float,
           notify: Callable[[str], None] = lambda host: None) -> None:
    """Decide about the cards whose other host has called or is silent.

    What fails is tried again at the next interval.

    :param notify: called with the host of each card that was decided about
    """
    try:
        with db.reader() as session:
            waiting = card_db.waiting(session)
    except exception.ConductorUnavailable as exc:
        LOG.warning('Cannot read which GPUs wait until it is known whether '
                    'they were moved; it is tried again in %(interval)s s: '
                    '%(reason)s', {'interval': INTERVAL, 'reason': exc})
        return
    for device_uuid, host_id in waiting:
        try:
            host = db.write(functools.partial(
                _decide, device_uuid=device_uuid, host_id=host_id,
                silent_after=silent_after))
        except exception.ConductorUnavailable as exc:
            LOG.warning('Cannot decide whether GPU %(device)s was moved; it '
                        'is tried again in %(interval)s s: %(reason)s', {
                            'device': device_uuid, 'interval': INTERVAL,
                            'reason': exc})
        except exception.NotFound:
            # Its host was deleted meanwhile.
            continue
        else:
            if host is not None:
                notify(host)


def _decide(session: orm.Session, device_uuid: str, host_id: int,
            silent_after: float) -> str | None:
    """Decide about a card that waits, if that is possible now.

    :returns: the card's host; None: it still waits, or waits no more
    """
    [host] = host_db.lock_ids(session, [host_id])
    card = card_db.waits(session, device_uuid)
    if card is None:
        return None
    gpu = device_db.get(session, device_uuid)
    assert card.waits_for is not None
    seen = card_places.place(session, gpu, card.waits_for)
    heard = seen.host.heard_at or 0.0 if seen is not None else 0.0
    detail = None
    left = None if seen is not None else card_places.newest_left(
        card_places.left_behind(session, [gpu])[gpu.uuid], card_places.NEVER)
    if left is not None:
        _recall(session, host, gpu, is_whole=left.whole_unclean)
    elif seen is None or _record(session, seen).is_clean:
        detail = 'it no longer waits for another host to report'
    elif (card_places.is_there(gpu, seen.device)
            and clock.epoch(session) - heard <= silent_after):
        if not card_places.has_called_since(
                seen.host, card.found_at or card_places.NEVER):
            return None
        detail = (f'{seen.host.name} has another card with the same number, '
                  f'which identifies neither of them')
    card.waits_for = None
    if detail is None and seen is not None:
        _take_over(session, host, gpu, _record(session, seen))
    elif detail is not None:
        event_db.add(session, 'moved', host.name, gpu, detail=detail)
        host_db.changed(host)
    variant_matching.apply(session, [host])
    type_sync.sync(session, [host.id])
    inventory.refresh(session, host)
    return host.name
