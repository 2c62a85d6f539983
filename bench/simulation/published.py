# SPDX-License-Identifier: Apache-2.0
"""The simple published policies."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gpgpu_plugin.domain import weighing

# The largest host of the published study, for its scores.
_MILLI_VCPUS = 128_000
_UNITS = 8 * weighing.WHOLE


class Random(weighing.Policy):
    """Any host that the request fits on, by the same chance, and any GPU.

    The GPU is drawn once for a state of a host and a request.
    """

    def __init__(self, seed: int = 0) -> None:
        self._generator = random.Random(seed)

    def choices(self, host: weighing.HostCapacity,
                request: weighing.WeighedRequest,
                ) -> list[weighing.PolicyChoice]:
        """Return a state at random, by how many GPUs lead to it."""
        states = weighing.capacity_after(host, request)
        if len(states) > 1:
            units = [units for units in host.free if units >= request.units]
            states = [states[sorted(set(units)).index(
                self._generator.choice(units))]]
        return [weighing.PolicyChoice(0.0, (), after) for after in states]

    def gain(self, host: weighing.HostCapacity,
             request: weighing.WeighedRequest,
             after: weighing.HostCapacity) -> float:
        """Return the same for all."""
        return 0.0

    def finish(self, scores: Sequence[float]) -> Sequence[float]:
        """Return random scores."""
        draw = self._generator.random
        return [score if score == weighing.UNFIT else draw()
                for score in scores]


class BestFit(weighing.Policy):
    """The host that has the least left, as the published study scores it."""

    def gain(self, host: weighing.HostCapacity,
             request: weighing.WeighedRequest,
             after: weighing.HostCapacity) -> float:
        """Return 0 to 100 for what is left of vCPUs and GPUs."""
        return 100 * (1 - after.milli_vcpus / _MILLI_VCPUS / 2
                      - sum(after.free) / _UNITS / 2) // 1

    def finish(self, scores: Sequence[float]) -> Sequence[float]:
        """Return scores stretched to whole numbers from 0 to 100."""
        fit = [score for score in scores if score != weighing.UNFIT]
        low, high = min(fit), max(fit)
        if low == high:
            return scores
        return [score if score == weighing.UNFIT
                else (score - low) * 100 // (high - low) for score in scores]


class DotProduct(weighing.Policy):
    """The host whose free capacity is the least in line with the request."""

    def gain(self, host: weighing.HostCapacity,
             request: weighing.WeighedRequest,
             after: weighing.HostCapacity) -> float:
        """Return 0 to 100; less for a larger product of free and needed."""
        product = (host.milli_vcpus * request.milli_vcpus / _MILLI_VCPUS ** 2
                   + sum(host.free) * request.total_units / _UNITS ** 2)
        return 100 * (1 - product / 2) // 1


class Packing(weighing.Policy):
    """A GPU in use first, then a host in use, then an idle host."""

    def gain(self, host: weighing.HostCapacity,
             request: weighing.WeighedRequest,
             after: weighing.HostCapacity) -> float:
        """Return which of the three it is, and less for what is left."""
        whole = weighing.whole_gpus(host.free)
        if request.gpus and whole == weighing.whole_gpus(after.free):
            return 200 - min(after_units for after_units, units in zip(
                after.free, host.free, strict=True)
                if after_units != units) / weighing.WHOLE
        if whole == len(host.free):
            return -float(whole)
        return 100 - float(whole)
