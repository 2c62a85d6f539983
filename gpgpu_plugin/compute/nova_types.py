# SPDX-License-Identifier: Apache-2.0
"""The parts of Nova's objects that the plugin uses.

Nova carries no type information. Each protocol names the members that this
package touches, as all supported versions of Nova have them;
``tests/unit/compute/test_nova_types.py`` compares all of them with the classes
of the installed Nova.
"""

from __future__ import annotations

import datetime
import typing
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from nova import context as nova_context

from gpgpu_plugin.domain import naming

Context: typing.TypeAlias = nova_context.RequestContext

Amounts = dict[str, int]
"""Units by resource class."""


class InventoryRecord(typing.TypedDict):
    """Inventory of one resource class, as Placement stores it."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float


class Allocation(typing.TypedDict):
    """The resources of one consumer on one provider."""

    resources: Amounts


class ConsumerAllocations(typing.TypedDict):
    """All allocations of one consumer, by provider UUID."""

    allocations: dict[str, Allocation]


Allocations = Mapping[str, Allocation]
"""Allocations of one consumer, by provider UUID."""


class ProviderAllocations(typing.Protocol):
    """All allocations on one provider, by consumer UUID."""

    @property
    def allocations(self) -> Mapping[str, Allocation]: ...


class ProviderData(typing.Protocol):
    """Copy of one provider of the tree."""

    @property
    def name(self) -> str: ...

    @property
    def inventory(self) -> Mapping[str, InventoryRecord]: ...


class ProviderTree(typing.Protocol):
    """Nova's copy of the resource providers of a compute node."""

    def get_provider_uuids(
            self, name_or_uuid: str | None = None) -> list[str]: ...

    def data(self, name_or_uuid: str) -> ProviderData: ...

    def exists(self, name_or_uuid: str) -> bool: ...

    def new_child(self, name: str, parent: str, uuid: str | None = None,
                  generation: int | None = None) -> str: ...

    def has_traits(
            self, name_or_uuid: str, traits: Iterable[str]) -> bool: ...

    def update_inventory(
            self, name_or_uuid: str, inventory: Mapping[str, InventoryRecord],
            generation: int | None = None) -> bool: ...

    def update_traits(self, name_or_uuid: str, traits: Iterable[str],
                      generation: int | None = None) -> bool: ...

    def add_traits(self, name_or_uuid: str, *traits: str) -> None: ...

    def remove_traits(self, name_or_uuid: str, *traits: str) -> None: ...


class ReportClient(typing.Protocol):
    """Nova's client of Placement, with its cache of the provider tree."""

    def get_provider_tree_and_ensure_root(
            self, context: Context, rp_uuid: str, *, name: str | None = None,
            parent_provider_uuid: str | None = None) -> ProviderTree: ...

    def set_inventory_for_provider(
            self, context: Context, rp_uuid: str,
            inv_data: Mapping[str, InventoryRecord]) -> None: ...

    def set_traits_for_provider(
            self, context: Context, rp_uuid: str, traits: Iterable[str],
            generation: int | None = None) -> None: ...

    def invalidate_resource_provider(
            self, name_or_uuid: str, cacheonly: bool = False) -> None: ...

    def get_allocs_for_consumer(
            self, context: Context, consumer: str) -> ConsumerAllocations: ...

    def get_allocations_for_resource_provider(
            self, context: Context, rp_uuid: str) -> ProviderAllocations: ...

    def delete_allocation_for_instance(
            self, context: Context, uuid: str,
            consumer_type: str = 'instance', force: bool = False) -> object:
        ...

    def add_resources_to_instance_allocation(
            self, context: Context, consumer_uuid: str,
            resources: Allocations) -> None: ...

    def remove_resources_from_instance_allocation(
            self, context: Context, consumer_uuid: str,
            resources: Allocations) -> None: ...


class VirtAPI(typing.Protocol):
    """The interface that nova-compute gives its virt driver."""

    @property
    def reportclient(self) -> ReportClient: ...

    @property
    def _compute(self) -> ComputeManager: ...


class ComputeNode(typing.Protocol):
    """Nova's record of a compute host.

    :ivar numa_topology: its NUMA nodes and their usage as JSON; None: the
        driver reports none
    """

    numa_topology: str | None
    cpu_allocation_ratio: float
    ram_allocation_ratio: float


class NovaResourceTracker(typing.Protocol):
    """Nova's resource tracker.

    :ivar compute_nodes: by name
    :ivar tracked_instances: UUIDs of the instances on this host
    :ivar tracked_migrations: migrations to or from this host that are not
        over, by the UUID of their instance
    """

    compute_nodes: Mapping[str, ComputeNode]
    tracked_instances: Collection[str]
    tracked_migrations: Mapping[str, object]

    def _update(self, context: object,
                compute_node: ComputeNode) -> None: ...

    def resize_claim(
            self, context: Context, instance: Instance, flavor: Flavor,
            nodename: str, migration: Migration,
            allocations: Allocations | None, image_meta: object = None,
            limits: object = None) -> MoveClaim: ...

    def delete_allocation_for_evacuated_instance(
            self, context: Context, instance: Instance, node: str,
            node_type: str = 'source') -> None: ...


class ComputeManager(typing.Protocol):
    """The manager of nova-compute."""

    rt: NovaResourceTracker


class ImageProperties(typing.Protocol):
    """Properties of an image that Nova knows."""

    def get(self, name: str) -> typing.Any: ...


class ImageMeta(typing.Protocol):
    """An image, as it was when the instance was built."""

    properties: ImageProperties


def requires_gpu(image: ImageMeta | None) -> bool:
    """Return whether an image requires a host with GPUs, and so a GPU."""
    return image is not None and naming.TRAIT_GPU_HOST in (
        image.properties.get('traits_required') or ())


class NUMACell(typing.Protocol):
    """One NUMA node of a guest.

    :ivar id: the host's NUMA node on which it is placed; None before
    """

    id: int


class NUMATopology(typing.Protocol):
    """NUMA nodes of a guest."""

    cells: Sequence[NUMACell]


class NetworkMetadata(typing.Protocol):
    """Networks that are near to a NUMA node of a host."""

    physnets: Collection[str]
    tunneled: bool


class HostNUMACell(typing.Protocol):
    """One NUMA node of a host.

    :ivar cpuset: CPUs that guests may share
    :ivar pcpuset: CPUs to which guests may be pinned
    :ivar socket: None: unknown
    """

    id: int
    cpuset: Collection[int]
    pcpuset: Collection[int]
    network_metadata: NetworkMetadata
    socket: int | None
    memory: int
    mempages: Sequence[object]

    def obj_clone(self) -> typing.Self: ...

    def __contains__(self, name: str) -> bool: ...


class HostNUMATopology(typing.Protocol):
    """NUMA nodes of a host."""

    cells: Sequence[HostNUMACell]


class Flavor(typing.Protocol):
    """A flavor, as it was when the instance was built or resized."""

    id: int
    name: str
    extra_specs: Mapping[str, str]
    vcpus: int
    memory_mb: int


class PCIDevice(typing.Protocol):
    """A PCI device that Nova itself assigned."""

    address: str


class PCIRequests(typing.Protocol):
    """Requests of an instance for PCI devices of Nova's own."""

    requests: Sequence[object]


class MigrationContext(typing.Protocol):
    """The changes that a migration makes to an instance."""

    migration_id: int
    new_numa_topology: NUMATopology | None
    new_pci_requests: PCIRequests | None


class Migration(typing.Protocol):
    """A resize, cold migration, live migration or evacuation."""

    id: int
    created_at: datetime.datetime
    uuid: str
    status: str
    source_compute: str
    dest_compute: str
    migration_type: str
    new_instance_type_id: int


class Instance(typing.Protocol):
    """A server.

    :ivar host: None until a build is scheduled
    :ivar hidden: whether another cell has the record that users see
    """

    uuid: str
    project_id: str
    user_id: str
    host: str | None
    node: str | None
    vm_state: str | None
    task_state: str | None
    deleted: bool
    hidden: bool
    flavor: Flavor
    new_flavor: Flavor | None
    numa_topology: NUMATopology | None
    migration_context: MigrationContext | None

    pci_requests: PCIRequests | None

    def get_pci_devices(self) -> Sequence[PCIDevice]: ...

    def save(self) -> None: ...


class InstanceInfo(typing.Protocol):
    """State of a guest, as the hypervisor reports it.

    :ivar state: a number of nova.compute.power_state
    """

    state: int


class LibvirtGuest(typing.Protocol):
    """A domain of libvirt."""

    @property
    def name(self) -> str: ...

    @property
    def uuid(self) -> str: ...

    def get_xml_desc(self) -> str: ...


class LibvirtHost(typing.Protocol):
    """Connection to the host's libvirt."""

    def list_guests(self, only_running: bool = True,
                    ) -> Sequence[LibvirtGuest]: ...


class MoveClaim(typing.Protocol):
    """Nova's claim of CPU, memory and disk for a move to this host."""

    def abort(self) -> None: ...


class AllocationCandidate(typing.TypedDict):
    """One way in which Placement can meet a request on a host."""

    allocations: dict[str, object]


class Aggregate(typing.Protocol):
    """A host aggregate of Nova."""

    metadata: Mapping[str, str]


class HostState(typing.Protocol):
    """A host, as Nova passes it to the scheduler's filters and weighers.

    :ivar uuid: UUID of the compute node
    :ivar free_ram_mb: of ``total_usable_ram_mb``, without overcommitment
    """

    host: str
    uuid: str
    aggregates: Sequence[Aggregate]
    allocation_candidates: Sequence[AllocationCandidate]
    numa_topology: HostNUMATopology | None
    vcpus_total: int
    vcpus_used: int
    total_usable_ram_mb: int
    free_ram_mb: int
    cpu_allocation_ratio: float | None
    ram_allocation_ratio: float | None

    def consume_from_request(self, spec_obj: RequestSpec) -> None: ...


class WeighedHost(typing.Protocol):
    """A host with its weight so far, as Nova passes it to weighers."""

    obj: HostState
    weight: float


class RequestSpec(typing.Protocol):
    """The request that the scheduler answers."""

    instance_uuid: str
    project_id: str | None
    flavor: Flavor
    image: ImageMeta | None
    numa_topology: NUMATopology | None

    def get_scheduler_hint(
            self, hint_name: str, default: None = None,
            ) -> str | Sequence[str] | None: ...
