# SPDX-License-Identifier: Apache-2.0
"""Record which assignments a Placement allocation still covers.

After a rebuild, a confirmation or a failed migration Nova removes allocations
whose devices stay assigned to the instance. What a group reserves must then
cover these devices, or Placement offers them again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.db import api
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.domain import coverage
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import session as session_obj

LOG = logging.getLogger(__name__)

Allocations = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Units by provider UUID, consumer UUID and resource class."""


def compare(db: api.Database, host_name: str, allocations: Allocations,
            assignments: Iterable[str], number: int = 0,
            origin: session_obj.Origin | None = None,
            used: Collection[str] = (),
            ) -> inventory_obj.HostInventory:
    """Store what Placement says (ConductorAPI.compare_allocations).

    :param number: counts the comparisons of the origin's session; one that
        was overtaken by a newer one is not stored
    :param used: UUIDs of assignments whose usage goes on, whatever host has
        begun another usage of their instances
    """
    known = set(assignments)
    with db.reader() as session:
        host_id = host_db.get(session, host_name).id

    def work(session: orm.Session) -> inventory_obj.HostInventory:
        [host] = host_db.lock_ids(session, [host_id])
        sessions.check(session, host, origin)
        if origin is not None and number <= host.comparison_number:
            return inventory.of_host(session, host)
        _resume_usage(session, host, used)
        return settle.change(session, host, lambda rows: _compared(
            rows if origin is None
            else rows.change_host(comparison_number=number),
            allocations, known))
    return db.write(work)


def _compared(rows: host_rows.HostRows, allocations: Allocations,
              known: Collection[str]) -> host_rows.HostRows:
    """Return the rows with what Placement says of some assignments.

    :param known: UUIDs of those that the host knew when it asked
    """
    for group in capacity.groups(rows):
        found = allocations.get(group.value.provider_uuid)
        if found is None:
            continue
        covered = coverage.of(group.value.assignments, found).covered
        for row in group.rows.assignments:
            is_covered = row.uuid in covered
            if row.uuid in known and row.allocated != is_covered:
                rows = rows.put_assignments(dataclasses.replace(
                    row, allocated=is_covered)).note(
                        'allocation_found' if is_covered
                        else 'allocation_lost', [row])
    return rows


def _resume_usage(session: orm.Session, host: host_db.HostRow,
                  used: Collection[str]) -> None:
    resumed = usage_db.resume(session, host.id, used) if used else []
    if resumed:
        LOG.warning(
            'Instances %s still use their devices on %s, although they began '
            'to use devices on another host: an evacuation is not complete or '
            'failed, or the other host claimed for instances that are not '
            'there. Their usage on %s goes on; "gpgpu-manage instance '
            'history" names the other host', ', '.join(resumed), host.name,
            host.name)
