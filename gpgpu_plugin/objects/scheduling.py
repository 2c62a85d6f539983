# SPDX-License-Identifier: Apache-2.0
"""Availability of a host's groups, for schedulers."""

from __future__ import annotations

import dataclasses
import datetime
import typing
import zlib
from collections.abc import Iterable

from gpgpu_plugin.domain import fabric as fabric_rules
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import codec


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypeMasks:
    """Availability of one resource class of a group, by GPU.

    :ivar free: mask of the GPUs with at least one available unit
    :ivar available: available units by GPU; empty if each free GPU has one
    :ivar most: units of a GPU that has no other ones
    :ivar partitions: masks of link partitions; only of whole GPUs
    :ivar fabric: as in domain.fabric.Links
    :ivar problem: as in domain.allocation.feasibility.Masks
    """

    resource_class: str
    free: int
    available: tuple[int, ...] = ()
    most: int = 1
    partitions: tuple[int, ...] = ()
    fabric: bool = False
    problem: str = fabric_rules.NOTHING_KNOWN.problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupMasks:
    """Masks of one group, for schedulers. Bit i of a mask is GPU i.

    :ivar types: one entry per resource class
    :ivar numa: one mask of GPUs per known NUMA node; a GPU whose node is
        unknown is in none of them
    :ivar numa_nodes: the ids of these nodes
    :ivar switches: one mask of GPUs per PCIe switch
    :ivar alone: as in domain.allocation.feasibility.Masks
    :ivar states: number of GPUs by state, ``missing`` and ``disabled`` first
    :ivar allocation_policy: by which claims take its GPUs if the request
        names none
    """

    variant: str
    provider_uuid: str
    types: tuple[TypeMasks, ...]
    numa: tuple[int, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    switches: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()
    states: dict[str, int] = dataclasses.field(default_factory=dict)
    allocation_policy: request_mod.AllocationPolicy = (
        request_mod.AllocationPolicy.DEPTH_FIRST)


class HostVersion(typing.NamedTuple):
    """State of a host after one change. It is a list on the wire.

    :ivar id: of the host in the database
    :ivar generation: counts the changes of the host
    :ivar changed_at: seconds since the epoch, by the database's clock. It
        tells two hosts apart that had one id before and after the database was
        set up anew
    """

    id: int
    generation: int
    changed_at: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostMasks:
    """Masks of one host, for schedulers.

    Masks of the groups of one host have the same order: entry i of ``numa``
    (``switches``, ``alone``) is the same node (switch, GPU) in every group.

    :ivar instances: ``short_id`` of those that have devices
    """

    host: str
    node_uuid: str
    version: HostVersion
    groups: tuple[GroupMasks, ...] = ()
    deleted: bool = False
    instances: tuple[str, ...] = ()


class RequestKind(typing.NamedTuple):
    """Properties that many requests have in common; a list on the wire.

    :ivar resource_class: of its GPUs or vGPUs, of which there are ``units``;
        empty: it has none
    """

    vcpus: int
    memory_mib: int
    resource_class: str = ''
    units: int = 0

    @classmethod
    def of(cls, vcpus: int, memory_mib: int,
           request: request_mod.Request) -> RequestKind:
        """Return the kind of a request, by the largest of its demands."""
        if not request.demands:
            return cls(vcpus, memory_mib)
        demand = main_demand(request)
        return cls(vcpus, memory_mib, demand.resource_class, demand.count)


def main_demand(request: request_mod.Request) -> request_mod.Demand:
    """Return the demand by which a request is weighed: the largest one."""
    return max(request.demands, key=lambda demand: demand.count)


class ArrivedRequests(typing.NamedTuple):
    """Requests of one kind that a scheduler got. It is a list on the wire.

    :ivar instances: UUIDs of their instances
    """

    kind: RequestKind
    instances: tuple[str, ...]


class CountedRequests(typing.NamedTuple):
    """Requests of one kind. It is a list on the wire.

    :ivar number: how many; in a mix the older ones count less
    """

    kind: RequestKind
    number: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestMix:
    """Requests of the cloud: those with GPUs, then those without.

    :ivar version: rises when enough requests arrived since
    """

    version: int
    requests: tuple[CountedRequests, ...]


LIFETIME = 60.0
"""Seconds after which a choice that never became a claim is forgotten. It only
lowers the rank of a host meanwhile."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerChoice:
    """A host that a scheduler chose and that has not claimed yet.

    :ivar scheduler: identity of the scheduler, made anew when it starts
    :ivar node_uuid: UUID of the host's compute node
    :ivar request: what the instance takes of the host
    """

    scheduler: str
    node_uuid: str
    instance_uuid: str
    request: request_mod.Request


def short_id(instance_uuid: str) -> str:
    """Return the part of a UUID that tells the instances of a host apart."""
    return instance_uuid[:8]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changes:
    """One page of hosts that changed.

    :ivar since: time by the database's clock; no change before it becomes
        visible any more. To be sent with the next call, once all pages have
        been read; that of the first page counts
    :ivar packed: see ``unpack``
    :ivar marker: to be sent for the next page; None: this is the last one
    :ivar anew: the pages will have all hosts; the caller drops what it knows
    :ivar recorded: the conductor has the refusals that came with the call,
        and the requests
    :ivar mix: None: no newer version than the caller's
    :ivar choices: those of the time that the caller asked for, its own
        included
    """

    since: float
    packed: bytes
    marker: int | None = None
    anew: bool = False
    recorded: bool = False
    mix: RequestMix | None = None
    choices: tuple[SchedulerChoice, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactRequest:
    """Instance that names its devices in a scheduler hint.

    :ivar devices: names, as domain.allocation.request reads them
    :ivar request: of its flavor, which must demand none of the plugin's
        classes
    """

    instance_uuid: str
    project_id: str | None
    devices: tuple[str, ...]
    request: request_mod.Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactHost:
    """The only host that has the devices that an instance names.

    :ivar node_uuid: UUID of its compute node
    :ivar refusal: why no host can have the instance; None: this one can
    """

    host: str = ''
    node_uuid: str = ''
    refusal: request_mod.Refusal | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilterRefusal:
    """Hosts that a filter refused in one scheduling decision.

    :ivar at: when, UTC without a zone
    :ivar request_id: of the user's request to Nova
    :ivar reasons: number of refused hosts by the name of the reason
    :ivar passed: number of hosts that were not refused
    :ivar detail: of the last refusal, such as ``2 requested, 1 available``
    """

    filter: str
    at: datetime.datetime
    instance_uuid: str
    project_id: str | None
    request_id: str | None
    reasons: dict[str, int]
    passed: int
    detail: str

    @property
    def reason(self) -> str:
        """Name of the most frequent reason."""
        return max(sorted(self.reasons), key=self.reasons.__getitem__,
                   default='')

    @property
    def text(self) -> str:
        """The numbers in words, for operators."""
        counts = ', '.join(f'{reason} {count}' for reason, count
                           in sorted(self.reasons.items()))
        return (f'{self.filter} refused {sum(self.reasons.values())} hosts '
                f'({counts}) and left {self.passed}; the last one: '
                f'{self.detail}')


def encode(host: HostMasks) -> bytes:
    """Return the masks of a host as JSON."""
    return codec.encode(host)


def pack(hosts: Iterable[bytes]) -> bytes:
    """Return encoded hosts as one compressed list.

    Hosts resemble each other, so that it is about a tenth of their size.
    """
    return zlib.compress(b'[' + b','.join(hosts) + b']', level=1)


def unpack(packed: bytes) -> tuple[HostMasks, ...]:
    """Return the hosts of a list.

    :raises Invalid: a host does not fit the type
    """
    return codec.decode(tuple[HostMasks, ...], zlib.decompress(packed))
