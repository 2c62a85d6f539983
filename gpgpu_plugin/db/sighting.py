# SPDX-License-Identifier: Apache-2.0
"""Table ``sightings``: where GPUs with a number were found, in this order."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import column
from gpgpu_plugin.domain import pci

MAX_HOSTS = 64
"""Hosts that may show one number; a number of more hosts identifies none."""

_MAX_ROWS = 1024
"""Sightings that are read at once; those of a number without meaning."""

_LONGEST = 255
"""Characters of a number that are stored and compared."""


Numbers = tuple[str | None, str | None]
"""DSN and serial number of a card."""


class Sighting(column.Base):
    """A GPU that its host found in a place, with the numbers of its card.

    VFs, mdev rows and GPUs that show no number have none. A GPU that was
    missing gets a new row when it returns, so that the ids are in the order in
    which cards came to their places. If another card comes in its place, it
    has a row for each. The row of a GPU whose host was deleted stays if
    another GPU has its number.

    Indexes: the rows of a GPU, and of a number.
    """

    __tablename__ = 'sightings'
    __table_args__ = (sa.Index(None, 'device_uuid'), sa.Index(None, 'dsn'),
                      sa.Index(None, 'serial'),
                      {'sqlite_autoincrement': True})
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    device_uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='UUID of the GPU.')
    dsn: orm.Mapped[str | None] = orm.mapped_column(
        column.NAME, comment='PCIe Device Serial Number; NULL: none is known.')
    serial: orm.Mapped[str | None] = orm.mapped_column(
        column.NAME, comment='Serial number of the VPD, in upper case; NULL: '
                             'none is known.')
    known: orm.Mapped[int] = orm.mapped_column(
        default=0,
        comment='Newest sighting of the card elsewhere that its verdict here '
                'takes into account; 0: none.')


def numbers(identity: pci.Identity) -> Numbers:
    """Return the numbers of a device as they are compared: DSN and serial.

    Databases differ in whether the case of letters counts.
    """
    return (identity.dsn and identity.dsn[:_LONGEST],
            identity.serial and identity.serial.upper()[:_LONGEST])


def of_numbers(session: orm.Session, devices: Mapping[str, Numbers],
               ) -> list[tuple[Sighting, int | None]]:
    """Return the sightings of the numbers of some GPUs, in any place.

    :param devices: numbers of the cards by the UUIDs of the GPUs
    :returns: those of these GPUs, and the newest of others, by id; each with
        the id of its host (None: it was deleted)
    """
    if not devices:
        return []
    hosts = column.Base.metadata.tables['devices']
    dsns = {dsn for dsn, _ in devices.values() if dsn}
    serials = {serial for _, serial in devices.values() if serial}
    found = session.execute(
        sa.select(Sighting, hosts.c.host_id)
        .outerjoin(hosts, hosts.c.uuid == Sighting.device_uuid)
        .where(sa.or_(Sighting.dsn.in_(dsns), Sighting.serial.in_(serials)))
        .order_by(Sighting.device_uuid.in_(list(devices)).desc(),
                  Sighting.id.desc())
        .limit(_MAX_ROWS + len(devices))).tuples()
    return sorted(found, key=lambda row: row[0].id)


def move(session: orm.Session, device_uuid: str, card: Numbers,
         goal_uuid: str) -> None:
    """Let the sightings of a card in a place be those of another device."""
    session.execute(sa.update(Sighting).where(
        Sighting.device_uuid == device_uuid, Sighting.dsn == card[0],
        Sighting.serial == card[1]).values(device_uuid=goal_uuid))


def delete_of_host(session: orm.Session, host_id: int) -> None:
    """Delete the sightings of a host's GPUs, unless others show the number.

    A card that was on this host, and returns to one that was off all the
    time, has been elsewhere.
    """
    devices = column.Base.metadata.tables['devices']
    other = orm.aliased(Sighting)
    ids = session.scalars(
        sa.select(Sighting.id)
        .join(devices, devices.c.uuid == Sighting.device_uuid)
        .where(devices.c.host_id == host_id, ~sa.exists().where(
            other.device_uuid != Sighting.device_uuid,
            sa.or_(other.dsn == Sighting.dsn,
                   other.serial == Sighting.serial)))).all()
    session.execute(sa.delete(Sighting).where(Sighting.id.in_(ids)))
