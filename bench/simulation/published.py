# SPDX-License-Identifier: Apache-2.0
"""The simple published policies."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gpgpu_plugin.domain.weighing import host as host_mod
from gpgpu_plugin.domain.weighing import policy

# The largest host of the published study, for its scores.
_MILLI_VCPUS = 128_000
_UNITS = 8 * host_mod.WHOLE


class Random(policy.Policy):
    """Any host that the request fits on, by the same chance, and any GPU.

    The GPU is drawn once for a state of a host and a request.
    """

    def __init__(self, seed: int = 0) -> None:
        self._generator = random.Random(seed)

    def choices(self, host: host_mod.Host, request: host_mod.Request,
                ) -> list[policy.Choice]:
        """Return a state at random, by how many GPUs lead to it."""
        states = host_mod.after(host, request)
        if len(states) > 1:
            units = [units for units in host.free if units >= request.units]
            states = [states[sorted(set(units)).index(
                self._generator.choice(units))]]
        return [policy.Choice(0.0, (), after) for after in states]

    def gain(self, host: host_mod.Host, request: host_mod.Request,
             after: host_mod.Host) -> float:
        """Return the same for all."""
        return 0.0

    def finish(self, scores: Sequence[float]) -> Sequence[float]:
        """Return random scores."""
        draw = self._generator.random
        return [score if score == policy.UNFIT else draw() for score in scores]


class BestFit(policy.Policy):
    """The host that has the least left, as the published study scores it."""

    def gain(self, host: host_mod.Host, request: host_mod.Request,
             after: host_mod.Host) -> float:
        """Return 0 to 100 for what is left of vCPUs and GPUs."""
        return 100 * (1 - after.milli_vcpus / _MILLI_VCPUS / 2
                      - sum(after.free) / _UNITS / 2) // 1

    def finish(self, scores: Sequence[float]) -> Sequence[float]:
        """Return scores stretched to whole numbers from 0 to 100."""
        fit = [score for score in scores if score != policy.UNFIT]
        low, high = min(fit), max(fit)
        if low == high:
            return scores
        return [score if score == policy.UNFIT
                else (score - low) * 100 // (high - low) for score in scores]


class DotProduct(policy.Policy):
    """The host whose free capacity is the least in line with the request."""

    def gain(self, host: host_mod.Host, request: host_mod.Request,
             after: host_mod.Host) -> float:
        """Return 0 to 100; less for a larger product of free and needed."""
        product = (host.milli_vcpus * request.milli_vcpus / _MILLI_VCPUS ** 2
                   + sum(host.free) * request.total_units / _UNITS ** 2)
        return 100 * (1 - product / 2) // 1


class Packing(policy.Policy):
    """A GPU in use first, then a host in use, then an idle host."""

    def gain(self, host: host_mod.Host, request: host_mod.Request,
             after: host_mod.Host) -> float:
        """Return which of the three it is, and less for what is left."""
        whole = host_mod.whole(host.free)
        if request.gpus and whole == host_mod.whole(after.free):
            return 200 - min(after_units for after_units, units in zip(
                after.free, host.free, strict=True)
                if after_units != units) / host_mod.WHOLE
        if whole == len(host.free):
            return -float(whole)
        return 100 - float(whole)
