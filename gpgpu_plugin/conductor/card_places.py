# SPDX-License-Identifier: Apache-2.0
"""Places where a card was found, and who had the whole card there.

A card that a guest had whole, and that was not cleaned as a whole since, must
not be offered in parts: a host cleans no GPU that has VFs, and the cleaning of
a VF says nothing about the memory outside of it.

All functions run in a transaction that locked the device's host; the rows of
other hosts are only read.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import card as card_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci

_MARGIN = 60.0
"""Seconds by which a host must have called later: the precision of the time
at which it was heard."""

NEVER = datetime.datetime.min
"""When a card was found whose time is not known."""

LEFT_BEHIND = 'the whole GPU was not clean when its last host was deleted'
"""What takes the place of the last user, who was forgotten with the host."""


def address(device: models.Device) -> str:
    """Return the address at which a device was last."""
    return device_db.pci_function(device).address or device.address


def withheld(host: models.Host, gpu: models.Device, text: str) -> str:
    """Return why a GPU with VFs is quarantined, and what to do.

    :param text: who had the whole GPU, or why nobody knows
    """
    return cleaning.shortened(
        f'{text}, and no cleaning of the whole GPU has passed since. A GPU '
        f'that has VFs cannot be cleaned as a whole: remove them on host '
        f'{host.name}, then run "gpgpu-manage device release {host.name} '
        f'{gpu.address}"')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """A place where a card was found, also if it is elsewhere now.

    :ivar found_at: when a scan found it there (UTC)
    :ivar is_accepted: False: another card was expected there, and no operator
        has accepted this one
    """

    device: models.Device
    host: models.Host
    found_at: datetime.datetime
    is_accepted: bool = True


def others(session: orm.Session,
           gpus: Collection[models.Device]) -> dict[str, list[Place]]:
    """Return the other places where GPUs were found, by the GPU's UUID.

    Their numbers tell; of several cards with one number, each counts.
    """
    numbers = [card_db.numbers(device_db.identity(gpu)) for gpu in gpus]
    if not any(map(any, numbers)):
        return {gpu.uuid: [] for gpu in gpus}
    seen = [(card.found_at, device, host) for card, device, host
            in card_db.with_numbers(
                session, [dsn for dsn, _ in numbers if dsn],
                [serial for _, serial in numbers if serial])]
    came = [(device.swapped_at or NEVER, device,
             session.get_one(models.Host, device.host_id))
            for device in card_db.unaccepted(session)]
    return {gpu.uuid: [
        *(Place(device=device, host=host, found_at=at or NEVER)
          for at, device, host in seen if device is not gpu and _is_same(
              gpu, device_db.identity_before(device)
              or device_db.identity(device))),
        *(Place(device=device, host=host, found_at=at, is_accepted=False)
          for at, device, host in came if device is not gpu and _is_same(
              gpu, device_db.identity(device)))] for gpu in gpus}


def unrecognised(session: orm.Session,
                 gpus: Collection[models.Device]) -> set[str]:
    """Return those of some GPUs whose numbers identify none, by UUID.

    Too many hosts have GPUs with them.
    """
    numbers = {gpu.uuid: card_db.numbers(device_db.identity(gpu))
               for gpu in gpus}
    dsns, serials = card_db.frequent(
        session, [dsn for dsn, _ in numbers.values() if dsn],
        [serial for _, serial in numbers.values() if serial])
    return {uuid for uuid, (dsn, serial) in numbers.items()
            if dsn in {None, *dsns} and serial in {None, *serials}}


def place(session: orm.Session, gpu: models.Device,
          device_uuid: str) -> Place | None:
    """Return one of the other places of a GPU; None: it is none any more."""
    return next((found for found in others(session, [gpu])[gpu.uuid]
                 if found.device.uuid == device_uuid), None)


def _is_same(gpu: models.Device, two: pci.Identity) -> bool:
    """Return whether a row and an identity may stand for one card."""
    one = device_db.identity(gpu)
    (dsn, serial), (other_dsn, other_serial) = map(
        card_db.numbers, (one, two))
    return one.swap_reason(two) is None and _agree(
        dsn, other_dsn, serial, other_serial)


def may_be(gpu: models.Device, lost: models.Device) -> bool:
    """Return whether a GPU may be one that left its place, by all but numbers.

    GPUs with a number in common are one card, with different ones two.
    """
    one = device_db.identity(gpu)
    two = device_db.identity_before(lost) or device_db.identity(lost)
    return one.swap_reason(two) is None and not (
        {*card_db.numbers(one)} & {*card_db.numbers(two)} - {None})


def _agree(dsn: str | None, other_dsn: str | None,
           serial: str | None, other_serial: str | None) -> bool:
    """Return whether one number is the same and none is another one."""
    same = [number == other for number, other in (
        (dsn, other_dsn), (serial, other_serial))
        if None not in (number, other)]
    return bool(same) and all(same)


def is_there(gpu: models.Device, device: models.Device) -> bool:
    """Return whether a card is in another place, too, by that host."""
    return device.present and device_db.identity(device).swap_reason(
        device_db.identity(gpu)) is None


def accept(session: orm.Session, device: models.Device) -> None:
    """Note that the card in a place is the one that belongs there.

    An operator said so, and what it was elsewhere no longer counts.
    """
    dsn, serial = card_db.numbers(device_db.identity(device))
    card = card_db.of_devices(session, [device.uuid]).get(device.uuid)
    if card is None:
        card = models.Card(device_uuid=device.uuid)
        session.add(card)
    card.dsn, card.serial, card.found_at = dsn, serial, clock.utc(session)
    card.waits_for = None


def has_called_since(host: models.Host, at: datetime.datetime) -> bool:
    """Return whether a host has certainly called and reported since a time."""
    since = 0.0 if at == NEVER else _seconds(at)
    return bool((host.heard_at or 0.0) > since + _MARGIN
                and host.report_number)


def _seconds(at: datetime.datetime) -> float:
    """Return a time (UTC) in seconds since the epoch."""
    return at.replace(tzinfo=datetime.UTC).timestamp()


def left_behind(session: orm.Session, gpus: Collection[models.Device],
                ) -> dict[str, list[models.Card]]:
    """Return the records of GPUs whose hosts were deleted, by the GPU's UUID.

    A host was deleted while they were not clean. The last one is the newest.
    """
    numbers = {gpu.uuid: card_db.numbers(device_db.identity(gpu))
               for gpu in gpus}
    left = card_db.left_behind(
        session, [dsn for dsn, _ in numbers.values() if dsn],
        [serial for _, serial in numbers.values() if serial])
    return {uuid: [
        card for card in left if _agree(dsn, card.dsn, serial, card.serial)]
        for uuid, (dsn, serial) in numbers.items()}


def newest_left(records: Collection[models.Card],
                after: datetime.datetime) -> models.Card | None:
    """Return the newest of such records.

    :param after: when the card was found in another place; older records no
        longer count
    """
    return next((card for card in reversed(list(records))
                 if (card.found_at or NEVER) > after), None)


def last_whole(session: orm.Session, gpu: models.Device) -> str | None:
    """Return who had a whole GPU last, or why nobody knows.

    It may have been in an earlier place. The order of what happened on two
    hosts is known by the conductors' clocks, in whole seconds; when in doubt,
    the GPU was not cleaned.

    :returns: None: nobody, or a cleaning of the whole GPU has passed since
    """
    places = _places(session, gpu)
    cleanings = _cleanings(session, places)
    uses = [use for use in (
        _use(session, place, places[0], cleanings) for place in places)
        if use is not None]
    if uses:
        return max(uses)[1]
    left = newest_left(left_behind(session, [gpu])[gpu.uuid], max([
        NEVER, *(passed.ended_at for _, passed in cleanings),
        *(place.found_at for place in places if place.device is not gpu)]))
    if left is not None and left.whole_unclean:
        return LEFT_BEHIND
    return next((
        place.device.whole_use for place in places
        if place.device.whole_use is not None
        and not _is_cleaned_later(session, place, places)), None)


def _is_cleaned_later(session: orm.Session, place: Place,
                      places: Sequence[Place]) -> bool:
    """Return whether a card was cleaned where it was found after a place.

    What was cleaned there after it had left is another card.

    :param places: the first one is where it is
    """
    for other, passed in _passed(session, places):
        if (place.found_at < other.found_at < passed.ended_at
                and not any(other.found_at < later.found_at < passed.ended_at
                            for later in places)
                and (other is places[0] or has_left(
                    session, place, passed.began_at))):
            return True
    return False


_Cleanings = Sequence[tuple[Place, ledger.Passed]]
"""The last cleaning in each place of a card, if one passed there."""


def _cleanings(session: orm.Session, places: Sequence[Place]) -> _Cleanings:
    """Return the cleanings that a card may have passed in its places.

    :param places: the first one is where it is
    """
    here = places[0]
    # What was cleaned elsewhere after it had left is another card.
    return [(place, passed) for place, passed in _passed(session, places)
            if place is here or passed.ended_at <= here.found_at]


def _passed(session: orm.Session, places: Sequence[Place]) -> _Cleanings:
    """Return the last cleaning in each of some places, if one passed there.

    :param places: the first one is where the card is
    """
    found = ((place, ledger.last_passed(session, place.device.uuid))
             for place in places
             # Until it is accepted, only the card before was cleaned there.
             if place is not places[0] or place.device.before_swap is None)
    return [(place, passed) for place, passed in found if passed is not None]


def _is_cleaned_since(session: orm.Session, place: Place, here: Place,
                      at: datetime.datetime, cleanings: _Cleanings) -> bool:
    """Return whether a card passed a cleaning after its use in a place.

    What was cleaned elsewhere while the card may have been in the place of the
    use is another card.

    :param here: where the card is
    :param at: when the use ended
    """
    return any(
        passed.ended_at > at and (
            other is place or other is here
            or has_left(session, place, passed.began_at))
        for other, passed in cleanings)


def has_left(session: orm.Session, place: Place,
             at: datetime.datetime | None) -> bool:
    """Return whether a card had certainly left a place at a time.

    Only the host of the place can say so, since any host can show any number:
    it had reported the card missing, or another card there, or it has been
    silent since before that time.

    :param at: None: unknown
    """
    if at is None:
        return False
    if (place.host.heard_at or 0.0) + _MARGIN < _seconds(at):
        return True
    last = event_db.newest_of_device(
        session, place.device.uuid, ('missing', 'returned', 'swapped'), at)
    return last is not None and (last.kind == 'missing' or (
        # Since an operator accepted the other card, that is the one.
        last.kind == 'swapped' and place.is_accepted
        and last.at >= place.found_at))


def has_left_before_cleaning(session: orm.Session, place: Place,
                             devices: Iterable[models.Device]) -> bool:
    """Return whether one of some devices was cleaned after a card had left.

    :param place: where the card was
    :param devices: a GPU elsewhere and its VFs and mdev rows
    """
    cleanings = (ledger.last_passed(session, device.uuid)
                 for device in devices)
    return any(passed is not None and has_left(session, place, passed.began_at)
               for passed in cleanings)


def _places(session: orm.Session, gpu: models.Device) -> list[Place]:
    """Return the present place of a card and the earlier ones."""
    host = session.get_one(models.Host, gpu.host_id)
    card = card_db.of_devices(session, [gpu.uuid]).get(gpu.uuid)
    here = Place(device=gpu, host=host, found_at=(
        card.found_at if card is not None else None) or NEVER)
    return [here, *(
        other for other in others(session, [gpu])[gpu.uuid]
        if other.is_accepted and not (
            is_there(gpu, other.device) and (other.host is host or (
                has_called_since(other.host, here.found_at)))))]


def _use(session: orm.Session, place: Place, here: Place,
         cleanings: _Cleanings) -> tuple[int, str] | None:
    """Return who had a whole GPU in a place, unless it was cleaned since.

    :param here: where it is
    :param cleanings: those that it may have passed
    :returns: what orders uses, and the text
    """
    if place.device.state == device_rules.DeviceState.AVAILABLE:
        return None
    last = assignment_db.last_of_device(session, place.device.id)
    if last is None or ledger.has_passed(
            session, place.device.uuid, last.uuid):
        return None
    # A guest that was lost with its host had it until it was found elsewhere.
    at = last.ended_at or max(last.claimed_at, place.found_at)
    if _is_cleaned_since(session, place, here, at, cleanings):
        return None
    project = f' of project {last.project_id}' if last.project_id else ''
    return last.id, (
        f'instance {last.instance_uuid}{project} had the whole GPU at '
        f'{address(place.device)} of {place.host.name}')
