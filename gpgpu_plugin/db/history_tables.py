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

    It stands by itself, so that it outlives what it names: all names are as
    they were in the beginning.

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
    assignment_uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='UUID of the assignment.')
    instance_uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='Instance that used the device.')
    role: orm.Mapped[str] = orm.mapped_column(
        sa.String(16), comment='Role of the assignment.')
    project_id: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Project of the instance.')
    user_id: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='User who created the instance.')
    flavor: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Name of the flavor that was claimed for.')
    host: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Name of the host.')
    device_uuid: orm.Mapped[str] = orm.mapped_column(
        column.UUID, comment='UUID of the device.')
    address: orm.Mapped[str] = orm.mapped_column(
        sa.String(32), comment='PCI address of the device.')
    serial: orm.Mapped[str | None] = orm.mapped_column(
        column.NAME, comment='Serial number of the GPU; NULL: unknown.')
    variant: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(64),
        comment='Name of the variant; NULL: the device was in no group.')
    vgpu_type: orm.Mapped[str] = orm.mapped_column(
        sa.String(64), comment='Type that was claimed.')
    resource_class: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Class that Placement allocated for it.')
    began_at: orm.Mapped[datetime.datetime] = orm.mapped_column(
        comment='When it began (UTC, whole seconds).')
    ended_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        comment='When it ended (UTC, whole seconds); NULL: it goes on.')
    exported_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        comment='When "usage export" wrote it (UTC); NULL: not yet.')


class Event(column.Base):
    """An entry of the history, written in the transaction of the change.

    It has no foreign keys, so that it outlives the objects that it names.

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
        comment='When it happened (UTC).')
    kind: orm.Mapped[str] = orm.mapped_column(
        sa.String(32), comment='What happened.')
    host: orm.Mapped[str | None] = orm.mapped_column(
        column.NAME, comment='Name of the host that it concerns, if any.')
    device_uuid: orm.Mapped[str | None] = orm.mapped_column(
        column.UUID, comment='UUID of the device that it concerns, if any.')
    assignment_uuid: orm.Mapped[str | None] = orm.mapped_column(
        column.UUID,
        comment='UUID of the assignment that it concerns, if any.')
    instance_uuid: orm.Mapped[str | None] = orm.mapped_column(
        column.UUID, comment='UUID of the instance that it concerns, if any.')
    project_id: orm.Mapped[str | None] = orm.mapped_column(
        column.NAME, comment='Project of that instance.')
    actor: orm.Mapped[str] = orm.mapped_column(
        column.NAME, comment='Who caused it, such as "host compute1".')
    request_id: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(40),
        comment='Request of the user to Nova, or else the call that caused '
        'it; NULL: no call did.')
    reason: orm.Mapped[str | None] = orm.mapped_column(
        sa.String(64), comment='Name of the reason of a refusal.')
    detail: orm.Mapped[str | None] = orm.mapped_column(
        sa.Text, comment='Further information for operators.')
    count: orm.Mapped[int] = orm.mapped_column(
        default=1, comment='How many equal refusals the row stands for.')
