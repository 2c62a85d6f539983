# SPDX-License-Identifier: Apache-2.0
"""Cards, where a scan found them, and where they were before.

The row of a device is that of a card. It follows the card to another slot,
with its assignments and holds, if the card shows a number there. If a scan
finds another card in the place of a known one, the row gives up the place, and
the other card gets a row of its own, which is held until an operator accepts
it: nothing is known about the card, and the baseline of the host is that of
the one before.

A card of which a guest has a part keeps its place until the guest has left,
and is missing meanwhile. What is in its place is left out until then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import vfio
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import sighting as sighting_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci

_Rows = host_rows.HostRows
_Device = host_rows.Device
_CHANGED = device_rules.HoldKind.IDENTITY_CHANGED


@dataclasses.dataclass(frozen=True, kw_only=True)
class Followed:
    """Rows of a host whose cards are where a scan found them.

    :ivar displaced: GPUs in whose former places other cards are, by the stable
        ids of these places
    :ivar kept: stable ids of places whose own card a guest has, though another
        card is in them
    :ivar moved: stable ids of the places to which known cards came
    """

    rows: _Rows
    displaced: Mapping[str, _Device]
    kept: Collection[str]
    moved: Collection[str]


def follow(rows: _Rows, functions: Iterable[pci.PCIFunction]) -> Followed:
    """Let the rows of cards be where a scan found the cards.

    :param rows: before the scan is stored
    """
    found = {function.id: pci.Identity.of(function) for function in functions
             if function.pf is None}
    known = {gpu.stable_id: gpu for gpu in rows.devices
             if gpu.kind == device_rules.DeviceKind.PCI
             and gpu.parent_id is None}
    used = {rows.gpu_of(device).id for device in rows.devices
            if device.state in device_rules.ASSIGNED_STATES}
    goals = {place: card for place in found
             if (card := _coming(place, known, found, used)) is not None}
    while True:
        others = {place: gpu for place, gpu in known.items()
                  if place in found and gpu not in goals.values()
                  and (place in goals or _difference(gpu, found[place]))}
        kept = {place for place, gpu in others.items() if gpu.id in used}
        if kept.isdisjoint(goals):
            break
        # A card that cannot come stays, and may keep another one away.
        goals = {place: card for place, card in goals.items()
                 if place not in kept}
    for place in kept:
        rows = _note(rows, others[place], found[place])
    for place, gpu in others.items():
        if place not in kept:
            rows = _leave(rows, gpu)
    # Two cards may have exchanged their places.
    for card in goals.values():
        rows = _move(rows, card, _away(card))
    for place, card in goals.items():
        rows = _come(rows, rows.now(card), place, others.get(place))
    return Followed(
        rows=rows, kept=kept, moved=goals.keys(),
        displaced={gpu.stable_id: rows.now(gpu)
                   for gpu in (*others.values(), *goals.values())
                   if gpu.stable_id in found.keys() - kept})


def _coming(place: str, known: Mapping[str, _Device],
            found: Mapping[str, pci.Identity],
            used: Collection[int]) -> _Device | None:
    """Return the row of the card that came to a place, if it was elsewhere.

    A number that several cards show, as the GPUs of one board may, tells
    nothing. One that a guest has may not show its number.

    :param known: GPUs by their places before the scan
    :param found: what the scan found, by place
    :param used: ids of GPUs of which a guest has a part
    """
    now = found[place]
    if place in known and now.has_number_of(
            device_db.identity(known[place])):
        return None
    candidates = [gpu for gpu in known.values()
                  if now.has_number_of(device_db.identity(gpu))]
    if len(candidates) != 1 or sum(map(now.has_number_of,
                                       found.values())) != 1:
        return None
    [gpu] = candidates
    stays = (gpu.id in used and gpu.stable_id in found
             and _difference(gpu, found[gpu.stable_id]) is None)
    return None if stays else gpu


def _difference(gpu: _Device, now: pci.Identity) -> str | None:
    return device_db.identity(gpu).difference(now)


def _parts(rows: _Rows, gpu: _Device) -> list[_Device]:
    """Return a GPU, its VFs and the mdev rows on any of them.

    What is below its place may be another card: a switch may have been there.
    """
    return [device for device in rows.devices
            if rows.gpu_of(device).id == gpu.id]


def _move(rows: _Rows, gpu: _Device, place: str) -> _Rows:
    """Let a GPU and its parts have another place."""
    before = len(rows.now(gpu).stable_id)
    return rows.put(*(dataclasses.replace(
        device, stable_id=place + device.stable_id[before:])
        for device in _parts(rows, gpu)))


def _note(rows: _Rows, gpu: _Device, now: pci.Identity) -> _Rows:
    """Note that another card is in the place of a GPU that a guest has."""
    difference = _difference(gpu, now)
    return rows if not gpu.present else rows.note('swapped', [gpu], (
        'another device is in its place' + (
            f': {difference}' if difference else '')))


def _leave(rows: _Rows, gpu: _Device) -> _Rows:
    """Let a GPU give up its place; where that was is in its PCI function."""
    for device in _parts(rows, gpu):
        rows = holds.end_request(rows, device)
    return _move(rows, gpu, _away(gpu))


def _away(gpu: _Device) -> str:
    """Return the stable id of a GPU that has no place."""
    return f'away-{gpu.uuid}'


def _come(rows: _Rows, gpu: _Device, place: str,
          before: _Device | None) -> _Rows:
    """Let a GPU have the place in which its card was found.

    Nobody knows what happened to the card in between. It may be what was in
    the place before, and did not show its number.

    :param before: GPU that was in the place
    """
    was_used = before is not None and any(
        part.cleaned_steps == device_db.NOTHING_PASSED
        for part in rows.with_vfs(rows.now(before)))
    rows = _move(rows, gpu, place).change(gpu, replaced_by=None)
    for part in rows.with_vfs(rows.now(gpu)):
        steps = device_db.NOTHING_PASSED if was_used or (
            part.cleaned_steps == device_db.NOTHING_PASSED) else None
        rows = holds.end_request(rows, part)
        rows = rows.change(part, new_in_place=True, cleaned_steps=steps)
    return rows.note('distrust', [rows.now(gpu)], f'it was found at {place}')


def hold_changed(rows: _Rows, device: _Device, reason: str) -> _Rows:
    """Hold a device until an operator accepts it."""
    return holds.add(rows.note('swapped', [rows.now(device)], reason),
                     device, _CHANGED, reason)


def remembered(device: _Device,
               function: pci.PCIFunction) -> pci.PCIFunction:
    """Return a function with what it does not show now, but showed before.

    These are its ids and numbers and, while a VFIO driver has it, its xGMI
    hive.

    :param device: as it was before the scan
    """
    known = device_db.identity(device).after(pci.Identity.of(function))
    hive = function.hive
    if hive is None and vfio.is_vfio(function.driver):
        hive = device_db.pci_function(device).hive
    return dataclasses.replace(
        function, hive=hive, **dataclasses.asdict(known))


# -- Cards that another host had before, or may have had meanwhile.
#
# A clean verdict does not travel: what was cleaned elsewhere, or here before
# the card was elsewhere, is cleaned once more here. Only what an operator
# decided of a card follows its number: it stays quarantined or retired.
#
# Sightings are ordered by their ids, not by clocks. A GPU keeps the newest
# sighting of its number elsewhere that it has taken into account, so that two
# GPUs that show one number are each cleaned once.


Sighting = sighting_db.Sighting
Decisions = Mapping[str, Sequence[sighting_db.SightingDecision]]
"""Decisions of operators on GPUs of other hosts, by the UUID of the GPU."""


def check_sightings(rows: _Rows, seen: Sequence[Sighting],
                    decisions: Decisions,
                    found: Collection[str], new: Collection[str],
                    returned: Collection[str], *, rebooted: bool,
                    ) -> tuple[_Rows, list[Sighting]]:
    """Withdraw the verdicts of GPUs that were away, or may have been.

    :param seen: sightings of all numbers that the GPUs show, in any place, in
        their order
    :param found: stable ids of the functions that the scan found
    :param new: those of them that no scan found there before
    :param returned: those that the scan before had missed
    :param rebooted: while the host was off, a card may have left and returned
    :returns: the rows, and the sightings that there are now
    """
    gpus = [gpu for gpu in rows.devices
            if gpu.stable_id in found and gpu.parent_id is None]
    after = {row.id: row for row in seen}
    added = []
    for gpu in gpus:
        if gpu.stable_id in returned:
            rows = holds.distrust(rows, gpu, 'it was missing')
    for gpu in gpus:
        row = _own(gpu, seen)
        if row is None:
            continue
        came = gpu.stable_id in new or gpu.stable_id in returned
        rows, now = _compared(
            rows, gpu, row, [other for other in seen
                             if other.device_uuid != gpu.uuid
                             and _is_number_of(row, other)],
            decisions, came=came, may_have_moved=rebooted or not row.id)
        after.pop(row.id, None)
        if now.id:
            after[now.id] = now
        else:
            added.append(now)
    return rows, [*after.values(), *added]


def _own(gpu: _Device, seen: Sequence[Sighting]) -> Sighting | None:
    """Return the sighting of a GPU, maybe a new one; None: it has no number.
    """
    card = sighting_db.numbers(device_db.identity(gpu))
    return None if not any(card) else next(
        (row for row in seen if row.device_uuid == gpu.uuid
         and (row.dsn, row.serial) == card),
        Sighting(0, gpu.uuid, *card, known=0, host_id=gpu.host_id))


def _is_number_of(row: Sighting, other: Sighting) -> bool:
    return (row.dsn is not None and row.dsn == other.dsn) or (
        row.serial is not None and row.serial == other.serial)


def _compared(rows: _Rows, gpu: _Device, row: Sighting,
              others: Sequence[Sighting], decisions: Decisions, *,
              came: bool, may_have_moved: bool) -> tuple[_Rows, Sighting]:
    """Take into account where else the number of a GPU was found.

    :param row: its own sighting; a new one, which is the newest of all, if it
        was elsewhere meanwhile
    :param came: it is new in its place, so it has no verdict
    :param may_have_moved: its host was off, or never showed this number here
    """
    if came:
        row = row._replace(id=0)
    news = [other for other in others if other.id > row.known]
    if not news or len({
            other.host_id for other in others}) > sighting_db.MAX_HOSTS:
        return rows, row
    # What an operator decides later of the card is not asked again.
    row = row._replace(known=news[-1].id)
    if not came and not may_have_moved:
        # It was here all the time: the other card only has its number.
        return rows, row
    if not came and any(other.host_id != gpu.host_id for other in news):
        rows = holds.distrust(
            rows, gpu, 'another host showed the number of its card')
        row = row._replace(id=0)
    for other in reversed(news):
        decided = decisions.get(other.device_uuid, ()) if (
            other.host_id != gpu.host_id) else _decided_here(
                rows, gpu, other.device_uuid)
        if decided:
            return _follow(rows, gpu, decided), row
    return rows, row


def _decided_here(rows: _Rows, gpu: _Device,
                  uuid: str) -> list[sighting_db.SightingDecision]:
    """Return what operators decided of a card in another place of its host.

    If the host finds two cards that show one number, as the GPUs of one board
    may, they are two.
    """
    before = rows.device(uuid)
    if before.present and _is_number_of(
            *(Sighting(0, '', *sighting_db.numbers(device_db.identity(
                device)), known=0, host_id=None) for device in (before, gpu))):
        return []
    return [sighting_db.SightingDecision(
        rows.host.name, before.address, kind, held.reason, held.actor)
        for device in rows.with_vfs(before)
        for kind, held in rows.holds_of(device).items()
        if kind in device_rules.DECIDED]


def _follow(rows: _Rows, gpu: _Device,
            decided: Sequence[sighting_db.SightingDecision]) -> _Rows:
    """Give a GPU what an operator decided of its card in another place."""
    for host, address, kind, reason, actor in decided:
        text = f'it was {kind} at {address} of {host}' + (
            f': {reason}' if reason else '')
        if kind not in rows.holds_of(gpu):
            rows = holds.add(rows, gpu, device_rules.HoldKind(kind), text,
                             actor).note('moved', [gpu], text)
    return rows
