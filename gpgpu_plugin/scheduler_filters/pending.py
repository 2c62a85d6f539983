# SPDX-License-Identifier: Apache-2.0
"""Choices that the conductor's answer does not show yet.

What they take is predicted by the rules of the claim, applied to masks. The
claim knows more, such as the nodes of the guest's memory and the placements of
vGPUs of several sizes. So a prediction serves to prefer hosts, never to refuse
one.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.domain import weighing
from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj

# -- What a choice takes of a host, by the rules of the claim.


_Topology = request_mod.GPUTopology
_Units = dict[int, int]
"""Units by the number of the GPU."""


def without_choice(sent: scheduling_obj.HostMasks,
                   request: request_mod.Request) -> scheduling_obj.HostMasks:
    """Return the masks of a host after a claim of a request.

    What does not fit is left out.
    """
    groups = list(sent.groups)
    for demand in request.demands:
        for index, group in enumerate(groups):
            if any(offer.resource_class == demand.resource_class
                   for offer in group.types):
                groups[index] = _without(group, demand, request)
                break
    return dataclasses.replace(sent, groups=tuple(groups))


def _without(group: scheduling_obj.GroupMasks, demand: request_mod.Demand,
             request: request_mod.Request) -> scheduling_obj.GroupMasks:
    offer = offer_of(group, demand.resource_class)
    taken = (_linked(offer, demand.count, request)
             or chosen(group, demand, request)
             or _whatever(units(offer), demand.count))
    return dataclasses.replace(group, types=tuple(
        _rest(other, taken, is_same=other is offer)
        for other in group.types))


def _linked(offer: scheduling_obj.TypeMasks, count: int,
            request: request_mod.Request) -> _Units:
    """Return the GPUs of the link partition that a claim must take, if any."""
    if not (request.is_linked or offer.fabric):
        return {}
    best = fabric.partitions_of(offer.partitions).best(offer.free, count)
    if best is None:
        return {}
    return {gpu: 1 for gpu in range(best.gpus.bit_length())
            if best.gpus >> gpu & 1}


def offer_of(group: scheduling_obj.GroupMasks, resource_class: str,
             ) -> scheduling_obj.TypeMasks:
    """Return the masks of a class that a group offers."""
    return next(offer for offer in group.types
                if offer.resource_class == resource_class)


def units(offer: scheduling_obj.TypeMasks) -> _Units:
    """Return the available units of each free GPU."""
    return {gpu: offer.available[gpu] if offer.available else 1
            for gpu in range(offer.free.bit_length())
            if offer.free >> gpu & 1}


def chosen(group: scheduling_obj.GroupMasks, demand: request_mod.Demand,
           request: request_mod.Request) -> _Units:
    """Return how many units of a demand a claim takes of each GPU.

    :returns: empty: it does not fit
    """
    offer = offer_of(group, demand.resource_class)
    if offer.most == 1:
        return _whole(group, offer, demand, request)
    return weighing.choose_for_vgpus(
        units(offer), offer.most, demand.count, tiers(group, request),
        breadth_first=is_breadth_first(group, request))


def is_breadth_first(group: scheduling_obj.GroupMasks,
                     request: request_mod.Request) -> bool:
    """Return whether a claim takes the emptiest GPUs first."""
    policy = request.allocation_policy or group.allocation_policy
    return policy is request_mod.AllocationPolicy.BREADTH_FIRST


def tiers(group: scheduling_obj.GroupMasks,
          request: request_mod.Request) -> weighing.Tiers:
    """Return the places of vGPUs, as domain.allocation.offer does."""
    places = group.numa
    if request.restricts_topology and not request.is_linked:
        if request.topology is _Topology.SAME_SWITCH:
            places = group.switches
        known = sum(places)
        return (*places, *(gpu for gpu in group.alone if not gpu & known)),
    if request.is_single or len(places) < 2:
        return weighing.ANYWHERE
    return places, *weighing.ANYWHERE


def _whole(group: scheduling_obj.GroupMasks, offer: scheduling_obj.TypeMasks,
           demand: request_mod.Demand, request: request_mod.Request) -> _Units:
    """Return the whole GPUs that the claim's own search selects."""
    gpus = [vgpu.GPUCapacity(
        id=f'{gpu:06}', passthrough=True, numa_node=_place(group.numa, gpu),
        switch=_switch(group, gpu)) for gpu in units(offer)]
    try:
        selections = allocate.allocate({
            demand.resource_class: offer_mod.TypeOffer(
                vgpu_type=naming.PASSTHROUGH, gpus=gpus)},
            request_mod.Request(demands=(demand,), topology=request.topology),
            {demand.resource_class: request.allocation_policy
             or group.allocation_policy})
    except request_mod.Unsatisfiable:
        return {}
    return {int(selection.gpu_id): 1
            for selection in selections[demand.resource_class]}


def _place(places: Sequence[int], gpu: int) -> int | None:
    """Return the number of the place that a GPU is in; None: unknown."""
    return next((number for number, place in enumerate(places)
                 if place >> gpu & 1), None)


def _switch(group: scheduling_obj.GroupMasks, gpu: int) -> str | None:
    found = _place(group.switches, gpu)
    return None if found is None else str(found)


def _whatever(available: _Units, count: int) -> _Units:
    """Return units of the GPUs in use, of a choice that does not fit."""
    taken = {}
    for gpu in sorted(available, key=lambda gpu: (available[gpu], gpu)):
        if count <= 0:
            break
        taken[gpu] = min(available[gpu], count)
        count -= taken[gpu]
    return taken


def _rest(offer: scheduling_obj.TypeMasks, taken: _Units,
          is_same: bool) -> scheduling_obj.TypeMasks:
    """Return what is left of a type; of other types nothing on these GPUs."""
    left = units(offer)
    for gpu, number in taken.items():
        left[gpu] = left.get(gpu, 0) - number if is_same else 0
    return dataclasses.replace(
        offer, free=sum(1 << gpu for gpu, number in left.items()
                        if number > 0),
        available=tuple(max(left.get(gpu, 0), 0)
                        for gpu in range(len(offer.available))))


# -- Choices, until the conductor's answer shows them.
#
# Between a decision and the claim on the host, another decision would see GPUs
# that are as good as taken. Placement knows how many, but not on which NUMA
# node or for which vGPU type.


@dataclasses.dataclass(frozen=True, kw_only=True)
class PendingChoice:
    """A host that was chosen for an instance.

    :ivar at: when, by the clock of the process
    :ivar is_expected: it is the best one, and Nova has not chosen yet
    """

    instance_uuid: str
    request: request_mod.Request
    at: float
    is_expected: bool = False


Observer = Callable[[str, str, request_mod.Request], None]
"""Function that is called with node, instance and request of a choice."""


def ignore(node_uuid: str, instance_uuid: str,
           request: request_mod.Request) -> None:
    """Observe nothing."""


class PendingChoices:
    """Choices of the last minute by node UUID. Thread-safe.

    :param observer: called with each choice of this scheduler, once
    :ivar of: an unchanged host has the same tuple as before; empty ones are
        left out
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic,
                 observer: Observer = ignore) -> None:
        self._clock = clock
        self._observer = observer
        self._lock = threading.Lock()
        self._of: dict[str, tuple[PendingChoice, ...]] = {}
        self.of: Mapping[str, tuple[PendingChoice, ...]] = self._of

    def add(self, node_uuid: str, instance_uuid: str,
            request: request_mod.Request) -> None:
        """Remember a choice; an older one for the instance is void."""
        with self._lock:
            is_known = self._has(node_uuid, instance_uuid)
            self._replace(node_uuid, instance_uuid, request)
        if not is_known:
            self._observer(node_uuid, instance_uuid, request)

    def add_other(self, node_uuid: str, instance_uuid: str,
                  request: request_mod.Request) -> None:
        """Remember a choice of another scheduler, the first time only."""
        with self._lock:
            if not self._has(node_uuid, instance_uuid):
                self._replace(node_uuid, instance_uuid, request)

    def _has(self, node_uuid: str, instance_uuid: str) -> bool:
        return any(known.instance_uuid == instance_uuid
                   for known in self._of.get(node_uuid, ()))

    def _replace(self, node_uuid: str, instance_uuid: str,
                 request: request_mod.Request) -> None:
        self._keep_all(lambda known: known.instance_uuid != instance_uuid)
        self._add(node_uuid, PendingChoice(
            instance_uuid=instance_uuid, request=request, at=self._clock()))

    def expect(self, node_uuid: str, instance_uuid: str,
               request: request_mod.Request) -> None:
        """Remember the choice that Nova is about to make.

        Another thread may decide before Placement has answered this one. A
        choice that was made already stands: Nova looks for alternates.
        """
        with self._lock:
            if any(self._has(node, instance_uuid) for node in self._of):
                return
            self._add(node_uuid, PendingChoice(
                instance_uuid=instance_uuid, request=request,
                at=self._clock(), is_expected=True))
        self._observer(node_uuid, instance_uuid, request)

    def withdraw(self, instance_uuid: str) -> None:
        """Forget what was expected for an instance that is decided anew."""
        if self._of:
            with self._lock:
                self._keep_all(lambda known: not (
                    known.is_expected
                    and known.instance_uuid == instance_uuid))

    def _add(self, node_uuid: str, choice: PendingChoice) -> None:
        self._of[node_uuid] = (*self._of.get(node_uuid, ()), choice)

    def confirm(self, sent: scheduling_obj.HostMasks) -> None:
        """Forget the choices that the conductor's answer shows."""
        if sent.node_uuid in self._of:
            with self._lock:
                self._keep(sent.node_uuid, lambda known: (
                    scheduling_obj.short_id(known.instance_uuid)
                    not in sent.instances))

    def expire(self) -> None:
        """Forget choices that did not become claims."""
        if self._of:
            oldest = self._clock() - scheduling_obj.LIFETIME
            with self._lock:
                self._keep_all(lambda known: known.at > oldest)

    def _keep_all(self, condition: Callable[[PendingChoice], bool]) -> None:
        for node in list(self._of):
            self._keep(node, condition)

    def _keep(self, node_uuid: str,
              condition: Callable[[PendingChoice], bool]) -> None:
        known = self._of.get(node_uuid, ())
        kept = tuple(filter(condition, known))
        if not kept:
            self._of.pop(node_uuid, None)
        elif len(kept) < len(known):
            self._of[node_uuid] = kept
