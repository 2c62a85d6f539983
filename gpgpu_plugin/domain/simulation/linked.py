#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Hosts with link partitions, for guests that arrive and leave."""

from __future__ import annotations

import typing
from collections.abc import Callable

from gpgpu_plugin.domain.simulation import departures
from gpgpu_plugin.domain import partition

GPUS = 8
SIZES = {size: float(size) for size in (1, 2, 4, 8)}
_PARTITIONS = partition.Partitions(partition.lattice(GPUS))


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
    """Take the partition that breaks the least, where most guests are.

    A host with many guests is not soon empty, so it is no loss as a whole.
    """
    best = _PARTITIONS.best(state.free, size)
    if best is None:
        return None
    cost, gpus = best
    return cost - state.guests, state.free.bit_count(), gpus


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
        self.broken += not _PARTITIONS.is_partition(gpus)
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
