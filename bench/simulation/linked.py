# SPDX-License-Identifier: Apache-2.0
"""Hosts with link partitions, for guests that arrive and leave."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from bench.simulation import departures
from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.domain import weighing
from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from tests.fixtures import lattice

GPUS = 8
SIZES = {size: float(size) for size in (1, 2, 4, 8)}
_MASKS = lattice.of(GPUS)
_PARTITIONS = fabric.partitions_of(_MASKS)
_IDS = tuple(map(str, range(GPUS)))
_LINKS = fabric.Links(fabric=True, partitions=tuple(
    frozenset(_IDS[gpu] for gpu in range(GPUS) if mask >> gpu & 1)
    for mask in _MASKS))
_CLASS = 'GPU'
_POLICY = weighing.Foresight()


class State(typing.NamedTuple):
    """State of a host.

    :ivar free: GPUs, as a bit mask
    :ivar guests: number of instances with GPUs
    """

    free: int
    guests: int


Choice = tuple[float, float, int]
"""Cost, cost of a tie, and the GPUs to take, as a bit mask."""
Rule = Callable[[State, int], Choice | None]


def _spread(state: State, size: int) -> Choice | None:
    """Take the emptiest host, as Nova's RAM weigher does."""
    gpus = _lowest(state.free, size)
    return None if gpus is None else (-state.free.bit_count(), 0, gpus)


def _pack(state: State, size: int) -> Choice | None:
    """Take the fullest host."""
    gpus = _lowest(state.free, size)
    return None if gpus is None else (state.free.bit_count(), 0, gpus)


def _lowest(free: int, size: int) -> int | None:
    """Return the free GPUs with the lowest numbers, linked or not."""
    gpus = 0
    for _ in range(size):
        if free == gpus:
            return None
        rest = free & ~gpus
        gpus |= rest & -rest
    return gpus


def _linked(state: State, size: int) -> Choice | None:
    """Take the host that the weigher ranks first, and what a claim takes."""
    choices = _POLICY.choices(weighing.HostCapacity(
        0, 0, (weighing.WHOLE,) * state.free.bit_count(), '',
        weighing.HostLinks(_PARTITIONS, state.free, is_confined=True,
                           guests=state.guests)),
        weighing.WeighedRequest(0, 0, size, weighing.WHOLE, frozenset()))
    if not choices:
        return None
    return -choices[0].packed_gain, 0, _claimed(state.free, size)


@functools.cache
def _claimed(free: int, size: int) -> int:
    """Return the GPUs that a claim takes."""
    offer = offer_mod.TypeOffer(
        vgpu_type=naming.PASSTHROUGH, links=_LINKS, gpus=[
            vgpu.GPUCapacity(id=gpu, passthrough=True,
                             offered=bool(free >> int(gpu) & 1))
            for gpu in _IDS])
    found = allocate.allocate(
        {_CLASS: offer}, request_mod.Request(demands=(
            request_mod.Demand(resource_class=_CLASS, count=size),)), {})
    return sum(1 << int(selection.gpu_id) for selection in found[_CLASS])


RULES: dict[str, Rule] = {'spread': _spread, 'pack': _pack,
                          'linked': _linked}


class Linked(departures.Pool):
    """Hosts of eight GPUs, with partitions of one, two, four and eight."""

    def __init__(self, hosts: int, rule: Rule) -> None:
        self.units = float(hosts * GPUS)
        self._rule = rule
        idle = State((1 << GPUS) - 1, 0)
        self._states = [idle] * hosts
        self._hosts = {idle: set(range(hosts))}
        self._choices: dict[tuple[State, int], Choice | None] = {}

    def place(self, size: int) -> tuple[int, int] | None:
        """Take GPUs of the best host."""
        best: tuple[Choice, State] | None = None
        for state, hosts in self._hosts.items():
            choice = self._choice(state, size) if hosts else None
            if choice is not None and (best is None or choice < best[0]):
                best = choice, state
        if best is None:
            return None
        (_, _, gpus), state = best
        host = min(self._hosts[state])
        self._replace(host, State(state.free & ~gpus, state.guests + 1))
        self.broken += gpus not in _MASKS
        return host, gpus

    def release(self, place: object) -> None:
        """Free the GPUs of a guest."""
        host, gpus = typing.cast('tuple[int, int]', place)
        free, guests = self._states[host]
        self._replace(host, State(free | gpus, guests - 1))

    def _choice(self, state: State, size: int) -> Choice | None:
        key = state, size
        if key not in self._choices:
            self._choices[key] = self._rule(state, size)
        return self._choices[key]

    def _replace(self, host: int, state: State) -> None:
        self._hosts[self._states[host]].discard(host)
        self._states[host] = state
        self._hosts.setdefault(state, set()).add(host)
