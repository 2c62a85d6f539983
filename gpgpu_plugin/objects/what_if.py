# SPDX-License-Identifier: Apache-2.0
"""Questions and answers of ``gpgpu-manage what-if``."""

from __future__ import annotations

import dataclasses

from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.why_not import host as host_mod
from gpgpu_plugin.objects import why_not

Amounts = dict[str, dict[str, int]]
"""Amounts by the UUID of a provider and by resource class."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaving:
    """An instance that has devices on a host that is to be drained.

    :ivar resources: number of its devices there, by resource class
    :ivar exact: whether it named them in a scheduler hint
    :ivar cleaning_seconds: how long the last cleaning of its devices took
        that passed, the longest; None: not known
    """

    instance_uuid: str
    host: str
    resources: dict[str, int]
    exact: bool = False
    cleaning_seconds: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """Candidates of Placement on one host.

    :ivar node_uuid: of the compute node
    :ivar allocations: what each of them would allocate
    """

    node_uuid: str
    allocations: tuple[Amounts, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """What some of the instances request alike.

    :ivar guest_nodes: number of NUMA nodes of the guest; None: it has no
        NUMA topology
    :ivar closed: hosts that Nova does not select for it
    """

    request: request_mod.Request
    guest_nodes: int | None = None
    options: tuple[Option, ...] = ()
    closed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrainQuestion:
    """Instances for which hosts are searched.

    :ivar hosts: those that are to be drained
    :ivar kinds: what the instances request
    :ivar leaving: number of the kind of each instance, by its UUID
    :ivar free: what Placement can still allocate
    """

    hosts: tuple[str, ...]
    kinds: tuple[Kind, ...] = ()
    leaving: dict[str, int] = dataclasses.field(default_factory=dict)
    free: Amounts = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFinding:
    """A reason of one host to refuse an instance."""

    host: str
    finding: host_mod.Finding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Move:
    """Where an instance would go.

    :ivar target: name of the host; None: it fits nowhere
    :ivar refusals: of hosts with such GPUs, when all others have moved
    :ivar change: the smallest change of ``change_host`` after which the
        plugin takes it there; may be empty
    """

    instance_uuid: str
    target: str | None = None
    refusals: tuple[HostFinding, ...] = ()
    change_host: str | None = None
    change: tuple[why_not.ChangeInfo, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capacity:
    """Units of a type that all hosts have left for new instances.

    :ivar before: now
    :ivar after: when the hosts are drained and the instances have moved
    """

    variant: str
    vgpu_type: str
    resource_class: str
    before: int
    after: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrainAnswer:
    """Answer to a DrainQuestion.

    :ivar moves: in the order in which they are possible; those that fit
        nowhere come last
    :ivar orders: how many orders were tried
    :ivar examined: how many hosts were examined
    :ivar cut: whether time was over before all hosts that matter were
    """

    moves: tuple[Move, ...]
    capacities: tuple[Capacity, ...]
    orders: int
    examined: int
    cut: bool = False
