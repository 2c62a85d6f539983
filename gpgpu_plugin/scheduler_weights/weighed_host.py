# SPDX-License-Identifier: Apache-2.0
"""A host in the eyes of the policy, kept between decisions."""

from __future__ import annotations

import typing
from collections.abc import Mapping

from gpgpu_plugin.domain import partition
from gpgpu_plugin.domain.weighing import host as weighing_host
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.scheduler_filters import pending as pending_mod
from gpgpu_plugin.scheduler_filters import prediction
from gpgpu_plugin.scheduler_filters import scheduler_host

if typing.TYPE_CHECKING:
    # Nova is not installed wherever hosts are ranked.
    from gpgpu_plugin.compute import nova_types

States = Mapping[str, weighing_host.Host]
"""State of each group of a host, by the UUID of its provider."""

Key = int | tuple[object, str]
"""Number of a kind of request; with providers, where several groups offer its
class."""

_NO_STATES: States = {}


class Score(typing.NamedTuple):
    """Worth of a host for a kind of request.

    :ivar lost: index of the lost capacity in ``Ranking._lost``; not a count
    """

    gain: float
    lost: int


class WeighedHost:
    """State of a host, and its scores as of that state.

    What it is made of is compared by identity in each decision: another view,
    another pending choice or another instance makes another WeighedHost.

    :ivar known: as the conductor sent it
    :ivar pending: choices that are subtracted from it
    :ivar vcpus_used: as Nova says, as is ``free_ram_mb``
    :ivar expected: ``known`` minus the GPUs of the pending choices
    :ivar states: of each group, by the UUID of its provider
    :ivar scores: by kind of request and provider
    """

    __slots__ = ('expected', 'free_ram_mb', 'known', 'pending', 'scores',
                 'states', 'vcpus_used')

    def __init__(self, host: nova_types.HostState,
                 known: scheduler_host.SchedulerHost,
                 pending: tuple[pending_mod.Choice, ...]) -> None:
        self.known = known
        self.pending = pending
        self.vcpus_used = host.vcpus_used
        self.free_ram_mb = host.free_ram_mb
        self._subtract()
        self.scores: dict[Key, Score] = {}
        self.states = _states(
            self.expected.sent, _free_milli_vcpus(host), _free_memory(host),
            len(pending))

    def _subtract(self) -> None:
        self.expected = self.known
        if self.pending:
            sent = self.known.sent
            for choice in self.pending:
                sent = prediction.without(sent, choice.request)
            self.expected = scheduler_host.SchedulerHost(sent)

    def update(self, known: scheduler_host.SchedulerHost,
               pending: tuple[pending_mod.Choice, ...]) -> None:
        """Take another view of the GPUs; vCPUs and RAM stay as they were."""
        state = next(iter(self.states.values()), None)
        self.known, self.pending = known, pending
        self._subtract()
        self.scores = {}
        self.states = _NO_STATES if state is None else _states(
            self.expected.sent, state.milli_vcpus, state.memory_mib,
            len(pending))

    def groups(self, resource_class: str) -> list[scheduling_obj.GroupMasks]:
        """Return the groups that offer a class."""
        return [group for group in self.expected.sent.groups
                if any(offer.resource_class == resource_class
                       for offer in group.types)]


def _free_milli_vcpus(host: nova_types.HostState) -> int:
    total = host.vcpus_total * (host.cpu_allocation_ratio or 1.0)
    return max(0, int(1000 * (total - host.vcpus_used)))


def _free_memory(host: nova_types.HostState) -> int:
    total = host.total_usable_ram_mb
    used = total - host.free_ram_mb
    return max(0, int(total * (host.ram_allocation_ratio or 1.0)) - used)


def _states(sent: scheduling_obj.HostMasks, milli_vcpus: int,
            memory_mib: int, pending: int) -> States:
    guests = len(sent.instances) + pending
    return {group.provider_uuid: weighing_host.Host(
        milli_vcpus, memory_mib, _free(group), group.variant,
        _links(group, guests)) for group in sent.groups}


def _links(group: scheduling_obj.GroupMasks,
           guests: int) -> weighing_host.Links | None:
    """Return the link partitions of a group's whole GPUs, if it has some.

    :param guests: instances that have GPUs of the host
    """
    return next((weighing_host.Links(
        partition.of(offer.partitions), offer.free, offer.fabric, guests)
        for offer in group.types if offer.partitions or offer.fabric), None)


def _free(group: scheduling_obj.GroupMasks) -> tuple[int, ...]:
    """Return the free units of each GPU that has some, in ascending order."""
    units: dict[int, int] = {}
    for offer in group.types:
        for gpu in range(offer.free.bit_length()):
            if offer.free >> gpu & 1:
                share = (offer.available[gpu] if offer.available else 1
                         ) * weighing_host.WHOLE // offer.most
                units[gpu] = max(units.get(gpu, 0), share)
    return tuple(sorted(units.values()))
