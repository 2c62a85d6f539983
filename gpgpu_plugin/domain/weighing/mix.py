# SPDX-License-Identifier: Apache-2.0
"""Mix of a cloud's requests: the share of each kind of request."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import random
from collections.abc import Collection
from collections.abc import Mapping

from gpgpu_plugin.domain.weighing import host as host_mod


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mix:
    """Requests with their shares, the commonest first.

    A request for linked GPUs counts like one for as many others. What
    schedulers send and conductors keep does not tell them apart, and that
    would not help: a choice that breaks partitions has its cost anyway.

    :ivar shares: their sum is 1
    """

    shares: Mapping[host_mod.Request, float]

    @classmethod
    def count(cls, counts: Mapping[host_mod.Request, float]) -> Mix:
        """Return the mix of counted requests."""
        merged: dict[host_mod.Request, float] = {}
        for request, number in counts.items():
            key = request._replace(is_linked=False)
            merged[key] = merged.get(key, 0) + number
        total = sum(merged.values())
        # Equal counts are put in an order that no hash decides.
        return cls(shares={
            request: merged[request] / total for request in sorted(
                merged, key=lambda request: (-merged[request], _key(request)))
        })

    @classmethod
    def learnt(cls, counts: Mapping[host_mod.Request, float],
               flavors: Collection[host_mod.Request]) -> Mix:
        """Return the mix of counted requests and some that are assumed.

        The assumed ones are equally many for each flavor. Without them, a
        large request would count as one that never arrives because it is not
        among the first.

        Requests without GPUs count as at most as many as those with GPUs.
        Most of them may go to other hosts, and anybody may make very many:
        the sequences would have hardly a request for GPUs.
        """
        assumed = _ASSUMED / max(1, len(flavors))
        both = {
            request: counts.get(request, 0.0)
            + (assumed if request in flavors else 0.0)
            for request in {**dict.fromkeys(flavors), **counts}}
        total = sum(both.values())
        with_gpus = sum(number for request, number in both.items()
                        if request.gpus)
        if not 0 < with_gpus < total / 2:
            return cls.count(both)
        part = with_gpus / (total - with_gpus)
        return cls.count({
            request: number if request.gpus else number * part
            for request, number in both.items()})

    def draw(self, *, sequences: int, length: int,
             ) -> list[list[host_mod.Request]]:
        """Return sequences of requests, the same in every process.

        The number of requests of a kind in a sequence differs from its share
        in the mix by less than one; over all sequences it is closer still.
        The order within a sequence is random. Figures from a few such
        sequences vary less than figures from independent requests.
        """
        generator = random.Random(0)
        kinds = sorted(self.shares, key=_kind)
        ends = list(itertools.accumulate(map(self.shares.__getitem__, kinds)))
        drawn = []
        for number in range(sequences if kinds else 0):
            sequence = [kinds[bisect.bisect_left(
                ends, (position + (number + .5) / sequences) / length
                * ends[-1])] for position in range(length)]
            generator.shuffle(sequence)
            drawn.append(sequence)
        return drawn

    @property
    def mean_units(self) -> float:
        """Units of GPUs that a request needs on average."""
        return sum(share * request.total_units
                   for request, share in self.shares.items())


_ASSUMED = 100.0
"""Requests that count beside those that arrived."""

_FIRST = 50
_FEW = 10_000
_STEP = 1000


def version(arrivals: int) -> int:
    """Return the version of a mix, by the number of requests counted for it.

    It rises whenever this number has doubled, and beyond 10,000 with every
    thousand, since a policy begins anew with each version. 0: there are too
    few requests to know a mix.
    """
    if arrivals < _FIRST:
        return 0
    steps = int(math.log2(min(arrivals, _FEW) / _FIRST))
    return 1 + steps + max(0, arrivals - _FEW) // _STEP


def _key(request: host_mod.Request) -> tuple[object, ...]:
    return (*request[:4], sorted(request.variants))


def _kind(request: host_mod.Request) -> tuple[object, ...]:
    """Return a key that puts alike requests beside one another."""
    return (sorted(request.variants), request.total_units, *request[:4])
