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
"""GPU groups, as operators see and set them."""

from __future__ import annotations

import dataclasses

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import admin as objects


def list_all(db: api.Database, host: str | None = None,
             variant: str | None = None, limit: int = objects.PAGE_SIZE,
             marker: str | None = None) -> tuple[objects.GroupInfo, ...]:
    """Return a page of groups (Conductor.group_list)."""
    with db.reader() as session:
        found = group_db.listed(
            session, pages.size(limit), host, variant, marker)
        loaded = {
            group.rows.id: group.value
            for groups in capacity.load(
                session, {row.id for row, _ in found}).values()
            for group in groups}
        return tuple(info(row.name, loaded[group.id])
                     for row, group in found)


def info(host: str, group: group_rules.GroupCapacity) -> objects.GroupInfo:
    """Return a group as operators see it."""
    whole = group.by_name[naming.PASSTHROUGH]
    desired = group.desired(whole)
    return objects.GroupInfo(
        host=host, variant=group.variant.name,
        resource_class=group.variant.resource_class,
        provider_uuid=group.provider_uuid,
        allocation_policy=group.allocation_policy,
        cleaning_policy=group.variant.cleaning_policy,
        total=desired.total if desired else 0,
        reserved=desired.reserved if desired else 0,
        remaining=group.available(whole),
        assigned=group.assigned(whole), states=group.shown_states())


def set_(db: api.Database, host_name: str, variant: str,
         allocation_policy: str) -> objects.GroupInfo:
    """Set a group's allocation policy (ConductorAPI.group_set)."""
    if allocation_policy not in list(request_mod.AllocationPolicy):
        raise exception.Invalid(
            field='allocation policy', value=allocation_policy,
            expected='one of ' + ', '.join(request_mod.AllocationPolicy))

    def work(session: orm.Session) -> objects.GroupInfo:
        host = host_db.lock(session, host_name)
        if host is None:
            raise exception.NotFound(kind='host', name=host_name)
        for group in capacity.load(session, [host.id])[host.id]:
            if group.value.variant.name == variant:
                row = session.get_one(models.Group, group.rows.id)
                row.allocation_policy = allocation_policy
                event_db.add(session, 'group_set', host_name, detail=(
                    f'{variant}: allocation policy {allocation_policy}'))
                return info(host.name, dataclasses.replace(
                    group.value,
                    allocation_policy=request_mod.AllocationPolicy(
                        allocation_policy)))
        raise exception.NotFound(
            kind='group', name=f'{variant} on {host_name}')
    return db.write(work)
