#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
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
import time
import uuid as uuid_mod
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.db import api
from gpgpu_plugin.db import card as card_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import ledger as ledger_rules

LOG = logging.getLogger(__name__)

_Event = device_rules.DeviceEvent
_State = device_rules.DeviceState

INTERVAL = 60
"""Seconds between two times that a conductor looks for what hosts said."""

SILENT_AFTER = 900.0
"""Seconds without a call after which a host may be off (default)."""

_MARGIN = 60.0
"""Seconds by which a host must have called later: the precision of the time
at which it was heard."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Record:
    """Last known state of a card in another place.

    :ivar state: retired, quarantined or dirty; None: it was clean
    """

    seen: card_db.Sighting
    state: device_rules.DeviceState | None
    enabled: bool

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
        place = device_db.pci_function(device).address or device.address
        return cleaning.shortened(
            f'it was at {place} of {host.name}, where it was '
            f'{" and ".join(facts)}'
            + (f': {device.reason}' if device.reason else ''))


_Arrived = tuple[models.Card, models.Device, datetime.datetime | None]
"""A GPU with its numbers, and when an earlier scan found these there."""


def check(session: orm.Session, host: models.Host,
          devices: Iterable[models.Device], returned: Collection[str],
          silent_after: float = SILENT_AFTER, *,
          rebooted: bool = False) -> None:
    """Give GPUs that are new in their place the state that they had before.

    :param devices: those that a scan found; their rows are up to date
    :param returned: stable ids of those that earlier scans had missed
    :param rebooted: while the host was off, any of them may have been
        elsewhere, and nobody saw it
    """
    session.flush()
    now = event_db.now()
    arrived = _arrived(session, devices, returned, now, rebooted=rebooted)
    if not arrived:
        return
    seen = card_db.with_numbers(
        session, [card.dsn for card, _, _ in arrived if card.dsn],
        [card.serial for card, _, _ in arrived if card.serial])
    for card, gpu, before in arrived:
        others = [other for other in seen if other.device is not gpu
                  and _is_same(gpu, other.device)
                  and _is_news(host, other, before)]
        if others:
            card.found_at, card.waits_for = now, None
            _check(session, host, card, gpu, others,
                   time.time() - silent_after)


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
        elif (card.dsn, card.serial) == (dsn, serial):
            if gpu.stable_id not in returned:
                if rebooted:
                    found.append((
                        card, gpu, card.found_at or datetime.datetime.min))
                continue
            before = card.found_at
        if before is None:
            card.waits_for = None
        card.dsn, card.serial, card.found_at = dsn, serial, now
        found.append((card, gpu, before))
    session.flush()
    return found


def _is_same(gpu: models.Device, other: models.Device) -> bool:
    """Return whether two rows may stand for one card."""
    one = device_db.identity(gpu)
    two = device_db.identity_before(other) or device_db.identity(other)
    return one.swap_reason(two) is None and any(
        number is not None and number == same for number, same in (
            (one.dsn, two.dsn), (one.serial, two.serial)))


def _is_news(host: models.Host, other: card_db.Sighting,
             before: datetime.datetime | None) -> bool:
    """Return whether a card was found elsewhere after it was found here.

    :param before: when it was found here
    """
    if before is None:
        return True
    # Databases may store whole seconds.
    at = other.card.found_at or datetime.datetime.min
    return at > before or (other.host is not host
                           and at == before != datetime.datetime.min)


def _is_there(device: models.Device) -> bool:
    """Return whether a card is in the place where it was, by its host."""
    before = device_db.identity_before(device)
    return device.present and (before is None or before.swap_reason(
        device_db.identity(device)) is None)


def _check(session: orm.Session, host: models.Host, card: models.Card,
           gpu: models.Device, others: Sequence[card_db.Sighting],
           silent_since: float) -> None:
    """Withhold a GPU that was not clean where it was last.

    :param others: other places where its numbers were found
    """
    there = [other for other in others if _is_there(other.device) and (
        other.host is host or (other.host.heard_at or 0) >= silent_since)]
    last = _record(session, max(
        others, key=lambda other: (other.card.found_at
                                   or datetime.datetime.min, other.card.id)))
    if last.is_clean:
        return
    if not there:
        _take_over(session, host, gpu, last)
    elif there == [last.seen] and last.seen.host is not host:
        _wait(session, host, card, gpu, last)


def _record(session: orm.Session, seen: card_db.Sighting) -> _Record:
    """Return what is known about a card in another place."""
    gpu = seen.device
    devices = [gpu, *withdrawal.children(session, gpu)]
    states = {device.state for device in devices}
    state = None
    if gpu.state == _State.RETIRED:
        state = _State.RETIRED
    elif any(_is_quarantined(session, device, left=gpu.before_swap is not None)
             for device in devices):
        state = _State.QUARANTINED
    elif states - {_State.AVAILABLE, _State.RETIRED}:
        state = _State.DIRTY
    return _Record(seen=seen, state=state, enabled=gpu.enabled)


def _is_quarantined(session: orm.Session, device: models.Device, *,
                    left: bool) -> bool:
    """Return whether a card or a part of it was quarantined, or was to be.

    :param left: another card is in its place, and is quarantined
    """
    if device.withdrawn or not left or device.swapped is None:
        return bool(device.state == _State.QUARANTINED or device.withdrawn
                    or device.swapped)
    # If it was not before the other card came, this is the newest record.
    return (device.state == _State.QUARANTINED
            and ledger.last_reason(session, device.uuid) != device.swapped)


def _wait(session: orm.Session, host: models.Host, card: models.Card,
          gpu: models.Device, last: _Record) -> None:
    """Withhold a GPU until its other host says whether it has it still."""
    card.waits_for = last.seen.device.uuid
    _distrust(session, gpu)
    event_db.add(session, 'moved', host.name, gpu, detail=(
        f'{last.text}. Host {last.seen.host.name} may be alive and have '
        f'another card with this number: the card here is cleaned when that '
        f'is known, or on "gpgpu-manage device clean"'))


def _take_over(session: orm.Session, host: models.Host, gpu: models.Device,
               last: _Record) -> None:
    """Give a GPU the state that it had in another place."""
    vfs = withdrawal.vfs(withdrawal.children(session, gpu))
    if last.state is _State.RETIRED:
        _retire(session, [gpu, *vfs], last.text)
    elif last.state is _State.QUARANTINED:
        for part in (gpu, *vfs):
            _quarantine(session, host, part, last.text)
    elif last.state is _State.DIRTY:
        _distrust(session, gpu)
    if not last.enabled:
        for part in (gpu, *vfs):
            part.enabled = False
    event_db.add(session, 'moved', host.name, gpu, detail=last.text)
    host_db.changed(host)


def _retire(session: orm.Session, devices: Iterable[models.Device],
            reason: str) -> None:
    for device in devices:
        if device.state not in (*device_rules.ASSIGNED_STATES,
                                _State.RETIRED):
            device_db.transition(session, device, _Event.RETIRE)
            device.reason = reason
            device.clean_token = device.clean_attempt = None


def _quarantine(session: orm.Session, host: models.Host,
                device: models.Device, reason: str) -> None:
    """Quarantine a device now, or when its assignment or cleaning ends."""
    if device.state in device_rules.ASSIGNED_STATES:
        device.withdrawn = device.withdrawn or reason
    elif device.state not in (_State.RETIRED, _State.QUARANTINED):
        device.reason = reason
        ledger.add(session, host, device, ledger_rules.Verdict.QUARANTINED,
                   reason=reason)
        device_db.transition(session, device, _Event.QUARANTINE)
        device.clean_token = device.clean_attempt = None


def _distrust(session: orm.Session, gpu: models.Device) -> None:
    """Have a GPU cleaned, or the VFs that guests get of it."""
    for part in withdrawal.parts_of(gpu, withdrawal.children(session, gpu)):
        if part.state == _State.AVAILABLE:
            device_db.transition(session, part, _Event.DISTRUST)
            if part.group_id is not None:
                # Otherwise it gets its token when it joins a group.
                part.clean_token = str(uuid_mod.uuid4())


# -- cards that wait --------------------------------------------------------


def decide(db: api.Database, silent_after: float) -> None:
    """Decide about the cards whose other host has called or is silent.

    What fails is tried again at the next interval.
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
            db.write(functools.partial(
                _decide, device_uuid=device_uuid, host_id=host_id,
                silent_since=time.time() - silent_after))
        except exception.ConductorUnavailable as exc:
            LOG.warning('Cannot decide whether GPU %(device)s was moved; it '
                        'is tried again in %(interval)s s: %(reason)s', {
                            'device': device_uuid, 'interval': INTERVAL,
                            'reason': exc})


def _decide(session: orm.Session, device_uuid: str, host_id: int,
            silent_since: float) -> None:
    [host] = host_db.lock_ids(session, [host_id])
    card = card_db.waits(session, device_uuid)
    if card is None:
        return
    gpu = device_db.get(session, device_uuid)
    assert card.waits_for is not None
    seen = card_db.sighting(session, card.waits_for)
    heard = seen.host.heard_at or 0.0 if seen is not None else 0.0
    if seen is None or _record(session, seen).is_clean:
        detail = 'it no longer waits for another host to report'
    elif not _is_there(seen.device) or heard < silent_since:
        card.waits_for = None
        _take_over(session, host, gpu, _record(session, seen))
        return
    elif heard > _seconds(card.found_at) + _MARGIN and seen.host.report_number:
        detail = (f'{seen.host.name} has another card with the same number, '
                  f'which identifies neither of them')
    else:
        return
    card.waits_for = None
    event_db.add(session, 'moved', host.name, gpu, detail=detail)
    host_db.changed(host)


def _seconds(at: datetime.datetime | None) -> float:
    """Return a time of the database in seconds since the epoch."""
    return (0.0 if at is None
            else at.replace(tzinfo=datetime.UTC).timestamp())
