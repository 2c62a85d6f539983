# SPDX-License-Identifier: Apache-2.0
"""Cards that another host had before, or may have had meanwhile.

A clean verdict does not travel: what was cleaned elsewhere, or here before the
card was elsewhere, is cleaned once more here. Only what an operator decided of
a card follows its number: it stays quarantined or retired.

Sightings are ordered by their ids, not by clocks. A GPU keeps the newest
sighting of its number elsewhere that it has taken into account, so that two
GPUs that show one number are each cleaned once.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import sighting as sighting_db
from gpgpu_plugin.domain import hold

_Rows = host_rows.HostRows
_Device = host_rows.Device
Sighting = sighting_db.Sighting
Decisions = Mapping[str, Sequence[sighting_db.Decision]]
"""Decisions of operators on GPUs of other hosts, by the UUID of the GPU."""


def check(rows: _Rows, seen: Sequence[Sighting], decisions: Decisions,
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
            rows = recleaning.distrust(rows, gpu, 'it was missing')
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
        rows = recleaning.distrust(
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
                  uuid: str) -> list[sighting_db.Decision]:
    """Return what operators decided of a card in another place of its host.

    If the host finds two cards that show one number, as the GPUs of one board
    may, they are two.
    """
    before = rows.device(uuid)
    if before.present and _is_number_of(
            *(Sighting(0, '', *sighting_db.numbers(device_db.identity(
                device)), known=0, host_id=None) for device in (before, gpu))):
        return []
    return [sighting_db.Decision(
        rows.host.name, before.address, kind, held.reason, held.actor)
        for device in rows.with_vfs(before)
        for kind, held in rows.holds_of(device).items()
        if kind in hold.DECIDED]


def _follow(rows: _Rows, gpu: _Device,
            decided: Sequence[sighting_db.Decision]) -> _Rows:
    """Give a GPU what an operator decided of its card in another place."""
    for host, address, kind, reason, actor in decided:
        text = f'it was {kind} at {address} of {host}' + (
            f': {reason}' if reason else '')
        if kind not in rows.holds_of(gpu):
            rows = holds.add(rows, gpu, hold.HoldKind(kind), text,
                             actor).note('moved', [gpu], text)
    return rows
