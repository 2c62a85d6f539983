# SPDX-License-Identifier: Apache-2.0
"""Guests that arrive and leave, and how much of their demand got a place."""

from __future__ import annotations

import abc
import dataclasses
import heapq
import random
from collections.abc import Mapping

_SIGMA = 1.0
_WARM_UP = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a simulation with departures.

    :ivar accepted_percent: demanded units that got a place, after the
        warm-up
    :ivar broken: guests that got GPUs of which not all are linked
    """

    accepted_percent: float
    refused: int
    broken: int
    decisions: int


class Pool(abc.ABC):
    """Capacity that guests take and give back.

    :ivar units: all units
    """

    units: float
    broken = 0

    @abc.abstractmethod
    def place(self, size: int) -> object | None:
        """Place a guest; None: refused."""

    @abc.abstractmethod
    def release(self, place: object) -> None:
        """Give back what place() returned."""


class Unfragmented(Pool):
    """A single host of all units, the bound for every policy."""

    def __init__(self, units: float, sizes: Mapping[int, float]) -> None:
        self.units = self._free = units
        self._sizes = sizes

    def place(self, size: int) -> object | None:
        """Take the units of a size if so many are free."""
        needed = self._sizes[size]
        if needed > self._free:
            return None
        self._free -= needed
        return needed

    def release(self, place: object) -> None:
        """Give units back."""
        assert isinstance(place, float | int)
        self._free += place


def simulate(pool: Pool, shares: Mapping[int, float],
             sizes: Mapping[int, float], *, load: float, seed: int,
             lifetimes: float = 30.0) -> Outcome:
    """Let guests arrive and leave, at random, for so many mean lifetimes.

    Arrivals are a Poisson process, lifetimes are log-normal with mean 1.

    :param shares: of the demanded units, by kind of guest
    :param sizes: units of each kind
    :param load: demanded units as a part of all
    """
    generator = random.Random(seed)
    rates = {kind: load * pool.units * share / sizes[kind]
             for kind, share in shares.items()}
    total = sum(rates.values())
    departures: list[tuple[float, int, object]] = []
    asked = accepted = 0.0
    refused = decisions = 0
    now = generator.expovariate(total)
    while now < lifetimes + _WARM_UP:
        while departures and departures[0][0] <= now:
            pool.release(heapq.heappop(departures)[2])
        kind = generator.choices(list(rates), list(rates.values()))[0]
        lifetime = generator.lognormvariate(-_SIGMA ** 2 / 2, _SIGMA)
        decisions += 1
        place = pool.place(kind)
        if place is not None:
            heapq.heappush(departures, (now + lifetime, decisions, place))
        if now >= _WARM_UP:
            asked += sizes[kind]
            accepted += sizes[kind] if place is not None else 0.0
            refused += place is None
        now += generator.expovariate(total)
    return Outcome(accepted_percent=100 * accepted / asked, refused=refused,
                   broken=pool.broken, decisions=decisions)
