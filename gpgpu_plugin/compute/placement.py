# SPDX-License-Identifier: Apache-2.0
"""The host's groups as resource providers, and allocations.

``apply`` changes Nova's copy of the tree and makes no call. ``push`` writes
only the plugin's providers, through nova-compute's report client. Its cache
knows what Placement has, so nothing is sent if nothing differs. Callers of
``push`` and ``withdraw`` hold Nova's own lock (``under_nova_lock``), since
Nova compares its tree with that cache and writes under it.
"""

from __future__ import annotations

import collections
import threading
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

import os_traits
from nova import context as nova_context
from nova import exception as nova_exception
from nova import utils
from nova.compute import resource_tracker
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import placement
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj

LOG = logging.getLogger(__name__)

_P = typing.ParamSpec('_P')
_R = typing.TypeVar('_R')

_ATTEMPTS = 4


def under_nova_lock(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function, run under the lock of Nova's resource tracker."""
    locked: Callable[_P, _R] = utils.synchronized(
        resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)(function)
    return locked


def _records(group: inventory_obj.GroupInventory | None,
             found: Mapping[str, nova_types.InventoryRecord],
             ) -> dict[str, nova_types.InventoryRecord]:
    """Return the inventory that a provider should have.

    A resource class that is there and that the group does not offer stays,
    reserved in full: an allocation may be on it.

    :param group: None: it does not exist, or is not known
    :param found: what the provider has
    """
    records: dict[str, nova_types.InventoryRecord] = {
        name: {**record, 'reserved': record['total']}
        for name, record in found.items()}
    for offer in group.types if group is not None else ():
        records[offer.resource_class] = {
            'total': offer.total, 'reserved': offer.reserved, 'min_unit': 1,
            'max_unit': offer.max_unit, 'step_size': 1,
            'allocation_ratio': 1.0}
    return records


def _own_providers(tree: nova_types.ProviderTree, node: str) -> list[str]:
    """Return the UUIDs of the plugin's providers, known by their traits."""
    return [uuid for uuid in tree.get_provider_uuids(node)
            if tree.has_traits(uuid, [naming.TRAIT_GPU, naming.TRAIT_OWNER])]


def managed_by_cyborg(tree: nova_types.ProviderTree,
                      node: str) -> dict[str, str]:
    """Return which devices Cyborg manages: a sentence by PCI address.

    Cyborg names a provider after host and device, ``compute1_0000:3b:00.0``
    (cyborg.conductor.manager, cyborg.accelerator.drivers).
    """
    managed = {}
    for uuid in tree.get_provider_uuids(node):
        if tree.has_traits(uuid, [os_traits.OWNER_CYBORG]):
            name = tree.data(uuid).name
            managed.update(dict.fromkeys(
                pci.find_addresses(name),
                f'Cyborg (provider {name} in Placement has OWNER_CYBORG)'))
    return managed


def is_disabled(tree: nova_types.ProviderTree, node: str) -> bool:
    """Return whether a compute node takes no instances, as Nova has set it.

    Nova sets the trait when an operator disables the service.
    """
    return tree.has_traits(node, [os_traits.COMPUTE_STATUS_DISABLED])


def apply(tree: nova_types.ProviderTree, node: str,
          inventory: inventory_obj.HostInventory | None) -> None:
    """Bring Nova's tree in line with the inventory.

    The compute node has a trait while the host has groups. Nova writes it to
    Placement with its next update of the host.

    What is in the tree but not in the inventory, be it a provider or a
    resource class, or whose inventory is unknown (None), is reserved in full:
    if it left the tree while an allocation is on it, every other build and
    delete on the host would fail.

    :param node: name of the compute node
    """
    groups = {group.provider_uuid: group for group in (
        inventory.groups if inventory is not None else ())}
    for uuid, group in groups.items():
        if not tree.exists(uuid):
            tree.new_child(group.provider_name, node, uuid=uuid)
        tree.update_traits(uuid, list(group.traits))
    if groups:
        tree.add_traits(node, naming.TRAIT_GPU_HOST)
    elif inventory is not None:
        tree.remove_traits(node, naming.TRAIT_GPU_HOST)
    for uuid in {*groups, *_own_providers(tree, node)}:
        tree.update_inventory(uuid, _records(
            groups.get(uuid), tree.data(uuid).inventory))


def push(context: nova_types.Context, client: nova_types.ReportClient,
         inventory: inventory_obj.HostInventory,
         written: dict[str, inventory_obj.GroupInventory]) -> None:
    """Write the inventory to Placement.

    :param written: what was written before, by the provider's UUID;
        afterwards also what is written now
    :raises nova.exception.NovaException: Placement refused it, or the
        provider's generation changed in each of four attempts
    """
    for group in inventory.groups:
        uuid = group.provider_uuid
        if written.get(uuid, group) != group:
            # Each allocation since then changed the provider's generation,
            # and Nova logs an attempt with an older one as an error.
            client.invalidate_resource_provider(uuid, cacheonly=True)
        _push_group(context, client, inventory.node_uuid, group)
        written[uuid] = group


def _push_group(context: nova_types.Context, client: nova_types.ReportClient,
                parent: str, group: inventory_obj.GroupInventory) -> None:
    uuid = group.provider_uuid
    for attempt in range(_ATTEMPTS):
        tree = _fetch(context, client, parent, group)
        if not tree.exists(uuid):
            continue
        found = tree.data(uuid).inventory
        try:
            # Traits first: what is offered is described.
            client.set_traits_for_provider(context, uuid, list(group.traits))
            client.set_inventory_for_provider(
                context, uuid, _without_unused(
                    context, client, uuid, found, _records(group, found),
                    {offer.resource_class for offer in group.types}))
            return
        except nova_exception.ResourceProviderUpdateConflict:
            if attempt == _ATTEMPTS - 1:
                raise
            client.invalidate_resource_provider(uuid, cacheonly=True)
    raise nova_exception.ResourceProviderUpdateFailed(
        url=group.provider_name, error='no provider to write to')


def _without_unused(
        context: nova_types.Context, client: nova_types.ReportClient,
        uuid: str, found: Mapping[str, nova_types.InventoryRecord],
        records: Mapping[str, nova_types.InventoryRecord],
        offered: Collection[str]) -> dict[str, nova_types.InventoryRecord]:
    """Leave out resource classes that nobody offers and that are not used.

    A class is reserved in full first, so that it gets no allocation after
    those that exist are read.
    """
    leaving = {name for name in records.keys() - offered
               if records[name] == found[name]}
    allocated = allocations(context, client, [uuid] if leaving else [])
    if uuid in allocated:
        leaving -= {name for amounts in allocated[uuid].values()
                    for name in amounts}
    else:
        leaving.clear()
    return {name: record for name, record in records.items()
            if name not in leaving}


def allocations(context: nova_types.Context, client: nova_types.ReportClient,
                providers: Iterable[str],
                ) -> dict[str, dict[str, nova_types.Amounts]]:
    """Return the allocations in Placement, by provider and consumer.

    :param providers: UUIDs; one that Placement does not have is left out
    """
    result = {}
    for uuid in providers:
        try:
            found = client.get_allocations_for_resource_provider(
                context, uuid).allocations
        except nova_exception.ResourceProviderAllocationRetrievalFailed:
            continue
        result[uuid] = {consumer: dict(allocation['resources'])
                        for consumer, allocation in found.items()}
    return result


def withdraw(context: nova_types.Context, client: nova_types.ReportClient,
             inventory: inventory_obj.HostInventory,
             written: dict[str, inventory_obj.GroupInventory]) -> None:
    """Reserve in full the groups that no longer exist.

    :param written: as of ``push``; afterwards without these groups
    """
    now = {group.provider_uuid for group in inventory.groups}
    for uuid, group in list(written.items()):
        if uuid in now:
            continue
        tree = _fetch_anew(context, client, inventory.node_uuid, group)
        client.set_inventory_for_provider(
            context, uuid, _records(None, tree.data(uuid).inventory))
        del written[uuid]


def fetch(context: nova_types.Context, client: nova_types.ReportClient,
          inventory: inventory_obj.HostInventory) -> None:
    """Read the groups' providers into Nova's cache, as they are now."""
    for group in inventory.groups:
        _fetch_anew(context, client, inventory.node_uuid, group)


def _fetch_anew(context: nova_types.Context, client: nova_types.ReportClient,
                parent: str, group: inventory_obj.GroupInventory,
                ) -> nova_types.ProviderTree:
    # Marked stale, not removed: Nova may be about to write it.
    client.invalidate_resource_provider(group.provider_uuid, cacheonly=True)
    return _fetch(context, client, parent, group)


def _fetch(context: nova_types.Context, client: nova_types.ReportClient,
           parent: str, group: inventory_obj.GroupInventory,
           ) -> nova_types.ProviderTree:
    return client.get_provider_tree_and_ensure_root(
        context, group.provider_uuid, name=group.provider_name,
        parent_provider_uuid=parent)


# -- Allocations in Placement of devices that instances name.
#
# No flavor requests such a device, so Nova allocates nothing for it. The host
# adds it to the allocation of the instance after the claim, and again if Nova
# replaced that allocation, as it does when it confirms a resize.


_Groups = Iterable[inventory_obj.GroupInventory]
_Allocated = Mapping[str, dict[str, nova_types.Amounts]]


def add_exact(client: nova_types.ReportClient, instance_uuid: str, host: str,
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


def remove_exact(client: nova_types.ReportClient, instance_uuid: str,
                 resources: nova_types.Allocations) -> None:
    """Remove what ``add_exact`` added."""
    client.remove_resources_from_instance_allocation(
        nova_context.get_admin_context(), instance_uuid, resources)


def missing_exact(groups: _Groups, assignments: Iterable[claim_obj.Assignment],
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


def cover_exact(client: nova_types.ReportClient, host: str, groups: _Groups,
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
        covered = placement.coverage_of(own, found).covered
        for assignment in own:
            if (assignment.exact and assignment.uuid in used
                    and assignment.uuid not in covered):
                _cover(client, host, group.provider_uuid, assignment, found)


def _cover(client: nova_types.ReportClient, host: str, provider: str,
           assignment: claim_obj.Assignment,
           found: dict[str, nova_types.Amounts]) -> None:
    instance_uuid, name = assignment.instance_uuid, assignment.resource_class
    try:
        add_exact(client, instance_uuid, host,
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


# -- Consumers whose allocations Nova is removing from the host's providers.
#
# If an inventory changes while Nova writes an allocation on the same provider,
# Placement answers 409 (placement.concurrent_update). Nova does not retry when
# it confirms a migration, deletes an instance under
# ``reclaim_instance_interval`` or cleans up after an evacuation: the instance
# goes to ERROR, or the allocation stays for ever. Therefore the providers must
# not change until the allocation is gone.


REMOVAL_PATIENCE = 60
"""Seconds after which Nova is presumed to have left the allocation."""


class AllocationRemoval:
    """Set of consumers; each one expires after ``REMOVAL_PATIENCE``.

    Thread-safe.

    :param clock: seconds that only grow
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._expiry: dict[str, float] = {}

    def add(self, consumer: str) -> None:
        """Note that Nova is about to remove a consumer's allocation."""
        with self._lock:
            self._expiry[consumer] = self._clock() + REMOVAL_PATIENCE

    def __bool__(self) -> bool:
        """Return whether Nova is removing any allocation; makes no call."""
        with self._lock:
            now = self._clock()
            self._expiry = {consumer: expiry for consumer, expiry
                            in self._expiry.items() if expiry > now}
            return bool(self._expiry)

    def forget_removed(self, context: nova_types.Context,
                       client: nova_types.ReportClient,
                       providers: Collection[str]) -> None:
        """Ask Placement, and forget consumers without an allocation.

        :param providers: UUIDs of the providers of the host's groups
        :raises nova.exception.ConsumerAllocationRetrievalFailed: Placement
            did not answer
        """
        with self._lock:
            consumers = list(self._expiry)
        for consumer in consumers:
            allocated = client.get_allocs_for_consumer(
                context, consumer)['allocations']
            if allocated.keys().isdisjoint(providers):
                with self._lock:
                    self._expiry.pop(consumer, None)
