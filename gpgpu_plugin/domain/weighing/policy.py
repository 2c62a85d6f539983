# SPDX-License-Identifier: Apache-2.0
"""The contract of policies, and the simple published ones."""

from __future__ import annotations

import abc
import random
import typing
from collections.abc import Iterable
from collections.abc import Sequence

from gpgpu_plugin.domain.weighing import host as host_mod
from gpgpu_plugin.domain.weighing import mix as mix_mod

UNFIT: float = float('-inf')
"""Score of a host that a request does not fit on."""
# The largest host of the published study, for its scores.
_MILLI_VCPUS = 128_000
_MOST_MILLI_VCPUS = 10_000_000
_UNITS = 8 * host_mod.WHOLE


_TIE = 1e-4


class Choice(typing.NamedTuple):
    """A way to place a request on a host.

    :ivar gain: its worth, as far as the host's state decides it
    :ivar lost: capacity that the cloud loses for each scarce class; empty:
        the gain says all
    :ivar after: the host's state with the request
    """

    gain: float
    lost: tuple[int, ...]
    after: host_mod.Host

    @property
    def packed_gain(self) -> float:
        """Return the gain, which is greater for the fuller of equal hosts."""
        return self.gain - _TIE * sum(self.after.free) / host_mod.WHOLE


class Policy(abc.ABC):
    """Policy that says which host, and which GPUs of it, is the best.

    Nothing that fits is refused.
    """

    def start(  # noqa: B027 - a policy without a state needs none
            self, mix: mix_mod.Mix, hosts: Iterable[host_mod.Host]) -> None:
        """Take another mix of requests and the state of all hosts."""

    def change(  # noqa: B027 - as above
            self, before: host_mod.Host, after: host_mod.Host) -> None:
        """Take the new state of one host."""

    @abc.abstractmethod
    def gain(self, host: host_mod.Host, request: host_mod.Request,
             after: host_mod.Host) -> float:
        """Return the worth of a state after a request; more is better."""

    def choices(self, host: host_mod.Host, request: host_mod.Request,
                ) -> list[Choice]:
        """Return the choices on a host that may turn out to be the best.

        :returns: at most one for the same loss; empty: does not fit
        """
        best: Choice | None = None
        for after in host_mod.after(host, request):
            gain = self.gain(host, request, after)
            if best is None or gain > best.gain:
                best = Choice(gain, (), after)
        return [best] if best else []

    def price(self, lost: tuple[int, ...]) -> float:
        """Return what lost capacity costs now, to subtract from the gain."""
        return 0.0

    def finish(self, scores: Sequence[float]) -> Sequence[float]:
        """Return final scores of all hosts; UNFIT remains."""
        return scores


class Random(Policy):
    """Any host that the request fits on, by the same chance, and any GPU.

    The GPU is drawn once for a state of a host and a request.
    """

    def __init__(self, seed: int = 0) -> None:
        self._generator = random.Random(seed)

    def choices(self, host: host_mod.Host, request: host_mod.Request,
                ) -> list[Choice]:
        """Return a state at random, by how many GPUs lead to it."""
        states = host_mod.after(host, request)
        if len(states) > 1:
            units = [units for units in host.free if units >= request.units]
            states = [states[sorted(set(units)).index(
                self._generator.choice(units))]]
        return [Choice(0.0, (), after) for after in states]

    def gain(self, host: host_mod.Host, request: host_mod.Request,
             after: host_mod.Host) -> float:
        """Return the same for all."""
        return 0.0

    def finish(self, scores: Sequence[float]) -> Sequence[float]:
        """Return random scores."""
        draw = self._generator.random
        return [score if score == UNFIT else draw() for score in scores]


class Spread(Policy):
    """Policy that prefers the host with the most free GPUs."""

    def gain(self, host: host_mod.Host, request: host_mod.Request,
             after: host_mod.Host) -> float:
        """Return the free GPUs; free vCPUs decide among equal hosts."""
        return sum(host.free) / host_mod.WHOLE + (
            host.milli_vcpus / _MOST_MILLI_VCPUS)


class BestFit(Policy):
    """The host that has the least left, as the published study scores it."""

    def gain(self, host: host_mod.Host, request: host_mod.Request,
             after: host_mod.Host) -> float:
        """Return 0 to 100 for what is left of vCPUs and GPUs."""
        return 100 * (1 - after.milli_vcpus / _MILLI_VCPUS / 2
                      - sum(after.free) / _UNITS / 2) // 1

    def finish(self, scores: Sequence[float]) -> Sequence[float]:
        """Return scores stretched to whole numbers from 0 to 100."""
        fit = [score for score in scores if score != UNFIT]
        low, high = min(fit), max(fit)
        if low == high:
            return scores
        return [score if score == UNFIT
                else (score - low) * 100 // (high - low) for score in scores]


class DotProduct(Policy):
    """The host whose free capacity is the least in line with the request."""

    def gain(self, host: host_mod.Host, request: host_mod.Request,
             after: host_mod.Host) -> float:
        """Return 0 to 100; less for a larger product of free and needed."""
        product = (host.milli_vcpus * request.milli_vcpus / _MILLI_VCPUS ** 2
                   + sum(host.free) * request.total_units / _UNITS ** 2)
        return 100 * (1 - product / 2) // 1


class Packing(Policy):
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
