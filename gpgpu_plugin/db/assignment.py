#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Rows of ``assignments``."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import models


def active(session: orm.Session, *where: sa.ColumnElement[bool],
           ) -> list[models.Assignment]:
    """Holdings that last, in the order in which they were granted."""
    return list(session.scalars(
        sa.select(models.Assignment)
        .where(models.Assignment.active == 1, *where)
        .order_by(models.Assignment.id)))


def host_ids(session: orm.Session, uuids: Sequence[str]) -> set[int]:
    """Ids of the hosts of assignments, ended ones too."""
    return set(session.scalars(
        sa.select(models.Assignment.host_id)
        .where(models.Assignment.uuid.in_(list(uuids)))))


def places(session: orm.Session, host_id: int,
           names: Collection[str]) -> dict[str, str]:
    """Stable ids of the devices of those names that are assignments of a
    host, ended ones too."""
    if not names:
        return {}
    return dict(session.execute(
        sa.select(models.Assignment.uuid, models.Device.stable_id)
        .join(models.Device).where(
            models.Assignment.host_id == host_id,
            models.Assignment.uuid.in_(list(names)))).tuples().all())


def last_of(session: orm.Session,
            device_ids: Collection[int]) -> dict[int, str]:
    """UUIDs of the last assignments of devices, by the devices' ids."""
    newest = (sa.select(sa.func.max(models.Assignment.id))
              .where(models.Assignment.device_id.in_(list(device_ids)))
              .group_by(models.Assignment.device_id))
    return dict(session.execute(
        sa.select(models.Assignment.device_id, models.Assignment.uuid)
        .where(models.Assignment.id.in_(newest))).tuples().all())


def by_uuid(session: orm.Session,
            uuids: Sequence[str]) -> list[models.Assignment]:
    """Assignments, ended ones too."""
    return list(session.scalars(
        sa.select(models.Assignment)
        .where(models.Assignment.uuid.in_(list(uuids)))
        .order_by(models.Assignment.id)))
