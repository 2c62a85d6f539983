# SPDX-License-Identifier: Apache-2.0
"""Table ``sightings``: where GPUs with a number were found, in this order.

VFs, mdev rows and GPUs that show no number have none. A GPU that was missing
gets a new row when it returns, so that the ids are in the order in which cards
came to their places. The row of a GPU whose host was deleted stays if another
GPU has its number. Indexes: the rows of a GPU, and of a number.
"""

from __future__ import annotations

import collections
import typing
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device
from gpgpu_plugin.domain import pci

MAX_HOSTS = 64
"""Hosts that may show one number; a number of more hosts identifies none."""

_MAX_ROWS = 1024
"""Sightings that are read at once; those of a number without meaning."""

_MAX_LENGTH = 255
"""Characters of a number that are stored and compared."""


Numbers = tuple[str | None, str | None]
"""DSN and serial number of a card."""


TABLE = sa.Table(
    'sightings', tables.METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('device_uuid', tables.UUID, nullable=False,
              comment='UUID of the GPU.'),
    sa.Column('dsn', tables.NAME,
              comment='PCIe Device Serial Number; NULL: none is known.'),
    sa.Column('serial', tables.NAME,
              comment='Serial number of the VPD, in upper case; NULL: none is '
              'known.'),
    sa.Column('known', sa.Integer, nullable=False, default=0,
              comment='Newest sighting of the card elsewhere that its verdict '
              'here takes into account; 0: none.'),
    sa.Index(None, 'device_uuid'),
    sa.Index(None, 'dsn'),
    sa.Index(None, 'serial'),
    sqlite_autoincrement=True)
_DEVICES = tables.DEVICES
_HOSTS = tables.HOSTS
_HOLDS = tables.HOLDS


class Sighting(typing.NamedTuple):
    """A row of the table, and the host of the GPU.

    ``id``: 0: it is not stored yet. ``host_id``: None: the host was deleted.
    """

    id: int
    device_uuid: str
    dsn: str | None
    serial: str | None
    known: int
    host_id: int | None


class SightingDecision(typing.NamedTuple):
    """A hold with which an operator withdrew a card, and where that was."""

    host: str
    address: str
    kind: str
    reason: str | None
    actor: str | None


def numbers(identity: pci.Identity) -> Numbers:
    """Return the numbers of a device as they are compared: DSN and serial.

    Databases differ in whether the case of letters counts.
    """
    return (identity.dsn and identity.dsn[:_MAX_LENGTH],
            identity.serial and identity.serial.upper()[:_MAX_LENGTH])


def of_cards(session: orm.Session, device_uuids: Collection[str],
             known: Collection[Numbers]) -> list[Sighting]:
    """Return the sightings of GPUs, and those of some numbers in any place.

    :param device_uuids: of the GPUs
    :param known: the numbers
    :returns: those of these GPUs, and the newest of others, by id
    """
    dsns = {dsn for dsn, _ in known if dsn}
    serials = {serial for _, serial in known if serial}
    if not dsns and not serials:
        return []
    found: Iterable[Sequence[typing.Any]] = session.execute(
        sa.select(*TABLE.c, _DEVICES.c.host_id)
        .outerjoin(_DEVICES, _DEVICES.c.uuid == TABLE.c.device_uuid)
        .where(sa.or_(TABLE.c.dsn.in_(dsns), TABLE.c.serial.in_(serials)))
        .order_by(TABLE.c.device_uuid.in_(list(device_uuids)).desc(),
                  TABLE.c.id.desc())
        .limit(_MAX_ROWS + len(device_uuids)))
    return sorted(Sighting(*row) for row in found)


def decisions(session: orm.Session, device_uuids: Collection[str],
              ) -> Mapping[str, Sequence[SightingDecision]]:
    """Return what operators decided of GPUs or their VFs, by the GPU's UUID.
    """
    found = collections.defaultdict(list)
    part = _DEVICES.alias()
    for uuid, *row in session.execute(
            sa.select(_DEVICES.c.uuid, _HOSTS.c.name, _DEVICES.c.address,
                      _HOLDS.c.kind, _HOLDS.c.reason, _HOLDS.c.actor)
            .join(_HOSTS, _HOSTS.c.id == _DEVICES.c.host_id)
            .join(part, _DEVICES.c.id.in_([part.c.id, part.c.parent_id]))
            .join(_HOLDS, _HOLDS.c.device_id == part.c.id)
            .where(_DEVICES.c.uuid.in_(device_uuids),
                   _HOLDS.c.kind.in_(sorted(device.DECIDED)))
            .order_by(part.c.parent_id.is_not(None), _HOLDS.c.id)):
        found[uuid].append(SightingDecision(*row))
    return found


def store(session: orm.Session, before: Collection[Sighting],
          after: Collection[Sighting]) -> None:
    """Store which sightings there are now of those that there were."""
    known = {row.id: row for row in before}
    gone = known.keys() - {row.id for row in after}
    if gone:
        session.execute(sa.delete(TABLE).where(TABLE.c.id.in_(gone)))
    for row in after:
        if row.id and row != known[row.id]:
            session.execute(sa.update(TABLE).where(
                TABLE.c.id == row.id).values(known=row.known))
    new = [{'device_uuid': row.device_uuid, 'dsn': row.dsn,
            'serial': row.serial, 'known': row.known}
           for row in after if not row.id]
    if new:
        session.execute(sa.insert(TABLE), new)


def delete_of_host(session: orm.Session, host_id: int) -> None:
    """Delete the sightings of a host's GPUs, unless others show the number.

    A card that was on this host, and returns to one that was off all the
    time, has been elsewhere.
    """
    other = TABLE.alias()
    ids = session.scalars(
        sa.select(TABLE.c.id)
        .join(_DEVICES, _DEVICES.c.uuid == TABLE.c.device_uuid)
        .where(_DEVICES.c.host_id == host_id, ~sa.exists().where(
            other.c.device_uuid != TABLE.c.device_uuid,
            sa.or_(other.c.dsn == TABLE.c.dsn,
                   other.c.serial == TABLE.c.serial)))).all()
    session.execute(sa.delete(TABLE).where(TABLE.c.id.in_(ids)))
