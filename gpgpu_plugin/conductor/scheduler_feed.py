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
"""``changes_since``: no change is skipped, however late it commits.

If writers took numbers, a number could become visible after a greater one, and
a reader that has seen the greater one would skip it for ever. Therefore
writers only mark a host as changed, and readers number the visible changes,
one reader at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.db import api
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain.allocation import feasibility
from gpgpu_plugin.objects import scheduling as objects


def changes_since(db: api.Database, generation: int) -> objects.Changes:
    """Return hosts that changed after a number (ConductorAPI)."""
    with db.reader() as session:
        has_unnumbered = host_db.has_unnumbered(session)
    if has_unnumbered:
        db.write(_number)
    with db.reader() as session:
        hosts = host_db.changed_since(session, generation)
        # Read in the same snapshot as the hosts.
        newest = (hosts[-1].change_number or 0 if hosts
                  else host_db.last_number(session))
        live = [host.id for host in hosts if not host.deleted]
        groups = capacity.load(session, live) if live else {}
        return objects.Changes(generation=newest, hosts=tuple(
            host_masks(host, [
                group.value for group in groups.get(host.id, [])])
            for host in hosts))


def _number(session: orm.Session) -> None:
    last = host_db.lock_row(session, 'changes')
    for host in host_db.lock_unnumbered(session):
        last.value += 1
        host.change_number = last.value


def host_masks(host: models.Host,
               groups: Sequence[group_rules.GroupCapacity],
               ) -> objects.HostMasks:
    """Return the masks of a host for schedulers."""
    offers = [(group, offered) for group in groups
              for offered in group.types if offered.listed]
    masks = feasibility.masks(
        [group.offer(offered) for group, offered in offers])
    of_group: dict[str, list[tuple[str, feasibility.Masks]]] = {}
    for (group, offered), mask in zip(offers, masks, strict=True):
        of_group.setdefault(group.provider_uuid, []).append(
            (group.resource_class(offered.vgpu_type), mask))
    return objects.HostMasks(
        host=host.name, node_uuid=host.node_uuid,
        generation=host.generation, deleted=bool(host.deleted),
        groups=tuple(_group_masks(group, of_group[group.provider_uuid])
                     for group in groups if group.provider_uuid in of_group))


def _group_masks(group: group_rules.GroupCapacity,
                 types: Sequence[tuple[str, feasibility.Masks]],
                 ) -> objects.GroupMasks:
    _, first = types[0]
    return objects.GroupMasks(
        variant=group.variant.name, provider_uuid=group.provider_uuid,
        numa=first.numa, numa_nodes=first.numa_nodes,
        switches=first.switches, alone=first.alone,
        states=group.shown_states(),
        types=tuple(
            objects.TypeMasks(resource_class=resource_class, free=mask.free,
                              available=mask.available)
            for resource_class, mask in types))
