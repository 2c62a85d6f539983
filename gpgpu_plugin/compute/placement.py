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
"""A host's groups in Nova's provider tree and in Placement.

``apply`` changes Nova's copy of the tree and calls nobody; ``push`` writes
our providers alone, through the report client of nova-compute, whose cache
says what Placement has: where nothing differs, nothing is sent. Callers of
``push`` and ``withdraw`` hold Nova's own lock (``under_novas_lock``): Nova
compares its copy of the tree with that cache and writes under it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from collections.abc import Iterable

import os_traits
from nova import exception as nova_exception
from nova import utils
from nova.compute import resource_tracker
from oslo_log import log as logging

from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.objects import inventory as inventory_obj

LOG = logging.getLogger(__name__)

_F = typing.TypeVar('_F', bound=Callable[..., typing.Any])


def under_novas_lock(function: _F) -> _F:
    """Run under the lock under which Nova's resource tracker writes."""
    return typing.cast(_F, utils.synchronized(
        resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)(function))

_ATTEMPTS = 4


def _records(group: inventory_obj.GroupInventory) -> dict[str, typing.Any]:
    return {
        each.resource_class: {
            'total': each.total, 'reserved': each.reserved, 'min_unit': 1,
            'max_unit': each.max_unit, 'step_size': 1,
            'allocation_ratio': 1.0}
        for each in group.types}


def _ours(tree: typing.Any, node: str) -> list[str]:
    """UUIDs of the plugin's providers below a node, told by their traits."""
    return [uuid for uuid in tree.get_provider_uuids(node)
            if tree.has_traits(uuid, [naming.TRAIT_GPU, naming.TRAIT_OWNER])]


def owned_by_cyborg(tree: typing.Any, node: str) -> dict[str, str]:
    """What Cyborg gives away below a node, by address.

    Cyborg names a provider after host and device, ``compute1_0000:3b:00.0``
    (cyborg.conductor.manager, cyborg.accelerator.drivers).
    """
    owned = {}
    for uuid in tree.get_provider_uuids(node):
        if tree.has_traits(uuid, [os_traits.OWNER_CYBORG]):
            name = tree.data(uuid).name
            owned.update(dict.fromkeys(
                pci.find_addresses(name),
                f'Cyborg (provider {name} in Placement has OWNER_CYBORG)'))
    return owned


def apply(tree: typing.Any, node: str,
          inventory: inventory_obj.HostInventory | None) -> None:
    """Bring Nova's tree to the inventory.

    A provider that is in the tree but no more in the inventory, or of which
    nothing is known (None), offers nothing: taking it out of the tree while
    an allocation is on it would break every other build on the host.

    :param tree: nova.compute.provider_tree.ProviderTree
    :param node: name of the compute node
    """
    groups = inventory.groups if inventory is not None else ()
    for group in groups:
        if not tree.exists(group.provider_uuid):
            tree.new_child(group.provider_name, node,
                           uuid=group.provider_uuid)
        tree.update_inventory(group.provider_uuid, _records(group))
        tree.update_traits(group.provider_uuid, list(group.traits))
    known = {group.provider_uuid for group in groups}
    for uuid in _ours(tree, node):
        if uuid not in known:
            tree.update_inventory(
                uuid, _nothing_offered(tree.data(uuid).inventory))


def _nothing_offered(records: dict[str, typing.Any],
                     ) -> dict[str, typing.Any]:
    return {name: {**record, 'reserved': record['total']}
            for name, record in records.items()}


def push(context: typing.Any, client: typing.Any,
         inventory: inventory_obj.HostInventory) -> None:
    """Write the inventory to Placement.

    :param client: nova.scheduler.client.report.SchedulerReportClient
    :raises nova.exception.NovaException: Placement refused, or its
        generation changed again and again
    """
    for group in inventory.groups:
        for attempt in range(_ATTEMPTS):
            try:
                # Traits first: what is offered is described.
                client.set_traits_for_provider(
                    context, group.provider_uuid, list(group.traits))
                client.set_inventory_for_provider(
                    context, group.provider_uuid, _records(group))
                break
            except ValueError:
                # Nova's cache does not have the provider (yet).
                _fetch(context, client, inventory, group)
            except nova_exception.ResourceProviderUpdateConflict:
                if attempt == _ATTEMPTS - 1:
                    raise
                # Marked stale, not removed: Nova may be about to write it.
                client.invalidate_resource_provider(
                    group.provider_uuid, cacheonly=True)
                _fetch(context, client, inventory, group)
        else:
            raise nova_exception.ResourceProviderUpdateFailed(
                url=group.provider_name, error='no provider to write to')


def allocations(context: typing.Any, client: typing.Any,
                providers: Iterable[str],
                ) -> dict[str, dict[str, dict[str, int]]]:
    """What Placement has allocated, by provider, consumer and class.

    :param providers: UUIDs; one that Placement does not have is left out
    """
    result = {}
    for uuid in providers:
        try:
            found = client.get_allocations_for_resource_provider(
                context, uuid).allocations
        except nova_exception.ResourceProviderAllocationRetrievalFailed:
            continue
        result[uuid] = {consumer: dict(each['resources'])
                        for consumer, each in found.items()}
    return result


def withdraw(context: typing.Any, client: typing.Any, uuid: str,
             name: str, parent: str) -> None:
    """Offer nothing any more of a group that is gone."""
    tree = client.get_provider_tree_and_ensure_root(
        context, uuid, name=name, parent_provider_uuid=parent)
    client.set_inventory_for_provider(
        context, uuid, _nothing_offered(tree.data(uuid).inventory))


def _fetch(context: typing.Any, client: typing.Any,
           inventory: inventory_obj.HostInventory,
           group: inventory_obj.GroupInventory) -> None:
    client.get_provider_tree_and_ensure_root(
        context, group.provider_uuid, name=group.provider_name,
        parent_provider_uuid=inventory.node_uuid)
