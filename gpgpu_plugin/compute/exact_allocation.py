# SPDX-License-Identifier: Apache-2.0
"""Allocations in Placement of devices that instances name.

No flavor requests such a device, so Nova allocates nothing for it. The host
adds it to the allocation of the instance after the claim, and again if Nova
replaced that allocation, as it does when it confirms a resize.
"""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from nova import context as nova_context
from nova import exception as nova_exception
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.domain import coverage
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj

LOG = logging.getLogger(__name__)

_Groups = Iterable[inventory_obj.GroupInventory]
_Allocated = Mapping[str, dict[str, nova_types.Amounts]]


def add(client: nova_types.ReportClient, instance_uuid: str, host: str,
        resources: nova_types.Allocations) -> None:
    """Add resources to the allocation of an instance.

    :param host: for the message
    :raises ClaimDenied: Placement refuses
    """
    try:
        client.add_resources_to_instance_allocation(
            nova_context.get_admin_context(), instance_uuid, resources)
    except nova_exception.AllocationUpdateFailed as exc:
        raise exception.ClaimDenied(
            instance=instance_uuid, host=host,
            reason=str(request_mod.Reason.EXACT_DEVICE_UNAVAILABLE),
            detail=f'Placement does not allocate the devices: {exc}',
        ) from exc


def remove(client: nova_types.ReportClient, instance_uuid: str,
           resources: nova_types.Allocations) -> None:
    """Remove what ``add`` added."""
    client.remove_resources_from_instance_allocation(
        nova_context.get_admin_context(), instance_uuid, resources)


def missing(groups: _Groups, assignments: Iterable[claim_obj.Assignment],
            allocated: Mapping[str, nova_types.Amounts],
            ) -> dict[str, nova_types.Allocation]:
    """Return what the allocation of an instance lacks, by provider UUID.

    :param groups: of the host
    :param assignments: devices that the instance named
    :param allocated: what it has, by provider UUID
    """
    providers = {group.variant: group.provider_uuid for group in groups}
    needed = collections.Counter(
        (providers[assignment.variant], assignment.resource_class)
        for assignment in assignments)
    found: dict[str, nova_types.Allocation] = {}
    for (provider, resource_class), count in needed.items():
        units = count - allocated.get(provider, {}).get(resource_class, 0)
        if units > 0:
            found.setdefault(provider, {'resources': {}})['resources'][
                resource_class] = units
    return found


def cover(client: nova_types.ReportClient, host: str, groups: _Groups,
          listed: Collection[claim_obj.Assignment],
          used: Collection[str], allocated: _Allocated) -> None:
    """Add named devices that no allocation covers to their instances'.

    :param listed: all assignments of the host
    :param used: UUIDs of those that instances use here
    :param allocated: by provider and consumer, as Placement has it; it gets
        what is added
    """
    for group in groups:
        found = allocated.get(group.provider_uuid)
        if found is None:
            continue
        own = [assignment for assignment in listed
               if assignment.variant == group.variant]
        covered = coverage.of(own, found).covered
        for assignment in own:
            if (assignment.exact and assignment.uuid in used
                    and assignment.uuid not in covered):
                _cover(client, host, group.provider_uuid, assignment, found)


def _cover(client: nova_types.ReportClient, host: str, provider: str,
           assignment: claim_obj.Assignment,
           found: dict[str, nova_types.Amounts]) -> None:
    instance_uuid, name = assignment.instance_uuid, assignment.resource_class
    try:
        add(client, instance_uuid, host,
            {provider: {'resources': {name: 1}}})
    except Exception:
        # Errors of Nova and keystoneauth have no common base. Until it
        # succeeds the group reserves the device.
        LOG.exception('Cannot add device %s on %s to the allocation of '
                      'instance %s in Placement, which lacks it; tried again '
                      'with the next comparison', assignment.address, host,
                      instance_uuid)
        return
    LOG.info('Added device %s on %s to the allocation of instance %s in '
             'Placement', assignment.address, host, instance_uuid)
    amounts = found.setdefault(instance_uuid, {})
    amounts[name] = amounts.get(name, 0) + 1
