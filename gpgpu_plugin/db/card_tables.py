# SPDX-License-Identifier: Apache-2.0
"""Table of the serial numbers of GPUs; ``models`` makes it part of all."""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import column


class Card(column.Base):
    """Serial numbers of a GPU, by which it is recognised in another place.

    VFs, mdev rows and GPUs that show no number have no row.

    ``device_uuid``: the GPU. The row of one whose host was deleted stays if
    the card was not clean; ``whole_unclean`` then tells whether that was so of
    the whole card, not only of its VFs or mdevs.
    ``dsn``, ``serial``: its PCIe Device Serial Number and the serial number of
    its VPD (domain.pci.Identity); NULL: none is known. ``found_at``: when a
    scan found it in its place (UTC); of the devices with one number, the one
    that was found last is where the card was last. ``waits_for``: UUID of the
    device, on a host that may be alive, that showed the same number; until it
    is known whether the card was moved, this one is not cleaned.

    Unique keys: the numbers of a device. Indexes: the devices with a number.
    """

    __tablename__ = 'card_numbers'
    __table_args__ = (sa.UniqueConstraint('device_uuid'),
                      sa.Index(None, 'dsn'), sa.Index(None, 'serial'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    device_uuid: orm.Mapped[str] = orm.mapped_column(column.UUID)
    dsn: orm.Mapped[str | None] = orm.mapped_column(column.NAME)
    serial: orm.Mapped[str | None] = orm.mapped_column(column.NAME)
    found_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        sa.DateTime)
    waits_for: orm.Mapped[str | None] = orm.mapped_column(column.UUID)
    whole_unclean: orm.Mapped[bool] = orm.mapped_column(
        default=False, server_default='0')
