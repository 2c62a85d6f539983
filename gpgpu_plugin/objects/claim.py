# SPDX-License-Identifier: Apache-2.0
"""Claims: requests, and the assignments that they return."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from collections.abc import Mapping

from gpgpu_plugin import exception
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import inventory as inventory_obj


class ClaimRole(enum.StrEnum):
    """Purpose for which an instance uses its devices on one host.

    A build, unshelve or evacuation claims as ``instance``. A resize or cold
    migration claims as ``destination`` under its own UUID; when Nova confirms
    it, the role becomes ``instance``.
    """

    INSTANCE = 'instance'
    DESTINATION = 'destination'


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClaimRequest:
    """Devices for one instance in one role on one host.

    (instance_uuid, host, role, migration_uuid) is the key: the same request
    again returns the same devices, another request under the same key is a
    conflict.

    :ivar migration_uuid: the migration for whose destination the claim is;
        None for the role ``instance``
    :ivar source_host: from which the migration is; it may end this claim and
        confirm the migration. None: only ``host`` may
    :ivar flavor: name of the flavor that the devices are for
    :ivar allocated: units of the instance's Placement allocation by provider
        UUID and resource class, on any provider; the conductor uses only those
        of its own providers
    :ivar numa_nodes: the host's NUMA nodes on which the guest's memory is;
        None: anywhere
    :ivar numa_choices: other sets of nodes to which the host could move it
    :ivar sockets: the NUMA nodes of each of the host's sockets; empty:
        unknown
    :ivar exact_devices: names of devices, as domain.allocation.request reads
        them, which the instance gets instead of what a flavor requests. The
        caller adds them to the instance's Placement allocation
    """

    instance_uuid: str
    host: str
    role: ClaimRole = ClaimRole.INSTANCE
    migration_uuid: str | None = None
    source_host: str | None = None
    project_id: str
    user_id: str
    flavor: str
    request: request_mod.Request
    allocated: dict[str, dict[str, int]] = dataclasses.field(
        default_factory=dict)
    numa_nodes: tuple[int, ...] | None = None
    numa_choices: tuple[tuple[int, ...], ...] = ()
    sockets: tuple[tuple[int, ...], ...] = ()
    exact_devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.role is ClaimRole.DESTINATION) != bool(self.migration_uuid):
            raise exception.Invalid(
                field='migration_uuid', value=self.migration_uuid,
                expected='the UUID of a migration for the role destination, '
                         'and none for the role instance')


@dataclasses.dataclass(frozen=True, kw_only=True)
class MigrationConfirmation:
    """Nova's confirmation of one migration of one instance.

    :ivar source_assignments: UUIDs of the assignments of the instance on the
        source. They are listed so that a confirmation that is delivered late,
        or twice, does not end assignments that were claimed there since
    """

    instance_uuid: str
    migration_uuid: str
    source_assignments: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assignment:
    """One device assigned to one instance.

    :ivar uuid: identifies this assignment, never a later one of the same
        device
    :ivar migration_uuid: the migration of the role ``destination``, else None
    :ivar source_host: from which the migration is, as in ClaimRequest
    :ivar vgpu_type: ``passthrough`` for a whole GPU
    :ivar placement_id: placement of the vGPU on its GPU, as in
        gpgpu_plugin.domain.vgpu.VGPU
    :ivar state: the device's state
    :ivar lease_expires_at: seconds since the epoch until which a claim that
        was not activated is presumed alive; None once activated
    :ivar host_generation: generation of the host before the claim. A later
        claim on the host has a higher one, also after the database was
        restored
    :ivar exact: whether the instance named the device instead of requesting
        one by its flavor. It keeps the device in a resize on one host
    :ivar project_id, user_id, flavor: as in ClaimRequest
    :ivar used_seconds: for how long a guest has used the device; only a host
        that reports its book says so; None: unknown
    """

    uuid: codec.StoredUUID
    instance_uuid: codec.StoredUUID
    host: str
    role: ClaimRole
    migration_uuid: codec.StoredUUID | None = None
    source_host: str | None = None
    device_uuid: codec.StoredUUID
    stable_id: str
    address: str
    variant: str
    resource_class: str
    vgpu_type: str = naming.PASSTHROUGH
    placement_id: codec.Counter | None = None
    state: str
    lease_expires_at: codec.StoredTime | None = None
    host_generation: codec.Counter
    exact: bool = False
    project_id: str
    user_id: str
    flavor: str
    used_seconds: codec.StoredCounter | None = None


def is_used(role: str, lease_expires_at: float | None) -> bool:
    """Return whether a guest has the device of an assignment for good.

    The devices of a migration's destination are not the guest's until Nova
    confirms it.
    """
    return lease_expires_at is None and role == ClaimRole.INSTANCE


def check_host(host: str, book: Iterable[Assignment]) -> None:
    """Refuse a book with assignments of another host.

    Their devices may have the ids of this host's.

    :raises Invalid: naming the other host
    """
    for assignment in book:
        if assignment.host != host:
            raise exception.Invalid(
                field='host', value=assignment.host,
                expected=f'assignments of {host} alone')


GuestAddresses = Mapping[str, tuple[str, ...]]
"""PCI addresses in a guest, of all functions of a device, by UUID of the
assignment; empty: unknown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """Use of an assignment by Nova or the hypervisor of its host.

    :ivar uuid: UUID of the assignment
    :ivar used: None: unknown
    :ivar reason: where the instance is, or why that is unknown, in one
        sentence
    """

    uuid: str
    used: bool | None
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """Assignments that a claim returns, and the host's inventory after it.

    ``assignments`` is empty if no demand is for a class of the plugin.

    :ivar numa_nodes: the request's ``numa_nodes``, or one of its
        ``numa_choices`` if the GPUs are for a guest on these nodes
    """

    assignments: tuple[Assignment, ...]
    inventory: inventory_obj.HostInventory
    numa_nodes: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleanTask:
    """A dirty device that its host must clean.

    :ivar assignment_uuid: its last assignment; None if it never had one
    :ivar had_guest: whether a guest had the device in its place, so that its
        host must know how the device was before
    :ivar replaces: whether it took the place of another device and nobody
        has had it there since: what the host knows is about the other one
    :ivar vgpu_type: type of the vGPU that exists or may exist
    :ivar token: the attempt to clean the device that is going on, else the
        request; a start with another token is refused
    :ivar request: what made the device dirty: its last assignment, or what an
        operator did
    :ivar steps: those that the cleaning must pass, in their order
    :ivar memory_mib: MiB of memory of the whole GPU; None: unknown
    """

    device_uuid: str
    stable_id: str
    address: str
    variant: str | None
    token: str
    request: str
    assignment_uuid: str | None = None
    had_guest: bool
    replaces: bool = False
    vgpu_type: str | None = None
    steps: tuple[str, ...]
    memory_mib: int | None = None
