#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Prediction of what a choice takes that the conductor does not know yet.

It is a guess: the claim selects the GPUs. It serves to prefer hosts, never to
refuse one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gpgpu_plugin.domain import partition
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj

_EVERY = -1
"""The mask of all GPUs."""


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
    offer = next(offer for offer in group.types
                 if offer.resource_class == demand.resource_class)
    taken = _linked(offer, demand.count, request) or _taken(
        _units(offer), demand.count, _places(group, request.topology))
    return dataclasses.replace(group, types=tuple(
        _rest(other, taken, is_same=other is offer)
        for other in group.types))


def _linked(offer: scheduling_obj.TypeMasks, count: int,
            request: request_mod.Request) -> dict[int, int]:
    """Return the GPUs of the link partition that a claim must take, if any."""
    if not (request.is_linked or offer.fabric):
        return {}
    best = partition.of(offer.partitions).best(offer.free, count)
    if best is None:
        return {}
    return {gpu: 1 for gpu in range(best.gpus.bit_length())
            if best.gpus >> gpu & 1}


def _units(offer: scheduling_obj.TypeMasks) -> dict[int, int]:
    """Return the available units of each free GPU, by its number."""
    return {gpu: offer.available[gpu] if offer.available else 1
            for gpu in range(offer.free.bit_length())
            if offer.free >> gpu & 1}


def _places(group: scheduling_obj.GroupMasks,
            topology: request_mod.Topology) -> Sequence[int]:
    """Return the masks of GPUs of which one should have all units."""
    if topology is request_mod.Topology.SAME_SWITCH:
        return group.switches
    # Without a topology a claim uses as few NUMA nodes as it can.
    return group.numa


def _taken(units: dict[int, int], count: int, places: Sequence[int],
           ) -> dict[int, int]:
    """Return how many units are taken of each GPU.

    All come from the place that they fill the most; GPUs in use come first.
    """
    sizes = {place: sum(number for gpu, number in units.items()
                        if place >> gpu & 1) for place in places}
    place = min((place for place, size in sizes.items() if size >= count),
                key=lambda place: (sizes[place], place), default=_EVERY)
    taken = {}
    for gpu in sorted((gpu for gpu in units if place >> gpu & 1),
                      key=lambda gpu: (units[gpu], gpu)):
        if count <= 0:
            break
        taken[gpu] = min(units[gpu], count)
        count -= taken[gpu]
    return taken


def _rest(offer: scheduling_obj.TypeMasks, taken: dict[int, int],
          is_same: bool) -> scheduling_obj.TypeMasks:
    """Return what is left of a type; of other types nothing on these GPUs."""
    left = _units(offer)
    for gpu, number in taken.items():
        left[gpu] = left.get(gpu, 0) - number if is_same else 0
    return dataclasses.replace(
        offer, free=sum(1 << gpu for gpu, number in left.items()
                        if number > 0),
        available=tuple(max(left.get(gpu, 0), 0)
                        for gpu in range(len(offer.available))))
