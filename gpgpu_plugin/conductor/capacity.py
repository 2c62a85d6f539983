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
"""Mapping of the rows of hosts' groups to values, once per transaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from sqlalchemy import orm

from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain.allocation import request


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedGroup:
    """A group, both as rows that are written and as a value for decisions."""

    rows: group_db.GroupRows
    value: group_rules.GroupCapacity

    @classmethod
    def of(cls, rows: group_db.GroupRows) -> LoadedGroup:
        """Return the group that some rows describe."""
        return cls(rows=rows, value=_group(rows))

    def with_assignments(self, added: Iterable[models.Assignment],
                         ) -> LoadedGroup:
        """Return the group after a claim, with the rows that it created.

        :param added: new assignments, also of other groups' devices
        """
        own = [assignment for assignment in added
               if assignment.device.group_id == self.rows.group.id]
        if not own:
            return self
        known = {device.id for device in self.rows.devices}
        return self.of(dataclasses.replace(
            self.rows, assignments=[*self.rows.assignments, *own],
            devices=[*self.rows.devices, *(
                assignment.device for assignment in own
                if assignment.device.id not in known)]))


def load(session: orm.Session, host_ids: Collection[int],
         active: Iterable[models.Assignment] | None = None,
         ) -> dict[int, list[LoadedGroup]]:
    """Return the groups of hosts, in three queries.

    :param active: as of db.group.load
    :returns: by the host's id
    """
    loaded = {
        host_id: [LoadedGroup.of(rows) for rows in groups]
        for host_id, groups in group_db.load(
            session, host_ids, active).items()}
    return {host_id: loaded.get(host_id, []) for host_id in host_ids}


def _group(rows: group_db.GroupRows) -> group_rules.GroupCapacity:
    group = rows.group
    ids = {device.id: device.stable_id for device in rows.devices}
    return group_rules.GroupCapacity(
        variant=variant_db.to_domain(group.variant),
        provider_uuid=group.provider_uuid,
        allocation_policy=request.AllocationPolicy(group.allocation_policy),
        types=tuple(
            group_rules.OfferedType(
                vgpu_type=row.vgpu_type, enabled=row.enabled,
                listed=row.listed)
            for row in group.types),
        devices=tuple(device(row, ids) for row in rows.devices),
        foreign_vgpus=tuple(device(row, ids) for row in rows.foreign_vgpus),
        assignments=tuple(
            group_rules.AssignedDevice(
                uuid=row.uuid, instance_uuid=row.instance_uuid,
                vgpu_type=row.vgpu_type, resource_class=row.resource_class,
                allocated=row.allocated)
            for row in rows.assignments))


def device(row: models.Device,
           stable_ids: Mapping[int, str]) -> group_rules.Device:
    """Return the value of a device's row.

    :param stable_ids: of possible parents, by the row's id
    """
    is_pci = row.kind == device_rules.DeviceKind.PCI
    return group_rules.Device(
        id=row.stable_id, parent_id=stable_ids.get(row.parent_id or 0),
        kind=device_rules.DeviceKind(row.kind),
        state=device_rules.DeviceState(row.state),
        enabled=row.enabled, present=row.present,
        is_managed=row.group_id is not None, vgpu_type=row.vgpu_type,
        placement_id=row.placement_id,
        function=device_db.pci_function(row) if is_pci else None,
        vgpus=device_db.vgpu_capability(row),
        driver=device_db.driver_capacity(row))
