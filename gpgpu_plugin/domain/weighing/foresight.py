# SPDX-License-Identifier: Apache-2.0
"""The plugin's own policy: keep what the coming requests need."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from gpgpu_plugin.domain.weighing import host as host_mod
from gpgpu_plugin.domain.weighing import leftover
from gpgpu_plugin.domain.weighing import mix as mix_mod
from gpgpu_plugin.domain.weighing import policy
from gpgpu_plugin.domain.weighing import scarcity

_GUEST = .01
"""Gain for each instance on a host. It decides between hosts on which a choice
breaks the same: a host with many instances will not soon be empty anyway."""


class Foresight(policy.Policy):
    """Policy that leaves the fewest GPUs over and saves scarce capacity.

    The gain is the leftover before minus the leftover after. Each request of
    a scarce class for which the cloud loses the capacity costs its GPUs,
    times the chance that this capacity runs out. A choice that takes capacity
    from several classes costs as much as the dearest: the classes share the
    same GPUs, and a sum would count these once for each size of request.
    """

    def __init__(self) -> None:
        self.start(mix_mod.Mix(shares={}), ())

    def start(self, mix: mix_mod.Mix, hosts: Iterable[host_mod.Host],
              ) -> None:
        """Draw sequences and classes from the mix, and count capacity."""
        self._leftover = leftover.Leftover(mix)
        self._scarcity = scarcity.Scarcity(mix, hosts)
        self._prices: list[float] | None = None

    def change(self, before: host_mod.Host, after: host_mod.Host) -> None:
        """Count the capacity of a host anew."""
        self._scarcity.change(before, after)
        self._prices = None

    def gain(self, host: host_mod.Host, request: host_mod.Request,
             after: host_mod.Host) -> float:
        """Return how many GPUs less are left over."""
        return self._leftover.of(host) - self._leftover.of(after)

    def choices(self, host: host_mod.Host, request: host_mod.Request,
                ) -> list[policy.Choice]:
        """Return the best choice for each different loss of capacity."""
        if host.links is not None and request.units == host_mod.WHOLE:
            return self._linked(host, host.links, request)
        best: dict[tuple[int, ...], policy.Choice] = {}
        before: tuple[int, ...] | None = None
        for after in host_mod.after(host, request):
            if before is None:
                before = self._scarcity.capacity(host)
            lost = tuple(map(
                operator.sub, before, self._scarcity.capacity(after)))
            gain = self.gain(host, request, after)
            if lost not in best or gain > best[lost].gain:
                best[lost] = policy.Choice(gain, lost, after)
        return list(best.values())

    def _linked(self, host: host_mod.Host, links: host_mod.Links,
                request: host_mod.Request) -> list[policy.Choice]:
        """Return the choice that breaks the least link partitions.

        Where exactly one partition must be taken, what it breaks says all.
        """
        after, choice = (
            host_mod.after(host, request),
            links.choice(request.gpus, is_linked=request.is_linked))
        if not after or choice is None:
            return []
        if links.is_confined or request.is_linked:
            return [policy.Choice(
                links.guests * _GUEST - choice.cost, (), after[0])]
        return [policy.Choice(
            self.gain(host, request, after[0]) - choice.cost, tuple(map(
                operator.sub, self._scarcity.capacity(host),
                self._scarcity.capacity(after[0]))), after[0])]

    def price(self, lost: tuple[int, ...]) -> float:
        """Return the GPUs that lost capacity is worth."""
        if not lost:
            return 0.0
        if self._prices is None:
            self._prices = self._scarcity.prices()
        return max([count * price for count, price in
                    zip(lost, self._prices, strict=True) if count],
                   default=0.0)
