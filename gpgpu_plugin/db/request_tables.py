# SPDX-License-Identifier: Apache-2.0
"""Tables of the requests that arrived; ``models`` makes them part of all."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import column


class RequestKind(column.Base):
    """Requests that schedulers were asked for, of one kind.

    Unique key: a kind is counted in one row.
    """

    __tablename__ = 'request_kinds'
    __table_args__ = (sa.UniqueConstraint(
        'vcpus', 'memory_mib', 'resource_class', 'units',
        name='uq_request_kinds_kind'),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    vcpus: orm.Mapped[int] = orm.mapped_column(
        comment='Number of vCPUs of an instance.')
    memory_mib: orm.Mapped[int] = orm.mapped_column(
        comment='MiB of RAM of an instance.')
    resource_class: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Class of its GPUs; empty: it has none.')
    units: orm.Mapped[int] = orm.mapped_column(
        comment='How many of the class it gets.')
    weight: orm.Mapped[float] = orm.mapped_column(
        sa.Double(), default=0,
        comment='How many there were, each multiplied by a number that grows '
        'with time: older ones count less without a write.')
    arrivals: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0, comment='How many there were.')


class CountedInstance(column.Base):
    """Instance whose request is in ``request_kinds``, for an hour.

    Primary key: schedulers and Nova's notifications name an instance several
    times, and it counts once. Index: old rows are deleted.
    """

    __tablename__ = 'counted_instances'
    __table_args__ = (sa.Index('ix_counted_instances_at', 'at'),)
    instance_uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, primary_key=True, comment='UUID of the instance.')
    at: orm.Mapped[float] = orm.mapped_column(
        sa.Double(), comment='When it was counted, in seconds since the '
        'epoch.')
