# SPDX-License-Identifier: Apache-2.0
"""Prediction of what a choice takes that the conductor does not know yet.

It applies the rules of the claim to masks. The claim knows more, such as the
nodes of the guest's memory and the placements of vGPUs of several sizes. So it
serves to prefer hosts, never to refuse one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import partition
from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.vgpu import capacity
from gpgpu_plugin.domain.weighing import vgpus
from gpgpu_plugin.objects import scheduling as scheduling_obj

_Topology = request_mod.Topology
_Units = dict[int, int]
"""Units by the number of the GPU."""


def without(sent: scheduling_obj.HostMasks, request: request_mod.Request,
            ) -> scheduling_obj.HostMasks:
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
    best = partition.of(offer.partitions).best(offer.free, count)
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
    return vgpus.choose(
        units(offer), offer.most, demand.count, tiers(group, request),
        breadth_first=is_breadth_first(group, request))


def is_breadth_first(group: scheduling_obj.GroupMasks,
                     request: request_mod.Request) -> bool:
    """Return whether a claim takes the emptiest GPUs first."""
    policy = request.allocation_policy or group.allocation_policy
    return policy is request_mod.AllocationPolicy.BREADTH_FIRST


def tiers(group: scheduling_obj.GroupMasks,
          request: request_mod.Request) -> vgpus.Tiers:
    """Return the places of vGPUs, as domain.allocation.region does."""
    places = group.numa
    if request.restricts_topology and not request.is_linked:
        if request.topology is _Topology.SAME_SWITCH:
            places = group.switches
        known = sum(places)
        return (*places, *(gpu for gpu in group.alone if not gpu & known)),
    if request.is_single or len(places) < 2:
        return vgpus.ANYWHERE
    return places, *vgpus.ANYWHERE


def _whole(group: scheduling_obj.GroupMasks, offer: scheduling_obj.TypeMasks,
           demand: request_mod.Demand, request: request_mod.Request) -> _Units:
    """Return the whole GPUs that the claim's own search selects."""
    gpus = [capacity.GPUCapacity(
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
