# SPDX-License-Identifier: Apache-2.0
"""Requests that arrive until a load is reached, and what got a place.

The protocol is that of the published study: nobody leaves, and a refused
request is gone.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from bench.simulation import cloud as cloud_mod
from gpgpu_plugin.domain import weighing

_EARLY = 95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a simulation.

    :ivar allocated_percent: GPUs in use of all, mean over the arrivals whose
        arrived load rounds to the load asked for
    :ivar at95: the same at a load of 95 %; None: that load was not reached
    :ivar refused: requests that fitted nowhere
    :ivar decisions: requests that were decided
    :ivar curve: allocated percent by arrived load in percent
    """

    allocated_percent: float
    at95: float | None
    refused: int
    decisions: int
    curve: Mapping[int, float]


def draw(requests: Sequence[weighing.WeighedRequest], units: float,
         generator: random.Random) -> list[weighing.WeighedRequest]:
    """Return requests in random order that need so many units together.

    Some are left out, or repeated. One of them at least must need a GPU.
    """
    drawn = list(requests)
    generator.shuffle(drawn)
    total = sum(request.total_units for request in drawn)
    while total > units:
        total -= drawn.pop().total_units
    while total < units:
        request = requests[generator.randrange(len(requests))]
        drawn.append(request)
        total += request.total_units
    return drawn


def simulate(hosts: Sequence[weighing.HostCapacity],
             requests: Sequence[weighing.WeighedRequest],
             make: Callable[[], weighing.Policy], *,
             load: float, seed: int, learn_mix: bool = False) -> Outcome:
    """Place requests in a cloud until a load has arrived.

    :param learn_mix: count the mix while requests arrive, all alike at
        first, instead of knowing it
    """
    generator = random.Random(seed)
    order = list(hosts)
    generator.shuffle(order)
    capacity = sum(sum(host.free) for host in order)
    drawn = draw(requests, load * capacity, generator)
    known = collections.Counter(requests)
    cloud = cloud_mod.Cloud(order, make(), weighing.Mix.count(
        dict.fromkeys(known, 1) if learn_mix else known))
    meter = _Meter(capacity)
    counted: collections.Counter[
        weighing.WeighedRequest] = collections.Counter()
    version = 0
    for number, request in enumerate(drawn, 1):
        meter.add(request, cloud.place(request) is not None)
        counted[request] += 1
        if learn_mix and weighing.mix_version(number) > version:
            version = weighing.mix_version(number)
            cloud.use_mix(weighing.Mix.learnt(counted, known))
    return meter.outcome(round(100 * load))


class _Meter:
    """Allocated units by arrived load."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._arrived = self._allocated = self._refused = self._count = 0
        self._by_load: dict[int, list[float]] = {}

    def add(self, request: weighing.WeighedRequest, placed: bool) -> None:
        """Count an arrival."""
        self._count += 1
        self._arrived += request.total_units
        if placed:
            self._allocated += request.total_units
        else:
            self._refused += 1
        percent = 100 * self._allocated / self._capacity
        self._by_load.setdefault(
            round(100 * self._arrived / self._capacity), []).append(percent)

    def outcome(self, load: int) -> Outcome:
        """Return the figures at a load in percent."""
        curve = {percent: sum(figures) / len(figures)
                 for percent, figures in self._by_load.items()}
        final = curve.get(load)
        if final is None:
            final = self._by_load[max(self._by_load)][-1]
        return Outcome(
            allocated_percent=final, at95=curve.get(_EARLY),
            refused=self._refused, decisions=self._count, curve=curve)
