# SPDX-License-Identifier: Apache-2.0
"""The contract of policies, and the one that spreads."""

from __future__ import annotations

import abc
import typing
from collections.abc import Iterable
from collections.abc import Sequence

from gpgpu_plugin.domain.weighing import host as host_mod
from gpgpu_plugin.domain.weighing import mix as mix_mod

UNFIT: float = float('-inf')
"""Score of a host that a request does not fit on."""
_MOST_MILLI_VCPUS = 10_000_000
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


class Spread(Policy):
    """Policy that prefers the host with the most free GPUs."""

    def gain(self, host: host_mod.Host, request: host_mod.Request,
             after: host_mod.Host) -> float:
        """Return the free GPUs; free vCPUs decide among equal hosts."""
        return sum(host.free) / host_mod.WHOLE + (
            host.milli_vcpus / _MOST_MILLI_VCPUS)
