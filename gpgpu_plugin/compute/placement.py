# SPDX-License-Identifier: Apache-2.0
"""The host's groups as resource providers: Nova's tree, and Placement.

``apply`` changes Nova's copy of the tree and makes no call. ``push`` writes
only the plugin's providers, through nova-compute's report client. Its cache
knows what Placement has, so nothing is sent if nothing differs. Callers of
``push`` and ``withdraw`` hold Nova's own lock (``under_nova_lock``), since
Nova compares its tree with that cache and writes under it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

import os_traits
from nova import exception as nova_exception
from nova import utils
from nova.compute import resource_tracker

from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.objects import inventory as inventory_obj

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
