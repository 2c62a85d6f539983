# SPDX-License-Identifier: Apache-2.0
"""Which host should get vGPUs, where one GPU has one type at a time.

A GPU that was started with a type is of no use for whole-GPU requests and for
other types, so that it is filled before another one is started.

``choose`` says which GPUs of a host a claim takes, so that the weigher scores
what the claim will do. Within a host neither free vCPUs and RAM nor the mix of
requests matter: whichever GPUs are taken, the host has the same vCPUs and RAM
left, and GPUs that have the same units left are alike. The claim does not need
them. A property test compares ``choose`` with domain.allocation.allocate.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping

from gpgpu_plugin.domain.weighing import policy

EVERYWHERE = -1
"""The mask of all GPUs."""

_STARTED = 1000.0
"""Cost of starting a GPU; more than any number of units left on one."""

Tiers = Iterable[Iterable[int]]
"""Masks of GPUs of which one must have all units; the first tier in which one
has enough counts, and the masks of a tier are equally good."""

ANYWHERE: Tiers = ((EVERYWHERE,),)


def choose(units: Mapping[int, int], most: int, count: int,
           tiers: Tiers = ANYWHERE, *, breadth_first: bool = False,
           ) -> dict[int, int]:
    """Return how many units of a type a claim takes of each GPU.

    :param units: available units of the type, by the number of the GPU
    :param most: units of a GPU that has no other ones
    :param breadth_first: whether the emptiest GPU is the first one
    :returns: empty: no tier has enough
    """
    for tier in tiers:
        found = []
        for part in tier:
            within = {gpu: number for gpu, number in units.items()
                      if part >> gpu & 1}
            if sum(within.values()) >= count:
                taken = _take(within, count, breadth_first)
                found.append((_cost(within, most, taken, breadth_first),
                              taken))
        if found:
            return min(found, key=lambda outcome: outcome[0])[1]
    return {}


def _take(units: Mapping[int, int], count: int,
          breadth_first: bool) -> dict[int, int]:
    """Take units one after the other, as domain.allocation.packing does."""
    taken: dict[int, int] = {}
    sign = -1 if breadth_first else 1
    for _ in range(count):
        gpu = min((sign * (number - taken.get(gpu, 0)), gpu)
                  for gpu, number in units.items()
                  if number > taken.get(gpu, 0))[1]
        taken[gpu] = taken.get(gpu, 0) + 1
    return taken


def _cost(units: Mapping[int, int], most: int, taken: Mapping[int, int],
          breadth_first: bool) -> tuple[object, ...]:
    """Return the cost of a choice in one place, as allocate compares them."""
    empty = {gpu for gpu, number in units.items() if number == most}
    sign = -1 if breadth_first else 1
    return (sign * len(empty & taken.keys()), sign * len(empty),
            sorted(taken))


def gain(units: Mapping[int, int], most: int, count: int,
         tiers: Tiers = ANYWHERE, *, breadth_first: bool = False,
         is_spread: bool = False) -> float:
    """Return the worth of taking units on a host; more is better.

    :param is_spread: the host with the most units first
    :returns: policy.UNFIT: there are too few
    """
    taken = choose(units, most, count, tiers, breadth_first=breadth_first)
    if not taken:
        return policy.UNFIT
    total = sum(units.values())
    if is_spread:
        return float(total)
    started = sum(units[gpu] == most for gpu in taken)
    left = sum(units[gpu] - number for gpu, number in taken.items())
    # Of equal choices the fullest host.
    return -_STARTED * started - left - total / _STARTED
