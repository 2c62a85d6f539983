# SPDX-License-Identifier: Apache-2.0
"""Fragmentation gradient descent (FGD), the best published policy."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gpgpu_plugin.domain import weighing

_COMMONEST = 0.95
_MOST_STATES = 400_000

Kind = tuple[int, int, int, float]


class FragmentationGradientDescent(weighing.Policy):
    """The host whose expected fragmentation grows the least.

    A fragment is capacity that a common request cannot use. Memory is
    ignored, and scores are whole numbers, as in the published study.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._kinds: dict[tuple[int, int, int, frozenset[str]], float] = {}
        self._by_variant: dict[str, tuple[list[Kind], float]] = {}
        self._known: dict[tuple[object, ...], float] = {}

    def start(self, mix: weighing.Mix, hosts: Iterable[weighing.HostCapacity],
              ) -> None:
        """Take the commonest requests of the mix."""
        self._reset()
        counted: dict[tuple[int, int, int, frozenset[str]], float] = {}
        for request, share in mix.shares.items():
            key = (request.milli_vcpus, request.gpus, request.units,
                   request.variants)
            counted[key] = counted.get(key, 0.0) + share
        total = 0.0
        for key in sorted(counted, key=lambda key: -counted[key]):
            if total >= _COMMONEST:
                break
            self._kinds[key] = counted[key]
            total += counted[key]
        self._kinds = {key: share / total
                       for key, share in self._kinds.items()}

    def gain(self, host: weighing.HostCapacity,
             request: weighing.WeighedRequest,
             after: weighing.HostCapacity) -> float:
        """Return 0 to 100; 50 leaves the fragmentation as it is."""
        change = self.fragments(host) - self.fragments(after)
        return 100 / (1 + math.exp(-change / weighing.WHOLE)) // 1

    def fragments(self, host: weighing.HostCapacity) -> float:
        """Return the units that a random common request cannot use."""
        key = (host.milli_vcpus, host.free, host.variant)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_STATES:
                self._known.clear()
            found = self._known[key] = self._compute(host)
        return found

    def _compute(self, host: weighing.HostCapacity) -> float:
        kinds, unusable = self._of_variant(host.variant)
        free = host.free
        total = sum(free)
        if not total:
            return 0.0
        whole = weighing.whole_gpus(free)
        below: dict[int, int] = {}
        result = unusable * total
        for milli_vcpus, gpus, units, share in kinds:
            if milli_vcpus > host.milli_vcpus or (
                    free[-1] < units if gpus == 1 else whole < gpus):
                result += share * total
                continue
            fragment = below.get(units)
            if fragment is None:
                fragment = below[units] = sum(
                    [left for left in free if left < units])
            result += share * fragment
        return result

    def _of_variant(self, variant: str) -> tuple[list[Kind], float]:
        """Return kinds that can use a variant, and the share of others."""
        found = self._by_variant.get(variant)
        if found is None:
            kinds = [(milli_vcpus, gpus, units, share)
                     for (milli_vcpus, gpus, units, variants), share
                     in self._kinds.items()
                     if gpus and (not variants or variant in variants)]
            found = self._by_variant[variant] = (
                kinds, 1 - sum([kind[3] for kind in kinds], 0.0))
        return found
