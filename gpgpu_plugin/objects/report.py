# SPDX-License-Identifier: Apache-2.0
"""Reports of hosts: a scan as it is sent to the conductor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gpgpu_plugin.domain import health as health_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.domain.vgpu import driver_capacity
from gpgpu_plugin.objects import claim

DriverCapacities = Mapping[str, driver_capacity.DriverCapacity]
"""Reports of the drivers of a host's GPUs, by the GPUs' stable ids; what is
known of GPUs that are left out does not change."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostReport:
    """Result of one scan of one host.

    :ivar host: name of the nova-compute service (``[DEFAULT] host``)
    :ivar node: hypervisor hostname = name of Nova's root resource provider
    :ivar node_uuid: UUID of that provider
    :ivar functions: functions that the host's backends could prepare for a
        guest, whether or not a variant matches: only the conductor applies
        variants
    :ivar vgpu_capabilities: capabilities of functions whose driver has vGPUs,
        by stable id
    :ivar driver_capacities: capacities of GPUs whose driver reports them, by
        stable id
    :ivar health: of GPUs that are no VFs, by stable id; that of a GPU that is
        left out does not change
    :ivar problems: what could not be read, one sentence each
    :ivar service_disabled: whether nova-compute is disabled in Nova
    :ivar number: counts the scans of one session, so that one that was
        overtaken by a newer one is not stored
    :ivar assignments: with the first scan of a session, those in the host's
        book; None with later ones
    """

    host: str
    node: str
    node_uuid: str
    functions: tuple[pci.PCIFunction, ...]
    vgpu_capabilities: dict[str, capability.VGPUCapability] = (
        dataclasses.field(default_factory=dict))
    driver_capacities: dict[str, driver_capacity.DriverCapacity] = (
        dataclasses.field(default_factory=dict))
    health: dict[str, health_rules.Condition] = dataclasses.field(
        default_factory=dict)
    problems: tuple[str, ...] = ()
    service_disabled: bool = False
    number: int = 0
    assignments: tuple[claim.Assignment, ...] | None = None

    def __post_init__(self) -> None:
        claim.check_host(self.host, self.assignments or ())
