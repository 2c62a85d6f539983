# SPDX-License-Identifier: Apache-2.0
"""Free capacity of a host, and what a request takes of it."""

from __future__ import annotations

import bisect
import typing

from gpgpu_plugin.domain import partition

WHOLE = 1000
"""Units of a whole GPU."""


class Links(typing.NamedTuple):
    """Link partitions of a host's GPUs, and which GPUs are free.

    :ivar free: GPUs that are free as a whole, as a bit mask
    :ivar is_confined: whether every request must get exactly one partition
    :ivar guests: instances that have GPUs of the host
    """

    partitions: partition.Partitions
    free: int
    is_confined: bool
    guests: int = 0

    def choice(self, gpus: int, *,
               is_linked: bool) -> partition.Choice | None:
        """Return the GPUs whose choice costs the least; None: no fit.

        :param is_linked: whether the request must get exactly one partition
        """
        if self.is_confined or is_linked:
            return self.partitions.best(self.free, gpus)
        return self.partitions.best_gpus(self.free, gpus)

    def after(self, taken: int) -> Links:
        """Return the links after an instance took some GPUs."""
        return self._replace(
            free=self.free & ~taken, guests=self.guests + 1)

    def after_share(self, is_started: bool) -> Links:
        """Return the links after an instance took a share of a GPU.

        :param is_started: whether that was the first share of a GPU. A claim
            takes it of the first GPU, whatever partitions that breaks
        """
        return self.after(self.free & -self.free if is_started else 0)


class Host(typing.NamedTuple):
    """Free capacity of a host.

    Nova's own resources are not split by NUMA node here.

    :ivar milli_vcpus: free vCPUs, in thousandths
    :ivar memory_mib: free RAM
    :ivar free: free units of each GPU, in ascending order
    :ivar variant: variant of all its GPUs
    :ivar links: None: nothing is known of link partitions
    """

    milli_vcpus: int
    memory_mib: int
    free: tuple[int, ...]
    variant: str
    links: Links | None = None


class Request(typing.NamedTuple):
    """What an instance needs of its host.

    :ivar gpus: number of GPUs
    :ivar units: units of each of them; less than WHOLE only if gpus is 1
    :ivar variants: variants that it accepts; empty: any
    :ivar is_linked: whether its GPUs must be exactly one link partition
    """

    milli_vcpus: int
    memory_mib: int
    gpus: int
    units: int
    variants: frozenset[str]
    is_linked: bool = False

    @property
    def total_units(self) -> int:
        """Units of all its GPUs."""
        return self.gpus * self.units


def after(host: Host, request: Request) -> list[Host]:
    """Return the states that a host may have with a request placed on it.

    :returns: one for each different GPU that a share can take, the fullest
        first; empty: the request does not fit
    """
    milli_vcpus = host.milli_vcpus - request.milli_vcpus
    memory_mib = host.memory_mib - request.memory_mib
    if milli_vcpus < 0 or memory_mib < 0 or not accepts(
            request, host.variant):
        return []
    links, states = host.links, _free_after(host.free, request)
    if links is None:
        return [] if request.is_linked else [
            Host(milli_vcpus, memory_mib, free, host.variant)
            for free in states]
    if request.units == WHOLE:
        choice = links.choice(request.gpus, is_linked=request.is_linked)
        if choice is None:
            return []
        links = links.after(choice.gpus)
    return [Host(
        milli_vcpus, memory_mib, free, host.variant,
        links.after_share(is_started=whole(free) < whole(host.free))
        if 0 < request.units < WHOLE else links) for free in states]


def accepts(request: Request, variant: str) -> bool:
    """Return whether a request may get GPUs of a variant."""
    return (not request.gpus or not request.variants
            or variant in request.variants)


def whole(free: tuple[int, ...]) -> int:
    """Return how many GPUs are free as a whole, of units in order."""
    return len(free) - bisect.bisect_left(free, WHOLE)


def _free_after(free: tuple[int, ...], request: Request,
                ) -> list[tuple[int, ...]]:
    if not request.gpus:
        return [free]
    if request.units < WHOLE:
        return [take(free, units, request.units)
                for units in sorted(set(free)) if units >= request.units]
    if whole(free) < request.gpus:
        return []
    rest = free[:len(free) - request.gpus]
    return [(0,) * request.gpus + rest]


def take(free: tuple[int, ...], units: int, taken: int) -> tuple[int, ...]:
    """Return free units after a share of a GPU with so many was taken."""
    rest = list(free)
    rest.remove(units)
    bisect.insort(rest, units - taken)
    return tuple(rest)
