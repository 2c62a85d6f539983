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
"""Which holdings have an allocation in Placement, as Placement says.

Nova takes allocations back of which the devices stay with the instance: after
a rebuild, a confirmation or a migration that failed. What a group reserves
must then cover them, or Placement offers what is held.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Mapping

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.db import api
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.objects import inventory as inventory_obj

Allocations = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Units by provider UUID, consumer UUID and resource class."""


def compare(db: api.Database, host_name: str, allocations: Allocations,
            assignments: Iterable[str]) -> inventory_obj.HostInventory:
    """Take over what Placement says (ConductorAPI.compare_allocations)."""
    known = set(assignments)
    with db.reader() as session:
        host_id = host_db.get(session, host_name).id

    def work(session: orm.Session) -> inventory_obj.HostInventory:
        [host] = host_db.lock_ids(session, [host_id])
        for state in capacity.load(session, [host.id])[host.id]:
            said = allocations.get(state.group.provider_uuid)
            if said is None:
                continue
            allocated = _allocated(state.held, said)
            for each in state.held:
                if (each.uuid not in known
                        or each.allocated == (each.id in allocated)):
                    continue
                each.allocated = each.id in allocated
                event_db.add(
                    session, 'allocation_found' if each.allocated
                    else 'allocation_lost', host.name, each.device, each)
                host_db.changed(host)
        return inventory.refresh(session, host)
    return db.write(work)


def _allocated(held: Iterable[models.Assignment],
            said: Mapping[str, Mapping[str, int]]) -> set[int]:
    """Ids of the holdings that have an allocation: by the instance itself, or
    by somebody who holds nothing here, such as a migration for the side that
    it leaves."""
    held = list(held)
    left = collections.Counter({
        (consumer, resource_class): units
        for consumer, resources in said.items()
        for resource_class, units in resources.items()})
    allocated = set()
    for each in held:
        if left[each.instance_uuid, each.resource_class] > 0:
            left[each.instance_uuid, each.resource_class] -= 1
            allocated.add(each.id)
    holders = {each.instance_uuid for each in held}
    others: collections.Counter[str] = collections.Counter()
    for (consumer, resource_class), units in left.items():
        if consumer not in holders:
            others[resource_class] += units
    for each in held:
        if each.id not in allocated and others[each.resource_class] > 0:
            others[each.resource_class] -= 1
            allocated.add(each.id)
    return allocated
