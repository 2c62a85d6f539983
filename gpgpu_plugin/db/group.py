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
"""Rows of ``host_gpu_groups``, with all rows that belong to a group."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import models


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupRows:
    """Rows of one group; domain.group.GroupCapacity describes their meaning.

    :ivar foreign_vgpus: VFs of its GPUs that are not in the group and may have
        a vGPU
    :ivar assignments: active ones, in the order of their claims
    """

    group: models.Group
    devices: Sequence[models.Device]
    foreign_vgpus: Sequence[models.Device] = ()
    assignments: Sequence[models.Assignment] = ()


def of_hosts(session: orm.Session,
             host_ids: Collection[int]) -> list[models.Group]:
    """Return the groups of hosts with their types, by id."""
    return list(session.scalars(
        sa.select(models.Group).where(models.Group.host_id.in_(host_ids))
        .options(orm.joinedload(models.Group.types))
        .order_by(models.Group.id)).unique())


def of_variant(session: orm.Session, variant_id: int) -> list[models.Group]:
    """Return the groups of a variant with their types."""
    return list(session.scalars(
        sa.select(models.Group).where(models.Group.variant_id == variant_id)
        .options(orm.selectinload(models.Group.types))))


def with_host_names(session: orm.Session, host: str | None,
                    variant: str | None) -> list[tuple[str, models.Group]]:
    """Return groups of live hosts by the hosts' names.

    :param host: name of the only host
    :param variant: name of the only variant
    """
    query = (sa.select(models.Host.name, models.Group)
             .join(models.Host, models.Group.host_id == models.Host.id)
             .options(orm.selectinload(models.Group.types))
             .where(models.Host.deleted == 0)
             .order_by(models.Host.name, models.Group.id))
    if host is not None:
        query = query.where(models.Host.name == host)
    return [(name, group) for name, group in session.execute(query)
            if variant in (None, group.variant.name)]


def load(session: orm.Session, host_ids: Collection[int],
         active: Iterable[models.Assignment] | None = None,
         ) -> dict[int, list[GroupRows]]:
    """Return the groups of hosts with all their rows, in three queries.

    :param active: all active assignments of the hosts, if the caller has
        loaded them
    :returns: by the host's id
    """
    groups = of_hosts(session, host_ids)
    rows = device_db.managed_or_partitioned(session, host_ids)
    if active is None:
        active = assignment_db.of_hosts(session, host_ids)
    group_ids = {device.id: device.group_id for device in rows}
    devices: dict[int, list[models.Device]] = collections.defaultdict(list)
    foreign: dict[int, list[models.Device]] = collections.defaultdict(list)
    for device in rows:
        if device.group_id is not None:
            devices[device.group_id].append(device)
        of_gpu = group_ids.get(device.parent_id or 0)
        if (of_gpu not in (None, device.group_id)
                and device.vgpu_type is not None):
            foreign[of_gpu].append(device)
    assigned: dict[int, list[models.Assignment]] = (
        collections.defaultdict(list))
    for assignment in active:
        if assignment.device.group_id is not None:
            assigned[assignment.device.group_id].append(assignment)
    result: dict[int, list[GroupRows]] = collections.defaultdict(list)
    for group in groups:
        result[group.host_id].append(GroupRows(
            group=group, devices=devices[group.id],
            foreign_vgpus=foreign[group.id],
            assignments=assigned[group.id]))
    return result
