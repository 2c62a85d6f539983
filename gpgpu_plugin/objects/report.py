# SPDX-License-Identifier: Apache-2.0
"""Reports and sessions of hosts."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from collections.abc import Mapping

from gpgpu_plugin.domain import health as health_rules
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import codec

DriverCapacities = Mapping[str, vgpu.DriverCapacity]
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
    vgpu_capabilities: dict[str, vgpu.VGPUCapability] = (
        dataclasses.field(default_factory=dict))
    driver_capacities: dict[str, vgpu.DriverCapacity] = (
        dataclasses.field(default_factory=dict))
    health: dict[str, health_rules.Condition] = dataclasses.field(
        default_factory=dict)
    problems: tuple[str, ...] = ()
    service_disabled: bool = False
    number: int = 0
    assignments: tuple[claim.Assignment, ...] | None = None

    def __post_init__(self) -> None:
        claim.check_host(self.host, self.assignments or ())


# -- Sessions: who speaks for a host, and what its nova-compute knows.


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """One start of nova-compute that asks to speak for its host.

    :ivar node: hypervisor hostname = name of Nova's root resource provider
    :ivar node_uuid: UUID of that provider
    :ivar start_uuid: made at each start of nova-compute
    :ivar identity: of the machine
    :ivar expected: number of the newest session that the host knows of, 0 for
        none. A request that another start has overtaken names an older one
        and is refused
    :ivar generation: highest generation of the host that a conductor
        acknowledged
    :ivar superseded: this start had a session, and a newer one took its
        place: it must not take it back from a nova-compute that is alive
    :ivar doubted: the database contradicts the host's book, so it must have
        been restored from a backup
    :ivar version: of its gpgpu_plugin
    :ivar cloud: UUID of the cloud that gave it sessions before; empty: none
    """

    host: str
    node: str
    node_uuid: str
    start_uuid: str
    identity: host_rules.MachineIdentity
    expected: codec.Counter = 0
    generation: codec.Counter = 0
    superseded: bool = False
    doubted: bool = False
    version: str
    cloud: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """Session that a conductor gave to one start of nova-compute.

    :ivar restored: the conductor's database knows less than the host: it was
        restored from a backup, or the host was deleted in it
    :ivar cloud: UUID of the cloud; the host keeps it
    """

    number: int
    generation: int
    restored: bool
    cloud: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """Speaker of a call: one session of one host.

    :ivar generation: highest generation of the host that a conductor
        acknowledged
    """

    host: str
    node_uuid: str
    start_uuid: str
    session: codec.Counter
    generation: codec.Counter


def digest(generation: int,
           assignments: Iterable[tuple[str, str, str, str]]) -> int:
    """Return one number for what a host and the conductor must agree on.

    :param assignments: UUID, instance UUID, role and migration UUID ('' for
        none) of those that are active on the host
    :returns: 63 bits, which any database and JSON reader can hold
    """
    text = '\n'.join([
        str(generation), *sorted(' '.join(row) for row in assignments)])
    return int.from_bytes(
        hashlib.sha256(text.encode()).digest()[:8]) >> 1
