# SPDX-License-Identifier: Apache-2.0
"""Capacity for requests that few hosts can take, and the price of losing it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from collections.abc import Sequence

from gpgpu_plugin.domain.weighing import host as host_mod
from gpgpu_plugin.domain.weighing import mix as mix_mod

_MOST_CLASSES = 24
_MILLI_VCPUS = 8000
_MEMORY_MIB = 32768


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScarceClass:
    """Requests that few hosts can take: several GPUs, or bound to variants.

    :ivar share: share of all requests
    """

    milli_vcpus: int
    memory_mib: int
    gpus: int
    variants: frozenset[str]
    share: float = 0.0

    def capacity(self, host: host_mod.Host) -> int:
        """Return how many such requests a host has capacity for."""
        if self.variants and host.variant not in self.variants:
            return 0
        count = self._of_gpus(host)
        if count and self.milli_vcpus:
            count = min(count, host.milli_vcpus // self.milli_vcpus)
        if count and self.memory_mib:
            count = min(count, host.memory_mib // self.memory_mib)
        return count

    def _of_gpus(self, host: host_mod.Host) -> int:
        links = host.links
        if links is not None and links.is_confined:
            return links.partitions.count(links.free, self.gpus)
        return host_mod.whole(host.free) // self.gpus

    def needs_at_least(self, other: ScarceClass) -> bool:
        """Return whether what can take this class can take another one."""
        return (self.gpus >= other.gpus
                and self.milli_vcpus >= other.milli_vcpus
                and self.memory_mib >= other.memory_mib
                and (not other.variants or (
                    bool(self.variants)
                    and self.variants <= other.variants)))


def classes(mix: mix_mod.Mix) -> list[ScarceClass]:
    """Return all classes of a mix, those with the most GPUs first."""
    found: dict[ScarceClass, float] = {}
    for request, share in mix.shares.items():
        if request.units < host_mod.WHOLE or not (
                request.gpus > 1 or (request.gpus and request.variants)):
            continue
        key = ScarceClass(
            milli_vcpus=_round_up(request.milli_vcpus, _MILLI_VCPUS),
            memory_mib=_round_up(request.memory_mib, _MEMORY_MIB),
            gpus=request.gpus, variants=request.variants)
        found[key] = found.get(key, 0.0) + share
    return sorted((dataclasses.replace(key, share=share)
                   for key, share in found.items()),
                  key=lambda scarce: -scarce.share * scarce.gpus)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


class Scarcity:
    """The chance that capacity of a class runs out, for a cloud of hosts."""

    def __init__(self, mix: mix_mod.Mix,
                 hosts: Iterable[host_mod.Host]) -> None:
        every = classes(mix)
        self.classes: Sequence[ScarceClass] = every[:_MOST_CLASSES]
        self._demands = [
            sum(other.share * other.gpus / scarce.gpus for other in every
                if other.needs_at_least(scarce)) for scarce in self.classes]
        self._mean_units = mix.mean_units
        self._no_capacity = (0,) * len(self.classes)
        self._known: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._units = 0
        self._capacity = [0] * len(self.classes)
        for host in hosts:
            self._add(host, 1)

    def capacity(self, host: host_mod.Host) -> tuple[int, ...]:
        """Return a host's capacity for each class."""
        whole = host_mod.whole(host.free)
        if not whole:
            return self._no_capacity
        # All that classes need is a multiple of these steps.
        key = (whole, host.milli_vcpus // _MILLI_VCPUS,
               host.memory_mib // _MEMORY_MIB, host.variant,
               host.links and host.links[:3])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = tuple(
                [scarce.capacity(host) for scarce in self.classes])
        return found

    def change(self, before: host_mod.Host, after: host_mod.Host) -> None:
        """Replace the state of a host."""
        self._add(before, -1)
        self._add(after, 1)

    def _add(self, host: host_mod.Host, sign: int) -> None:
        self._units += sign * sum(host.free)
        if not host.free or host.free[-1] < host_mod.WHOLE:
            return
        self._capacity = [
            count + sign * more for count, more in
            zip(self._capacity, self.capacity(host), strict=True)]

    def prices(self) -> list[float]:
        """Return the GPUs that the loss of one request of a class costs."""
        arrivals = self._units / self._mean_units if self._mean_units else 0.0
        return [
            scarce.gpus / (1 + math.exp(min(700.0, -1.7 * (
                (arrivals * demand - count)
                / math.sqrt(arrivals * demand + 1) + 3))))
            for scarce, demand, count in zip(
                self.classes, self._demands, self._capacity, strict=True)]
