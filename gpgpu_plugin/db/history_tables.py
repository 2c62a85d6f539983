# SPDX-License-Identifier: Apache-2.0
"""Tables of the history: usage of devices, and events.

Their rows outlive the objects that they name. ``models`` imports them.
"""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import column


class Usage(column.Base):
    """Usage of a device by an instance, from its beginning.

    It stands by itself, so that it outlives what it names: host, device,
    variant, flavor and assignment.
    ``assignment_uuid``: the assignment. ``instance_uuid``, ``role``,
    ``project_id``, ``user_id``: who used the device, as in ``assignments``.
    ``flavor``: its name at the time of the claim. ``host``,
    ``device_uuid``, ``address``, ``serial``, ``variant``, ``vgpu_type``,
    ``resource_class``: what was used, as it was in the beginning. The serial
    number of a vGPU is that of its GPU; NULL: unknown. ``began_at``,
    ``ended_at``: when (UTC, whole seconds); NULL: it goes on.
    ``exported_at``: when ``usage export`` wrote it; NULL: not yet.

    Unique key: the usage of an assignment is kept once, and the UUID remains
    known. Indexes: the usage of a project, of a host and of all in a period;
    the usage of an instance, which ends elsewhere when it moves; what is to
    be exported, in the order of the end.
    """

    __tablename__ = 'usages'
    __table_args__ = (sa.UniqueConstraint('assignment_uuid'),
                      sa.Index(None, 'project_id', 'ended_at'),
                      sa.Index(None, 'host', 'ended_at'),
                      sa.Index(None, 'ended_at'),
                      sa.Index(None, 'instance_uuid'),
                      sa.Index(None, 'exported_at', 'ended_at'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    assignment_uuid: orm.Mapped[str] = orm.mapped_column(column.UUID)
    instance_uuid: orm.Mapped[str] = orm.mapped_column(column.UUID)
    role: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    project_id: orm.Mapped[str] = orm.mapped_column(column.NAME)
    user_id: orm.Mapped[str] = orm.mapped_column(column.NAME)
    flavor: orm.Mapped[str] = orm.mapped_column(column.NAME)
    host: orm.Mapped[str] = orm.mapped_column(column.NAME)
    device_uuid: orm.Mapped[str] = orm.mapped_column(column.UUID)
    address: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    serial: orm.Mapped[str | None] = orm.mapped_column(column.NAME)
    variant: orm.Mapped[str | None] = orm.mapped_column(sa.String(64))
    vgpu_type: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    resource_class: orm.Mapped[str] = orm.mapped_column(column.NAME)
    began_at: orm.Mapped[datetime.datetime] = orm.mapped_column(
        server_default=column.UNKNOWN_TIME)
    ended_at: orm.Mapped[datetime.datetime | None]
    exported_at: orm.Mapped[datetime.datetime | None]


class Event(column.Base):
    """An entry of the history, written in the transaction of the change.

    It has no foreign keys, so that it outlives the objects that it names.
    ``at``: when it happened (UTC). ``kind``: what happened. ``host``,
    ``device_uuid``, ``assignment_uuid``, ``instance_uuid``: the objects that
    it concerns, if any. ``project_id``: of the instance. ``actor``: who caused
    it, see db.author. ``request_id``: of the
    user's request to Nova, or else of the call that caused it. ``reason``:
    name of the reason of a refusal. ``detail``: further information for
    operators. ``count``: how many equal refusals the row stands for.

    Indexes: the history of a device and of an instance; the oldest events,
    which ``db purge`` deletes; the newest events of a host, a kind or a
    project, and those of a request, for ``event list``.
    """

    __tablename__ = 'events'
    __table_args__ = (sa.Index(None, 'device_uuid'),
                      sa.Index(None, 'instance_uuid'),
                      sa.Index(None, 'at'),
                      sa.Index(None, 'host', 'id'),
                      sa.Index(None, 'kind', 'id'),
                      sa.Index(None, 'project_id', 'id'),
                      sa.Index(None, 'request_id'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    at: orm.Mapped[datetime.datetime] = orm.mapped_column(
        server_default=column.UNKNOWN_TIME)
    kind: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    host: orm.Mapped[str | None] = orm.mapped_column(column.NAME)
    device_uuid: orm.Mapped[str | None] = orm.mapped_column(column.UUID)
    assignment_uuid: orm.Mapped[str | None] = orm.mapped_column(column.UUID)
    instance_uuid: orm.Mapped[str | None] = orm.mapped_column(column.UUID)
    project_id: orm.Mapped[str | None] = orm.mapped_column(column.NAME)
    actor: orm.Mapped[str] = orm.mapped_column(column.NAME)
    request_id: orm.Mapped[str | None] = orm.mapped_column(sa.String(40))
    reason: orm.Mapped[str | None] = orm.mapped_column(sa.String(64))
    detail: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    count: orm.Mapped[int] = orm.mapped_column(
        default=1, server_default='1')
