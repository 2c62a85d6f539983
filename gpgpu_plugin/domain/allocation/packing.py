# SPDX-License-Identifier: Apache-2.0
"""Packing of vGPUs onto GPUs, and reservation of GPUs for passthrough."""

from __future__ import annotations

import dataclasses
import fractions
import itertools
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import MutableMapping
from collections.abc import Sequence

from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.vgpu import capacity

_Policy = request_mod.AllocationPolicy
_Offers = Mapping[str, offer_mod.TypeOffer]
_GPUs = MutableMapping[str, capacity.GPUCapacity]

# Sets of GPUs that are reserved to stay whole, in turn.
_MAX_RESERVED = 24


def pack(gpus: _GPUs, offers: _Offers,
         demands: Iterable[request_mod.Demand],
         policy: request_mod.AllocationPolicy,
         ) -> dict[str, tuple[offer_mod.Selection, ...]] | None:
    """Place vGPUs one after the other.

    depth_first takes GPUs that have vGPUs already, and among them the one on
    which the larger types lose least. breadth_first takes the emptiest ones,
    and chooses among them in the same way. Remaining ties are decided by id.

    :param gpus: GPUs that may be used, by id; updated in place with the new
        vGPUs
    :returns: selections by resource class; None if they do not all fit
    """
    selected = {}
    for demand in demands:
        selections = _place(gpus, offers[demand.resource_class],
                            demand.count, policy)
        if selections is None:
            return None
        selected[demand.resource_class] = selections
    return selected


def _place(gpus: _GPUs, offer: offer_mod.TypeOffer, count: int,
           policy: request_mod.AllocationPolicy,
           ) -> tuple[offer_mod.Selection, ...] | None:
    """Place vGPUs of one type."""
    name = offer.vgpu_type
    costs = {gpu.id: _cost(gpus[gpu.id], name, policy) for gpu in offer.gpus
             if gpu.id in gpus and gpus[gpu.id].available(name)}
    selections = []
    for _ in range(count):
        if not costs:
            return None
        gpu_id = min(costs, key=costs.__getitem__)
        gpus[gpu_id] = gpu = gpus[gpu_id].with_vgpu(name)
        selections.append(offer_mod.Selection(
            gpu_id=gpu_id, vgpu_type=name,
            placement_id=gpu.vgpus[-1].placement_id))
        if gpu.available(name):
            costs[gpu_id] = _cost(gpu, name, policy)
        else:
            del costs[gpu_id]
    return tuple(selections)


def _cost(gpu: capacity.GPUCapacity, name: str,
          policy: request_mod.AllocationPolicy) -> tuple[object, ...]:
    """Return the cost of one more vGPU on a GPU; a lower cost is better."""
    used = 1 - fractions.Fraction(
        gpu.available(name), gpu.max_instances(name))
    cost = gpu.fragmentation_cost(name)
    if policy is _Policy.DEPTH_FIRST:
        return (not gpu.vgpus, cost, -used, gpu.id)
    return (used, cost, gpu.id)


def reserved_gpus(offers: Sequence[offer_mod.TypeOffer],
                  whole: Iterable[tuple[
                      offer_mod.TypeOffer, int,
                      Sequence[frozenset[str]] | None]],
                  ) -> Iterator[frozenset[str]]:
    """Return sets of GPUs to reserve for passthrough, the best first.

    The best GPUs to reserve are those that could take the fewest vGPUs. Of
    equivalent GPUs only the first ones are tried.

    :param offers: offers of the demanded vGPU types
    :param whole: offers of passthrough, each with the count demanded, and
        with the only sets of GPUs that are allowed, the best first; None: any
    """
    subsets: list[Iterable[Iterable[str]]] = []
    for offer, count, allowed in whole:
        if allowed is not None:
            subsets.append(allowed[:_MAX_RESERVED])
            continue
        gpus = sorted(
            (gpu for gpu in offer.gpus if gpu.available(naming.PASSTHROUGH)),
            key=lambda gpu: (_available(gpu, offers), gpu.id))
        subsets.append(itertools.islice(
            _subsets(_equivalence_classes(gpus, offers), count),
            _MAX_RESERVED))
    for combination in itertools.islice(
            itertools.product(*subsets), _MAX_RESERVED):
        yield frozenset(itertools.chain.from_iterable(combination))


def _available(gpu: capacity.GPUCapacity,
               offers: Iterable[offer_mod.TypeOffer]) -> int:
    return sum(offer.available_by_gpu.get(gpu.id, 0) for offer in offers)


def _equivalence_classes(gpus: Iterable[capacity.GPUCapacity],
                         offers: Collection[offer_mod.TypeOffer],
                         ) -> list[list[str]]:
    """Return the ids of GPUs, grouped by which vGPUs they can take."""
    classes: list[tuple[object, list[str]]] = []
    for gpu in gpus:
        demanded = {offer.vgpu_type for offer in offers
                    if gpu.id in offer.available_by_gpu}
        kind = (demanded, dataclasses.replace(
            gpu, id='', numa_node=None, switch=None)) if demanded else None
        members = next(
            (members for other, members in classes if other == kind), None)
        if members is None:
            classes.append((kind, [gpu.id]))
        else:
            members.append(gpu.id)
    return [members for _, members in classes]


def _subsets(classes: Sequence[Sequence[str]],
             count: int) -> Iterator[tuple[str, ...]]:
    """Return every distinct way to take a number of GPUs."""
    if not count:
        yield ()
    elif sum(map(len, classes)) >= count:
        first, *rest = classes
        for taken in range(min(count, len(first)), -1, -1):
            for others in _subsets(rest, count - taken):
                yield (*first[:taken], *others)
