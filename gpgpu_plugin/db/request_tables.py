# SPDX-License-Identifier: Apache-2.0
"""Tables of the requests that arrived; ``models`` makes them part of all."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import column


class RequestKind(column.Base):
    """Requests that schedulers were asked for, of one kind.

    ``vcpus``, ``memory_mib``, ``resource_class``, ``units``: the kind; an
    empty class: no GPUs. ``weight``: how many there were, each multiplied by a
    number that grows with time (db.request_kind): older ones count less
    without a write. ``arrivals``: how many there were.

    Unique key: a kind is counted in one row.
    """

    __tablename__ = 'request_kinds'
    __table_args__ = (sa.UniqueConstraint(
        'vcpus', 'memory_mib', 'resource_class', 'units',
        name='uq_request_kinds_kind'),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    vcpus: orm.Mapped[int]
    memory_mib: orm.Mapped[int]
    resource_class: orm.Mapped[str] = orm.mapped_column(column.NAME)
    units: orm.Mapped[int]
    weight: orm.Mapped[float] = orm.mapped_column(
        sa.Double(), default=0, server_default='0')
    arrivals: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0, server_default='0')


class CountedInstance(column.Base):
    """Instance whose request is in ``request_kinds``, for an hour.

    ``instance_uuid``: primary key, since schedulers and Nova's notifications
    name an instance several times, and it counts once. ``at``: when it was
    counted, in seconds since the epoch by a conductor's clock.

    Index: old rows are deleted.
    """

    __tablename__ = 'counted_instances'
    __table_args__ = (sa.Index('ix_counted_instances_at', 'at'),)
    instance_uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, primary_key=True)
    at: orm.Mapped[float] = orm.mapped_column(
        sa.Double(), default=0, server_default='0')
