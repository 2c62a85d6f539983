# SPDX-License-Identifier: Apache-2.0
"""Cards, and the places in which a scan of their host found them.

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

from gpgpu_plugin import vfio
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import pci

_Rows = host_rows.HostRows
_Device = host_rows.Device
_CHANGED = hold.HoldKind.IDENTITY_CHANGED


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
