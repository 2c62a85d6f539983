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
"""Rows of ``hosts``, and the lock that orders everything about one host."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import models


def find(session: orm.Session, name: str) -> models.Host | None:
    """The live host of a name, not locked."""
    return session.scalar(sa.select(models.Host).where(
        models.Host.name == name, models.Host.deleted == 0))


def get(session: orm.Session, name: str) -> models.Host:
    """The live host of a name, not locked.

    :raises NotFound: it never reported, or was deleted
    """
    host = find(session, name)
    if host is None:
        raise exception.NotFound(kind='host', name=name)
    return host


def last_generation(session: orm.Session, name: str, node_uuid: str) -> int:
    """Return the highest generation of deleted hosts of a name or a node.

    What a host's name or node once had, its tracker and the schedulers may
    still have; they drop what has a lower generation.
    """
    return session.scalar(
        sa.select(sa.func.max(models.Host.generation)).where(
            models.Host.deleted != 0,
            sa.or_(models.Host.name == name,
                   models.Host.node_uuid == node_uuid))) or 0


def lock(session: orm.Session, name: str) -> models.Host | None:
    """The live host, locked until the transaction ends.

    Must be the transaction's first statement (see db.api).
    """
    return session.scalar(
        sa.select(models.Host)
        .where(models.Host.name == name, models.Host.deleted == 0)
        .with_for_update().execution_options(populate_existing=True))


def lock_ids(session: orm.Session,
             ids: list[int]) -> list[models.Host]:
    """Hosts by id, locked in the order that all writers keep."""
    return list(session.scalars(
        sa.select(models.Host).where(models.Host.id.in_(ids))
        .order_by(models.Host.id).with_for_update()
        .execution_options(populate_existing=True)))


def lock_all(session: orm.Session) -> list[models.Host]:
    """All live hosts, locked in the order that all writers keep."""
    return list(session.scalars(
        sa.select(models.Host).where(models.Host.deleted == 0)
        .order_by(models.Host.id).with_for_update()
        .execution_options(populate_existing=True)))


def changed(host: models.Host) -> None:
    """Note that something of the (locked) host changes."""
    host.generation += 1
    host.change_number = None


def lock_row(session: orm.Session, name: str) -> models.Lock:
    """One row of ``locks``, locked until the transaction ends."""
    return session.scalars(
        sa.select(models.Lock).where(models.Lock.name == name)
        .with_for_update()).one()
