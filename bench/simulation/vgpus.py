# SPDX-License-Identifier: Apache-2.0
"""Hosts with vGPUs of one type a GPU, for guests that arrive and leave."""

from __future__ import annotations

import collections
import typing
from collections.abc import Callable
from collections.abc import Mapping

from bench.simulation import departures
from gpgpu_plugin.domain import weighing

GPUS = 4
"""GPUs of a host."""


class GPU(typing.NamedTuple):
    """A GPU, which takes vGPUs of a single type at a time.

    :ivar most: vGPUs of that type that it takes; 0: none is there
    """

    most: int = 0
    used: int = 0

    @property
    def part(self) -> float:
        """Return the part of the GPU that is in use."""
        return self.used / self.most if self.most else 0.0

    def available(self, size: int) -> int:
        """Return how many more vGPUs of a type it takes."""
        return size - self.used if self.most in (0, size) else 0


Host = tuple[GPU, ...]
Rule = Callable[[Host, int], float]
"""Worth of a host for one more vGPU of a type; more is better."""


class Place(typing.NamedTuple):
    """Where a vGPU is."""

    host: int
    gpu: int


def _spread(host: Host, size: int) -> float:
    return -sum(gpu.part for gpu in host)


def _pack(host: Host, size: int) -> float:
    return sum(gpu.part for gpu in host)


def _started(host: Host, size: int) -> float:
    return weighing.vgpu_gain({number: gpu.available(size)
                               for number, gpu in enumerate(host)}, size, 1)


RULES: dict[str, Rule] = {'spread': _spread, 'pack': _pack,
                          'started': _started}
"""The emptiest host; the fullest host; a started GPU of the type anywhere,
which is the rule of the weigher."""


class VGPUs(departures.Pool):
    """Hosts of four GPUs; a kind of guest is the vGPUs of its type a GPU.

    :ivar hosts: as they are now
    """

    def __init__(self, hosts: int, rule: Rule) -> None:
        self.hosts: list[Host] = [(GPU(),) * GPUS] * hosts
        self.units = float(hosts * GPUS)
        self._rule = rule
        self._worths: dict[tuple[Host, int], float] = {}

    def place(self, size: int) -> Place | None:
        """Take a vGPU of the best host, on its fullest GPU with one left.

        A host that is chosen for being the emptiest gives its emptiest GPU.
        """
        worths = [self._worth(host, size) for host in self.hosts]
        worth = max(worths)
        if worth == weighing.UNFIT:
            return None
        number = worths.index(worth)
        choose = max if self._rule is _spread else min
        _, gpu = choose((available, gpu) for gpu, available in enumerate(
            gpu.available(size) for gpu in self.hosts[number]) if available)
        self._replace(Place(number, gpu), size, 1)
        return Place(number, gpu)

    def release(self, place: object) -> None:
        """Give back a vGPU; the last one frees its GPU for all types."""
        number, gpu = typing.cast('Place', place)
        self._replace(Place(number, gpu), self.hosts[number][gpu].most, -1)

    def _worth(self, host: Host, size: int) -> float:
        key = host, size
        if key not in self._worths:
            fits = any(gpu.available(size) for gpu in host)
            self._worths[key] = (
                self._rule(host, size) if fits else weighing.UNFIT)
        return self._worths[key]

    def _replace(self, place: Place, size: int, vgpus: int) -> None:
        gpus = list(self.hosts[place.host])
        used = gpus[place.gpu].used + vgpus
        gpus[place.gpu] = GPU(size, used) if used else GPU()
        self.hosts[place.host] = tuple(gpus)


class Repacked(departures.Pool):
    """GPUs whose vGPUs move at will, a bound for rules that move none."""

    def __init__(self, gpus: int, sizes: Mapping[int, float]) -> None:
        self.units = float(gpus)
        self._guests: collections.Counter[int] = collections.Counter(
            dict.fromkeys(sizes, 0))

    def place(self, size: int) -> object | None:
        """Take a vGPU if all fit on as few GPUs as each type needs."""
        self._guests[size] += 1
        if sum(-(-guests // most) for most, guests
               in self._guests.items()) <= self.units:
            return size
        self._guests[size] -= 1
        return None

    def release(self, place: object) -> None:
        """Give back a vGPU."""
        self._guests[typing.cast('int', place)] -= 1
