# SPDX-License-Identifier: Apache-2.0
"""Drifts in Placement: resource providers compared with the conductor."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from gpgpu_plugin.doctor import drift
from gpgpu_plugin.doctor import view
from gpgpu_plugin.domain import coverage
from gpgpu_plugin.objects import inventory

FindServer = Callable[[str], view.Server | None]
"""Function that returns an instance by UUID; None: Nova does not have it."""


def compare(record: view.HostRecord, providers: Mapping[str, view.Provider],
            find_server: FindServer) -> Iterator[drift.Drift]:
    """Yield the drifts of a host's groups.

    :param providers: those of the host's groups that Placement has, by UUID
    :param find_server: called for allocations that no assignment explains
    """
    for group in record.groups:
        provider = providers.get(group.provider_uuid)
        if provider is None:
            yield drift.of(
                'provider_missing', record.host, group.provider_name,
                conductor=f'{group.variant} has provider '
                          f'{group.provider_uuid}',
                placement='it does not exist')
            continue
        yield from _inventories(record.host, group, provider)
        missing = sorted(set(group.traits) - provider.traits)
        if missing:
            yield drift.of(
                'trait_missing', record.host, provider.name,
                conductor=f'it has {", ".join(group.traits)}',
                placement=f'it lacks {", ".join(missing)}')
        foreign = sorted(provider.traits.difference(group.traits))
        if foreign:
            yield drift.of(
                'trait_foreign', record.host, provider.name,
                conductor=f'it has {", ".join(group.traits)}',
                placement=f'it also has {", ".join(foreign)}')
        yield from _allocations(record, provider, find_server)


def _inventories(host: str, group: inventory.GroupInventory,
                 provider: view.Provider) -> Iterator[drift.Drift]:
    wanted = {offer.resource_class: view.Inventory(
        total=offer.total, reserved=offer.reserved) for offer in group.types}
    for resource_class in sorted(wanted.keys() | provider.inventories.keys()):
        ours = wanted.get(resource_class)
        theirs = provider.inventories.get(resource_class)
        larger = _offered(theirs) > _offered(ours)
        # A class that nobody offers stays, reserved, while it is allocated.
        if ours == theirs or (ours is None and not larger):
            continue
        yield drift.of(
            'inventory_larger' if larger else 'inventory_smaller', host,
            f'{provider.name} {resource_class}', conductor=_units(ours),
            placement=_units(theirs))


def _offered(found: view.Inventory | None) -> int:
    return 0 if found is None else found.offered


def _units(found: view.Inventory | None) -> str:
    return ('none' if found is None
            else f'{found.total}, reserved {found.reserved}')


def _allocations(record: view.HostRecord, provider: view.Provider,
                 find_server: FindServer) -> Iterator[drift.Drift]:
    assigned = [row for row in record.assignments
                if row.provider_uuid == provider.uuid]
    found = coverage.of(assigned, provider.allocations)
    for row in assigned:
        if row.allocated and row.uuid not in found.covered:
            yield drift.of(
                'assignment_without_allocation', record.host, row.uuid,
                conductor=f'{row.address} is assigned to instance '
                          f'{row.instance_uuid} with an allocation',
                placement=f'{provider.name} has none for it')
    for (consumer, resource_class), units in found.left.items():
        server = find_server(consumer)
        if server is not None and server.task is not None:
            # It is being built or moved: the claim follows or has ended.
            continue
        yield drift.of(
            'allocation_without_assignment', record.host,
            f'{consumer} {resource_class}',
            placement=f'{units} of {provider.name} are allocated',
            conductor='no assignment accounts for it',
            nova='it has no such instance' if server is None else
            f'the instance is on {server.host or "no host"}')


def unknown_providers(ours: Iterable[view.Provider],
                      nodes: Collection[str]) -> Iterator[drift.Drift]:
    """Yield providers with the plugin's traits below nodes of no host.

    A host keeps, and reserves in full, the providers of groups that it no
    longer has.

    :param ours: all with the plugin's traits
    :param nodes: UUIDs of the compute nodes of all hosts
    """
    for provider in ours:
        if provider.root in nodes:
            continue
        consumers = ', '.join(sorted(provider.allocations))
        yield drift.of(
            'provider_of_unknown_host', None, provider.uuid,
            refused=(
                'Consumers have allocations there, and allocations are '
                'Nova\'s. See "nova-manage placement audit"'
                if consumers else None),
            placement=f'{provider.name} has allocations of '
                      f'{consumers or "nobody"}',
            conductor=f'no host has node {provider.root}')
