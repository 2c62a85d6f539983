# SPDX-License-Identifier: Apache-2.0
"""What each authority says, as values that drifts are found in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gpgpu_plugin.doctor import drift
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import inventory

Amounts = Mapping[str, Mapping[str, int]]
"""Allocated units by consumer UUID and resource class."""


# -- a host -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guest:
    """A libvirt domain, and the devices that it has.

    :ivar uuid: of the domain, which is that of the instance
    :ivar functions: PCI addresses
    :ivar mdevs: UUIDs
    """

    uuid: str
    name: str
    functions: tuple[str, ...] = ()
    mdevs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceUse:
    """What Nova and the hypervisor say about an instance with devices here.

    :ivar unused: UUIDs of assignments that Nova does not need any more
    :ivar is_deleted: whether Nova deleted it
    :ivar is_active: whether its guest runs
    :ivar may_run_with_unused: whether its guest may run with the unused ones
    :ivar text: where it is, in one sentence
    """

    unused: frozenset[str]
    is_deleted: bool
    is_active: bool
    may_run_with_unused: bool
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """What the host's sysfs and its files for boot say.

    :ivar functions: all of the host
    :ivar vgpus: of functions whose driver has vGPUs, by stable id
    :ivar designated: addresses of functions that are kept for guests at boot
    """

    functions: tuple[pci.PCIFunction, ...] = ()
    vgpus: Mapping[str, capability.VGPUCapability] = dataclasses.field(
        default_factory=dict)
    designated: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Book:
    """What the host's file says.

    :ivar pending: UUIDs of assignments whose release is to be sent
    """

    assigned: tuple[claim.Assignment, ...] = ()
    pending: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostSnapshot:
    """What all authorities say about one host, as the host sees them.

    :ivar listed: active assignments, by the conductor
    :ivar devices: of the host, by the conductor
    :ivar building: UUIDs of instances that are being built here: they differ
        for a moment
    :ivar instances: by UUID; an instance of which nothing is known is absent
    :ivar guests: None: there is no hypervisor to ask
    """

    host: str
    listed: tuple[claim.Assignment, ...]
    devices: tuple[admin.DeviceInfo, ...]
    book: Book
    hardware: Hardware
    building: frozenset[str] = frozenset()
    instances: Mapping[str, InstanceUse] = dataclasses.field(
        default_factory=dict)
    guests: tuple[Guest, ...] | None = None


# -- the database -----------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssignedRow:
    """An active assignment of the database.

    :ivar provider_uuid: of the device's group; None: it is in none
    :ivar device_state: state of the device
    :ivar allocated: whether the conductor believes that an allocation in
        Placement covers it
    """

    uuid: str
    instance_uuid: str
    device_uuid: str
    address: str
    device_state: str
    provider_uuid: str | None
    resource_class: str
    allocated: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceRow:
    """A device of the database in a state that an assignment explains."""

    uuid: str
    address: str
    state: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CapacityRow:
    """Stored and computed capacity of a type: per GPU, maximum, remaining."""

    variant: str
    vgpu_type: str
    stored: tuple[int, int, int]
    computed: tuple[int, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostRows:
    """What the database says about one host.

    :ivar usages: UUIDs of assignments whose usage goes on
    :ivar restored_since: time of the last call of a host that must report
        after a restore of the database; None: it has
    """

    host: str
    restored_since: str | None = None
    assignments: tuple[AssignedRow, ...] = ()
    busy_devices: tuple[DeviceRow, ...] = ()
    capacities: tuple[CapacityRow, ...] = ()
    usages: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostRecord:
    """What the conductor answers about one host.

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
    """What the conductor answers about what belongs to no host.

    :ivar resource_classes: of all variants and their types
    """

    resource_classes: tuple[str, ...]
    drifts: tuple[drift.Drift, ...]


# -- Placement and Nova -----------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inventory:
    """Inventory of one resource class."""

    total: int
    reserved: int

    @property
    def offered(self) -> int:
        """Return the units that are not reserved."""
        return self.total - self.reserved


@dataclasses.dataclass(frozen=True, kw_only=True)
class Provider:
    """A resource provider in Placement.

    :ivar root: UUID of the provider of its compute node
    :ivar inventories: by resource class
    :ivar allocations: see Amounts
    """

    uuid: str
    name: str
    root: str = ''
    inventories: Mapping[str, Inventory] = dataclasses.field(
        default_factory=dict)
    traits: frozenset[str] = frozenset()
    allocations: Amounts = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """An instance, by Nova's REST API.

    :ivar task: what Nova is doing with it
    """

    uuid: str
    host: str | None
    task: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flavor:
    """A flavor, and the resource classes that it requests."""

    name: str
    resource_classes: tuple[str, ...]
