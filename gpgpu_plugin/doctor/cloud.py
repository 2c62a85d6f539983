# SPDX-License-Identifier: Apache-2.0
"""Drifts between the conductor's records and what Placement and Nova say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from gpgpu_plugin.doctor import drift
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import placement
from gpgpu_plugin.objects import inventory

# -- what each authority says -----------------------------------------------

@dataclasses.dataclass(frozen=True, kw_only=True)
class AssignedRow:
    """An active assignment of the database.

    :ivar provider_uuid: of the device's group; None: it is in none
    :ivar allocated: whether the conductor believes that an allocation in
        Placement covers it
    """

    uuid: str
    instance_uuid: str
    address: str
    provider_uuid: str | None
    resource_class: str
    allocated: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostRecord:
    """Answer of the conductor about one host.

    :ivar drifts: those in the database itself
    """

    host: str
    node_uuid: str
    groups: tuple[inventory.GroupInventory, ...]
    assignments: tuple[AssignedRow, ...]
    drifts: tuple[drift.Drift, ...]

    @property
    def marker(self) -> str:
        """Marker of the records after this one."""
        return self.host


@dataclasses.dataclass(frozen=True, kw_only=True)
class CloudRecord:
    """Answer of the conductor about rows that belong to no host.

    :ivar resource_classes: of all variants and their types
    """

    resource_classes: tuple[str, ...]
    drifts: tuple[drift.Drift, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProviderInventory:
    """Inventory of one resource class."""

    total: int
    reserved: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProviderRecord:
    """A resource provider in Placement.

    :ivar root: UUID of the provider of its compute node
    :ivar inventories: by resource class
    :ivar allocations: units by consumer UUID and resource class
    """

    uuid: str
    name: str
    root: str = ''
    inventories: Mapping[str, ProviderInventory] = dataclasses.field(
        default_factory=dict)
    traits: frozenset[str] = frozenset()
    allocations: Mapping[str, Mapping[str, int]] = dataclasses.field(
        default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerRecord:
    """An instance, by Nova's REST API.

    :ivar task: what Nova is doing with it
    """

    host: str | None
    task: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlavorRecord:
    """A flavor, and the resource classes that it requests."""

    name: str
    resource_classes: tuple[str, ...]


# -- Placement --------------------------------------------------------------

FindServer = Callable[[str], ServerRecord | None]
"""Function that returns an instance by UUID; None: Nova does not have it."""


def compare(record: HostRecord, providers: Mapping[str, ProviderRecord],
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
                 provider: ProviderRecord) -> Iterator[drift.Drift]:
    wanted = {offer.resource_class: ProviderInventory(
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


def _offered(found: ProviderInventory | None) -> int:
    return 0 if found is None else found.total - found.reserved


def _units(found: ProviderInventory | None) -> str:
    return ('none' if found is None
            else f'{found.total}, reserved {found.reserved}')


def _allocations(record: HostRecord, provider: ProviderRecord,
                 find_server: FindServer) -> Iterator[drift.Drift]:
    assigned = [row for row in record.assignments
                if row.provider_uuid == provider.uuid]
    found = placement.coverage_of(assigned, provider.allocations)
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


def unknown_providers(ours: Iterable[ProviderRecord],
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


# -- Nova -------------------------------------------------------------------


def services(hosts: Iterable[str],
             computes: Collection[str]) -> Iterator[drift.Drift]:
    """Yield hosts of which Nova has no nova-compute.

    :param hosts: those of the conductor
    :param computes: hosts of Nova's nova-compute services
    """
    for host in hosts:
        if host not in computes:
            yield drift.of(
                'host_without_service', host, host,
                conductor='it has the host',
                nova='it has no nova-compute there')


def flavors(found: Iterable[FlavorRecord],
            resource_classes: Collection[str]) -> Iterator[drift.Drift]:
    """Yield flavors that request a class of the plugin that does not exist.

    :param resource_classes: of all variants and their types
    """
    for flavor in found:
        for name in flavor.resource_classes:
            if (naming.is_reserved_class(name)
                    and name not in resource_classes):
                yield drift.of(
                    'flavor_of_unknown_class', None,
                    f'{flavor.name} {name}', nova=f'it requests {name}',
                    conductor='no variant has this class')
