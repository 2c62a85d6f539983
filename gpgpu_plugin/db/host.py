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
    """Return the live host of a name, not locked."""
    return _exact(session.scalar(sa.select(models.Host).where(
        models.Host.name == name, models.Host.deleted == 0)), name)


def _exact(host: models.Host | None, name: str) -> models.Host | None:
    """Return the host if it has the name; MariaDB compares without case."""
    return host if host is not None and host.name == name else None


def get(session: orm.Session, name: str) -> models.Host:
    """Return the live host of a name, not locked.

    :raises NotFound: it never reported, or was deleted
    """
    host = find(session, name)
    if host is None:
        raise exception.NotFound(kind='host', name=name)
    return host


def last_generation(session: orm.Session, name: str, node_uuid: str) -> int:
    """Return the highest generation of deleted hosts of a name or a node.

    The host's resource tracker and the schedulers may still have data of that
    generation, and drop everything with a lower one.
    """
    return session.scalar(
        sa.select(sa.func.max(models.Host.generation)).where(
            models.Host.deleted != 0,
            sa.or_(models.Host.name == name,
                   models.Host.node_uuid == node_uuid))) or 0


def lock(session: orm.Session, name: str) -> models.Host | None:
    """Return the live host, locked until the transaction ends.

    Must be the transaction's first statement (see db.api).
    """
    return _exact(session.scalar(
        sa.select(models.Host)
        .where(models.Host.name == name, models.Host.deleted == 0)
        .with_for_update().execution_options(populate_existing=True)), name)


def lock_ids(session: orm.Session,
             ids: list[int]) -> list[models.Host]:
    """Return hosts by id, locked in the order that all writers keep."""
    return list(session.scalars(
        sa.select(models.Host).where(models.Host.id.in_(ids))
        .order_by(models.Host.id).with_for_update()
        .execution_options(populate_existing=True)))


def lock_all(session: orm.Session) -> list[models.Host]:
    """Return all live hosts, locked in the order that all writers keep."""
    return list(session.scalars(
        sa.select(models.Host).where(models.Host.deleted == 0)
        .order_by(models.Host.id).with_for_update()
        .execution_options(populate_existing=True)))


def by_node_uuid(session: orm.Session, node_uuid: str) -> models.Host | None:
    """Return the live host of a compute node, not locked."""
    return session.scalar(sa.select(models.Host).where(
        models.Host.node_uuid == node_uuid, models.Host.deleted == 0))


def all(session: orm.Session) -> list[models.Host]:
    """Return all live hosts by name, not locked."""
    return list(session.scalars(
        sa.select(models.Host).where(models.Host.deleted == 0)
        .order_by(models.Host.name)))


def has_unnumbered(session: orm.Session) -> bool:
    """Return whether a change of some host has no number yet."""
    return session.scalar(
        sa.select(models.Host.id)
        .where(models.Host.change_number.is_(None)).limit(1)) is not None


def lock_unnumbered(session: orm.Session) -> list[models.Host]:
    """Return hosts whose change has no number, including deleted ones, locked.

    A host that is being changed right now is skipped: its writer leaves it
    without a number, and the next reader finds it.
    """
    return list(session.scalars(
        sa.select(models.Host).where(models.Host.change_number.is_(None))
        .order_by(models.Host.id).with_for_update(skip_locked=True)
        .execution_options(populate_existing=True)))


def changed_since(session: orm.Session, number: int) -> list[models.Host]:
    """Return hosts, also deleted ones, that changed after a number."""
    return list(session.scalars(
        sa.select(models.Host).where(models.Host.change_number > number)
        .order_by(models.Host.change_number)))


def last_number(session: orm.Session) -> int:
    """Return the highest number of a change; 0 if there is none."""
    return session.scalar(
        sa.select(sa.func.max(models.Host.change_number))) or 0


def changed(host: models.Host) -> None:
    """Mark the (locked) host as changed."""
    host.generation += 1
    host.change_number = None


def lock_row(session: orm.Session, name: str) -> models.Lock:
    """Return one row of ``locks``, locked until the transaction ends."""
    return session.scalars(
        sa.select(models.Lock).where(models.Lock.name == name)
        .with_for_update()).one()


def heard(session: orm.Session, host_id: int, at: float) -> None:
    """Record when a host called, without a lock beforehand."""
    session.execute(
        sa.update(models.Host).where(models.Host.id == host_id)
        .values(heard_at=at).execution_options(synchronize_session=False))
