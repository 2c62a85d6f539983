# SPDX-License-Identifier: Apache-2.0
"""Cards that a host finds in a place where they were not before.

A clean verdict does not travel: what was cleaned elsewhere, or here before the
card was elsewhere, is cleaned once more here. Only what an operator decided of
a card follows its number: it stays quarantined or retired.

Sightings are ordered by their ids, not by clocks. A GPU keeps the newest
sighting of its number elsewhere that it has taken into account, so that two
GPUs that show one number are each cleaned once.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import sighting as sighting_db
from gpgpu_plugin.domain import hold

_Elsewhere = tuple[sighting_db.Sighting, int | None]
"""A sighting of a number, and the id of its host; None: it was deleted."""


def check(session: orm.Session, rows: host_rows.HostRows,
          found: Collection[str], new: Collection[str],
          returned: Collection[str], *, rebooted: bool) -> host_rows.HostRows:
    """Withdraw the verdicts of GPUs that were away, or may have been.

    :param found: stable ids of the functions that the scan found
    :param new: those of them that no scan found before
    :param returned: those that the scan before had missed
    :param rebooted: while the host was off, a card may have left and returned
    """
    gpus = [gpu for gpu in rows.devices
            if gpu.stable_id in found and gpu.parent_id is None]
    for gpu in gpus:
        if gpu.stable_id in returned:
            rows = recleaning.distrust(rows, gpu, 'it was missing')
    numbers = {
        gpu.uuid: card for gpu in gpus
        if any(card := sighting_db.numbers(device_db.identity(gpu)))}
    seen = sighting_db.of_numbers(session, numbers)
    before = {row for row, _ in seen}
    came = {gpu.uuid for gpu in gpus if gpu.stable_id in {*new, *returned}}
    own = _rows(session, numbers, before, came)
    session.flush()
    for gpu in gpus:
        if gpu.uuid in own:
            row = own[gpu.uuid]
            rows = _compare(session, rows, gpu, row, [
                other for other in seen if other[0].device_uuid != gpu.uuid
                and _is_number_of(row, other[0])],
                came=gpu.uuid in came,
                may_have_moved=rebooted or row not in before)
    return rows


def _rows(session: orm.Session, numbers: Mapping[str, sighting_db.Numbers],
          seen: Iterable[sighting_db.Sighting], came: Collection[str],
          ) -> dict[str, sighting_db.Sighting]:
    """Return the sightings of the cards that GPUs are now, by UUID.

    :param came: UUIDs of those that are new in their place
    """
    rows = {row.device_uuid: row for row in seen
            if numbers.get(row.device_uuid) == (row.dsn, row.serial)}
    for uuid, (dsn, serial) in numbers.items():
        if uuid not in rows:
            rows[uuid] = sighting_db.Sighting(
                device_uuid=uuid, dsn=dsn, serial=serial, known=0)
            session.add(rows[uuid])
        elif uuid in came:
            rows[uuid] = _renew(session, rows[uuid])
    return rows


def _renew(session: orm.Session,
           row: sighting_db.Sighting) -> sighting_db.Sighting:
    """Return a new sighting of a card, which was elsewhere meanwhile."""
    session.delete(row)
    # What an operator decided since of the card is not asked again.
    new = sighting_db.Sighting(device_uuid=row.device_uuid, dsn=row.dsn,
                               serial=row.serial, known=row.known)
    session.add(new)
    return new


def _is_number_of(row: sighting_db.Sighting,
                  other: sighting_db.Sighting) -> bool:
    return (row.dsn is not None and row.dsn == other.dsn) or (
        row.serial is not None and row.serial == other.serial)


def _compare(session: orm.Session, rows: host_rows.HostRows,
             gpu: host_rows.Device, row: sighting_db.Sighting,
             others: Sequence[_Elsewhere], *,
             came: bool, may_have_moved: bool) -> host_rows.HostRows:
    """Take into account where else the number of a GPU was found.

    :param came: it is new in its place, so it has no verdict
    :param may_have_moved: its host was off, or never showed this number here
    """
    if len({host_id for _, host_id in others}) > sighting_db.MAX_HOSTS:
        return rows
    news = [(other, host_id) for other, host_id in others
            if other.id > row.known]
    if not news:
        return rows
    row.known = news[-1][0].id
    if not came and not may_have_moved:
        # It was here all the time: the other card only has its number.
        return rows
    if not came and any(host_id != rows.host.id for _, host_id in news):
        rows = recleaning.distrust(
            rows, gpu, 'another host showed the number of its card')
        _renew(session, row)
    for other, host_id in reversed(news):
        there = rows if host_id == rows.host.id else _rows_of(
            session, host_id)
        if there is not None:
            before = there.device(other.device_uuid)
            decided = _decided(there, before)
            if decided and not _is_other(rows, gpu, before):
                return _follow(rows, gpu, there, before, decided)
    return rows


def _rows_of(session: orm.Session,
             host_id: int | None) -> host_rows.HostRows | None:
    """Return the rows of another host; None: it was deleted."""
    return None if host_id is None else host_rows.load_one(
        session, *host_db.by_ids(session, [host_id]))


def _decided(rows: host_rows.HostRows,
             gpu: host_rows.Device) -> list[hold_db.Hold]:
    """Return the holds with which operators withdrew a card."""
    return [held for device in rows.with_vfs(gpu)
            for kind, held in rows.holds_of(device).items()
            if kind in hold.DECIDED]


def _is_other(rows: host_rows.HostRows, gpu: host_rows.Device,
              before: host_rows.Device) -> bool:
    """Return whether a host finds two cards that show one number.

    The GPUs of one board may.
    """
    return before.host_id == rows.host.id and before.present and any(
        number is not None and number == other for number, other in zip(
            *(sighting_db.numbers(device_db.identity(device))
              for device in (before, gpu)), strict=True))


def _follow(rows: host_rows.HostRows, gpu: host_rows.Device,
            there: host_rows.HostRows, before: host_rows.Device,
            decided: Iterable[hold_db.Hold]) -> host_rows.HostRows:
    """Give a GPU what an operator decided of its card in another place.

    :param before: the GPU of that place, among the rows of its host
    """
    for held in decided:
        text = (f'it was {held.kind} at {before.address} of {there.host.name}'
                + (f': {held.reason}' if held.reason else ''))
        if held.kind not in rows.holds_of(gpu):
            rows = holds.add(
                rows, gpu, hold.HoldKind(held.kind), text, held.actor,
            ).note('moved', [gpu], text)
    return rows
