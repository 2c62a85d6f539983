# SPDX-License-Identifier: Apache-2.0
"""Hosts, groups, types, devices, variants and assignments for operators."""

from __future__ import annotations

import dataclasses

from gpgpu_plugin.domain import fabric as fabric_rules
from gpgpu_plugin.domain import variant as variant_rules

PAGE_SIZE = 1000
"""Number of rows that a conductor returns in one call at most."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariantInfo(variant_rules.Variant):
    """A variant, with the number of devices that it matches now.

    :ivar status: a domain.variant.VariantStatus
    :ivar reason: why its GPUs may not pass its cleaning policy; None: they
        may, or one has
    :ivar hosts_pending: number of hosts that do not have its last change yet
    """

    devices: int = 0
    status: str = variant_rules.VariantStatus.READY.value
    reason: str | None = None
    hosts_pending: int = 0

    def without_devices(self) -> variant_rules.Variant:
        """Return the variant alone, without what hosts have of it."""
        return variant_rules.Variant(**{
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(variant_rules.Variant)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariantPreview:
    """Devices that a host would clean if some variants were created.

    :ivar devices: their numbers, by the name of the variant
    """

    host: str
    host_id: int
    devices: dict[str, int]

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return str(self.host_id)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostInfo:
    """A host, with the number of its devices by shown state.

    :ivar reported_at: ISO 8601, UTC
    :ivar problems: what its scan could not read, one sentence each
    :ivar session: number of the start of nova-compute that speaks for it
    :ivar heard_at: when it last called, ISO 8601, UTC
    :ivar holds: its own (domain.device), each with its author and beginning
    :ivar draining: no instance gets a device of it
    :ivar version: of its gpgpu_plugin
    :ivar host_state: a domain.host.HostState; None: not known
    :ivar cleaned: how many of its devices are cleaned, and about how long the
        others take; None: no new one waits for its cleaning
    """

    host: str
    node: str
    node_uuid: str
    generation: int
    reported_at: str | None
    devices: dict[str, int]
    problems: tuple[str, ...] = ()
    session: int
    heard_at: str
    holds: tuple[str, ...] = ()
    draining: bool = False
    version: str
    host_state: str | None = None
    cleaned: str | None = None

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return self.host


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupInfo:
    """A group, with its capacity in whole GPUs.

    :ivar policy_source: ``group`` or ``variant``, of which the allocation
        policy is
    :ivar remaining: 0 if its host is silent, restored or disabled
    :ivar host_state: a domain.host.HostState; None: not known
    :ivar links_source: ``group`` or ``variant``, of which the table of link
        partitions is, or ``host``, whose drivers report them; None: nobody
        said anything
    :ivar fabric: whether the board allows nothing but its partitions
    :ivar link_partitions: PCI addresses of the GPUs of each partition of which
        all are known, by its name
    :ivar free_partitions: names of those that can be claimed now
    :ivar partition_states: a domain.fabric.PartitionState by name
    :ivar links_problem: why other partitions of the table are not known
    """

    host: str
    variant: str
    resource_class: str
    provider_uuid: str
    allocation_policy: str
    policy_source: str
    cleaning_policy: str
    total: int
    reserved: int
    remaining: int
    assigned: int
    states: dict[str, int]
    host_state: str | None = None
    links_source: str | None = None
    fabric: bool = False
    link_partitions: dict[str, str] = dataclasses.field(default_factory=dict)
    free_partitions: tuple[str, ...] = ()
    partition_states: dict[str, str] = dataclasses.field(default_factory=dict)
    links_problem: str | None = None

    @property
    def free_partition_counts(self) -> tuple[str, ...]:
        """Number of free link partitions of each size, such as ``4 of 2``."""
        counts = fabric_rules.partition_size_counts(
            len(self.link_partitions[name].split())
            for name in self.free_partitions)
        return tuple(f'{count} of {size}' for size, count in counts.items())

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return f'{self.host}:{self.variant}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class VGPUTypeInfo:
    """A vGPU type of one group; ``None`` means unknown.

    :ivar video_ram: MiB
    :ivar max_vgpu_per_pgpu: number that fits on one empty GPU
    :ivar max_capacity: number that fits on all GPUs if they are empty
    :ivar remaining_capacity: number that can be claimed now; 0 if its host is
        silent, restored or disabled
    :ivar assigned: number of assigned vGPUs
    :ivar host_state: a domain.host.HostState; None: not known
    """

    host: str
    variant: str
    vgpu_type: str
    resource_class: str
    enabled: bool
    video_ram: int | None
    max_heads: int | None
    max_resolution_x: int | None
    max_resolution_y: int | None
    max_vgpu_per_pgpu: int
    max_capacity: int
    remaining_capacity: int
    assigned: int
    host_state: str | None = None

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return f'{self.host}:{self.variant}:{self.vgpu_type}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """A device: a GPU, a VF or an mdev row.

    :ivar state: see domain.device.own_state
    :ivar shown_state: see domain.device.shown_state
    :ivar holds: why it is not offered, whatever its state is: its holds and
        those of its GPU, each with its author and its beginning
    :ivar used_by: UUID of the instance that it is assigned to
    :ivar project_id: project of that instance
    :ivar kind: ``pci`` or ``mdev``
    :ivar parent: UUID of the parent GPU of an mdev row or a VF
    :ivar vgpu_type: type of the vGPU that exists there or may be created
    :ivar health: a domain.health.Health; None: it has none of its own
    :ivar health_reason: why it is not ok
    :ivar errors: errors that the host's kernel has counted, by kind
    :ivar host_state: a domain.host.HostState; None: not known
    :ivar type: type of the variant
    :ivar companions: addresses of the other functions of its card, which go
        to the same guest
    :ivar replaces: UUID of the device whose place it took; only in the
        answer about one device
    :ivar replaced_by: UUID of the device that took its place
    :ivar link_partitions: names of the link partitions that it is in
    """

    uuid: str
    host: str
    stable_id: str
    address: str
    variant: str | None
    state: str
    shown_state: str
    enabled: bool
    present: bool
    holds: tuple[str, ...] = ()
    used_by: str | None = None
    project_id: str | None = None
    vendor: str | None = None
    device: str | None = None
    subsystem_vendor: str | None = None
    subsystem: str | None = None
    revision: str | None = None
    class_code: str | None = None
    driver: str | None = None
    numa_node: int | None = None
    iommu_group: int | None = None
    slot: str | None = None
    serial: str | None = None
    dsn: str | None = None
    reason: str | None = None
    generation: int = 0
    kind: str = 'pci'
    parent: str | None = None
    vgpu_type: str | None = None
    health: str | None = None
    health_reason: str | None = None
    errors: dict[str, int] = dataclasses.field(default_factory=dict)
    host_state: str | None = None
    type: str | None = None
    companions: tuple[str, ...] = ()
    replaces: str | None = None
    replaced_by: str | None = None
    link_partitions: tuple[str, ...] = ()

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return self.uuid


@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldInfo:
    """A hold of a device or a host (domain.device).

    :ivar address: PCI address of the device; None: it holds the host
    :ivar device: UUID of the device; None: it holds the host
    :ivar since: when it began, ISO 8601, UTC
    :ivar actor: operator who set it; None: a conductor did
    """

    id: int
    host: str
    address: str | None
    device: str | None
    kind: str
    since: str
    actor: str | None
    reason: str | None

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return str(self.id)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssignmentInfo:
    """An active assignment.

    :ivar since: when it was claimed, ISO 8601, UTC
    :ivar used: ``yes`` or ``no``, as its host determined; ``unknown`` if the
        host, Nova or the hypervisor does not answer
    :ivar reason: why, in one sentence
    """

    uuid: str
    instance_uuid: str
    host: str
    address: str
    device_uuid: str
    stable_id: str
    variant: str
    vgpu_type: str
    role: str
    state: str
    migration_uuid: str | None
    since: str
    used: str
    reason: str

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return self.uuid
