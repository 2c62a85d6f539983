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

UNKNOWN_REQUEST = ''
"""``request`` of an assignment that was adopted from its host."""


def of_hosts(session: orm.Session,
             host_ids: Collection[int]) -> list[models.Assignment]:
    """Return the active assignments of hosts, in the order of their claims."""
    return _active(session, models.Assignment.host_id.in_(host_ids))


def of_instance(session: orm.Session,
                instance_uuid: str) -> list[models.Assignment]:
    """Return the active assignments of an instance, as ``of_hosts`` does."""
    return _active(session, models.Assignment.instance_uuid == instance_uuid)


def listed(session: orm.Session, host: str | None = None,
           instance_uuid: str | None = None,
           ) -> list[tuple[models.Assignment, models.Host]]:
    """Return active assignments with their hosts, by host and claim.

    :param host: name; None: of all hosts
    """
    query = (
        sa.select(models.Assignment, models.Host)
        .join(models.Host, models.Assignment.host_id == models.Host.id)
        .where(models.Assignment.active == 1)
        .order_by(models.Host.name, models.Assignment.id))
    if host is not None:
        query = query.where(models.Host.name == host)
    if instance_uuid is not None:
        query = query.where(
            models.Assignment.instance_uuid == instance_uuid)
    return list(session.execute(query).tuples().all())


def of_device(session: orm.Session,
              device_id: int) -> models.Assignment | None:
    """Return the active assignment of a device."""
    found = _active(session, models.Assignment.device_id == device_id)
    return found[0] if found else None


def instance_of_variant(session: orm.Session, variant_id: int) -> str | None:
    """Return an instance that a device of the variant is assigned to."""
    return session.scalar(
        sa.select(models.Assignment.instance_uuid)
        .join(models.Device)
        .join(models.Group, models.Device.group_id == models.Group.id)
        .where(models.Assignment.active == 1,
               models.Group.variant_id == variant_id).limit(1))


def counts_by_type(session: orm.Session) -> dict[tuple[int | None, str], int]:
    """Return the number of active assignments by group id and type."""
    return {(group_id, vgpu_type): count for group_id, vgpu_type, count
            in session.execute(
                sa.select(models.Device.group_id,
                          models.Assignment.vgpu_type, sa.func.count())
                .join(models.Device).where(models.Assignment.active == 1)
                .group_by(models.Device.group_id,
                          models.Assignment.vgpu_type))}


def delete_of_host(session: orm.Session, host_id: int) -> None:
    """Delete the assignments of a host, including ended ones."""
    session.execute(sa.delete(models.Assignment).where(
        models.Assignment.host_id == host_id))


def _active(session: orm.Session,
            where: sa.ColumnElement[bool]) -> list[models.Assignment]:
    return list(session.scalars(
        sa.select(models.Assignment)
        .where(models.Assignment.active == 1, where)
        .order_by(models.Assignment.id)))


def host_ids(session: orm.Session, uuids: Sequence[str]) -> set[int]:
    """Return the ids of the hosts of assignments, including ended ones."""
    return set(session.scalars(
        sa.select(models.Assignment.host_id)
        .where(models.Assignment.uuid.in_(list(uuids)))))


def hosts_with_expired_lease(session: orm.Session, now: float) -> list[str]:
    """Return the names of hosts with an active assignment whose lease is over.

    :param now: seconds since the epoch
    """
    return list(session.scalars(
        sa.select(models.Host.name).distinct()
        .join(models.Assignment,
              models.Assignment.host_id == models.Host.id)
        .where(models.Assignment.active == 1,
               models.Assignment.lease_expires_at < now)
        .order_by(models.Host.name)))


def other_hosts(session: orm.Session, uuids: Collection[str]) -> list[str]:
    """Return the names of hosts on which the same instances have more.

    :param uuids: of assignments, including ended ones
    """
    given = orm.aliased(models.Assignment)
    return list(session.scalars(
        sa.select(models.Host.name).distinct()
        .join(models.Assignment,
              models.Assignment.host_id == models.Host.id)
        .join(given, given.instance_uuid == models.Assignment.instance_uuid)
        .where(models.Assignment.active == 1,
               given.uuid.in_(list(uuids)),
               given.host_id != models.Assignment.host_id)
        .order_by(models.Host.name)))


def known(session: orm.Session, uuids: Collection[str]) -> set[str]:
    """Return those UUIDs that are assignments', ended ones too."""
    if not uuids:
        return set()
    return set(session.scalars(
        sa.select(models.Assignment.uuid)
        .where(models.Assignment.uuid.in_(list(uuids)))))


def places(session: orm.Session, host_id: int,
           names: Collection[str]) -> dict[str, str]:
    """Return the stable ids of the devices of a host's assignments.

    Ended assignments are included.

    :param names: UUIDs; those that are not of assignments are ignored
    :returns: by the assignment's UUID
    """
    if not names:
        return {}
    return dict(session.execute(
        sa.select(models.Assignment.uuid, models.Device.stable_id)
        .join(models.Device).where(
            models.Assignment.host_id == host_id,
            models.Assignment.uuid.in_(list(names)))).tuples().all())


def last_of(session: orm.Session,
            device_ids: Collection[int]) -> dict[int, str]:
    """Return the UUIDs of the last assignments of devices, by device id."""
    newest = (sa.select(sa.func.max(models.Assignment.id))
              .where(models.Assignment.device_id.in_(list(device_ids)))
              .group_by(models.Assignment.device_id))
    return dict(session.execute(
        sa.select(models.Assignment.device_id, models.Assignment.uuid)
        .where(models.Assignment.id.in_(newest))).tuples().all())


def by_uuid(session: orm.Session,
            uuids: Sequence[str]) -> list[models.Assignment]:
    """Return assignments in the order of their claims, also ended ones."""
    return list(session.scalars(
        sa.select(models.Assignment)
        .where(models.Assignment.uuid.in_(list(uuids)))
        .order_by(models.Assignment.id)))
