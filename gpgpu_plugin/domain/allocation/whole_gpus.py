# SPDX-License-Identifier: Apache-2.0
"""Choice of whole GPUs: the fewest NUMA nodes, then the fewest switches.

Where exactly one link partition must be taken, the first criterion is which
other partitions that breaks.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain.allocation import links as links_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.vgpu import capacity

MAX_COMBINATIONS = 500
"""Number of sets of nodes (of switches) that are tried for the optimum.

Beyond it the largest are taken first, which is optimal for one resource class
and close to the optimum for several.
"""

_Policy = request_mod.AllocationPolicy
_Pools = Mapping[str, Sequence[capacity.GPUCapacity]]
_Counts = Mapping[str, int]
_Key = int | str
_KeyOf = Callable[[capacity.GPUCapacity], _Key]
_Totals = Mapping[_Key, Sequence[int]]
_Partitions = Mapping[str, links_mod.FreePartitions]


@dataclasses.dataclass(frozen=True)
class Choice:
    """Chosen GPUs, by resource class.

    :ivar cost: of two choices the one with the lower cost is better
    """

    cost: tuple[object, ...]
    gpus: Mapping[str, Sequence[capacity.GPUCapacity]]


def choose(pools: _Pools, counts: _Counts,
           policy: request_mod.AllocationPolicy,
           partitions: _Partitions | None = None,
           confined: Collection[str] = ()) -> Choice | None:
    """Return the best choice; None if there are too few GPUs.

    :param pools: GPUs that can be taken, by resource class
    :param counts: how many are demanded, by resource class
    :param partitions: free link partitions by resource class, of the whole
        host
    :param confined: classes of which exactly one partition must be chosen
    """
    if any(len(pools[name]) < count for name, count in counts.items()):
        return None
    pools = {name: sorted(pool, key=operator.attrgetter('id'))
             for name, pool in pools.items()}
    search = _Search(counts=counts, partitions=partitions or {},
                     # depth_first leaves the fewest GPUs where some are used.
                     sign=1 if policy is _Policy.DEPTH_FIRST else -1)
    choices = [choice for allowed in search.confine(pools, confined)
               for choice in search.choices(allowed, confined)]
    return min(choices, key=lambda choice: choice.cost, default=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Search:
    """Search for the best choice, see ``choose``."""

    counts: _Counts
    partitions: _Partitions
    sign: int

    def confine(self, pools: _Pools,
                confined: Collection[str]) -> Iterator[_Pools]:
        """Return the pools, once for each partition that may be taken.

        With several confined classes, it is once for each combination, of
        which the first are returned.
        """
        allowed = []
        for name in confined:
            by_id = {gpu.id: gpu for gpu in pools[name]}
            allowed.append([
                (name, [by_id[gpu_id] for gpu_id in sorted(part)])
                for part in self.partitions[name].partitions
                if len(part) == self.counts[name] and part <= by_id.keys()])
        for chosen in itertools.islice(
                itertools.product(*allowed), MAX_COMBINATIONS):
            yield {**pools, **dict(chosen)}

    def choices(self, pools: _Pools,
                confined: Collection[str]) -> Iterator[Choice]:
        """Return the best choice on each smallest set of places."""
        fragmentation = sum(self._cost(name, pools[name]) for name in confined)
        for nodes, on_nodes in _smallest(pools, self.counts, _numa_key):
            for switches, on_switches in _smallest(
                    on_nodes, self.counts, _switch_key):
                gpus = {name: self._least_cost(name, on_switches[name])
                        for name in self.counts}
                yield Choice(gpus=gpus, cost=(
                    fragmentation, nodes, switches,
                    sum(self._cost(name, chosen)
                        for name, chosen in gpus.items()),
                    self.sign * _total(on_nodes),
                    self.sign * _total(on_switches),
                    sorted((name, [gpu.id for gpu in chosen])
                           for name, chosen in gpus.items())))

    def _cost(self, name: str, gpus: Iterable[capacity.GPUCapacity]) -> int:
        """Return what GPUs of a class cost in link partitions."""
        free = self.partitions.get(name)
        return free.cost(gpu.id for gpu in gpus) if free else 0

    def _least_cost(self, name: str, pool: Sequence[capacity.GPUCapacity],
                    ) -> Sequence[capacity.GPUCapacity]:
        """Return those GPUs of a pool that break the least partitions."""
        free, count = self.partitions.get(name), self.counts[name]
        if free is None or len(pool) == count:
            return pool[:count]
        by_id = {gpu.id: gpu for gpu in pool}
        return [by_id[gpu_id] for gpu_id in free.least_cost(by_id, count)]


def _numa_key(gpu: capacity.GPUCapacity) -> int:
    # Unknown nodes are together no better than one node of their own.
    return -1 if gpu.numa_node is None else gpu.numa_node


def _switch_key(gpu: capacity.GPUCapacity) -> str:
    return gpu.switch if gpu.switch is not None else f'\0{gpu.id}'


def _total(pools: _Pools) -> int:
    return sum(map(len, pools.values()))


def _smallest(pools: _Pools, counts: _Counts,
              key_of: _KeyOf) -> list[tuple[int, _Pools]]:
    """Return the pools on each smallest set of nodes (switches) that has
    enough, with the size of the set."""
    totals = _totals(pools, counts, key_of)
    if len(totals) < 2:
        return [(len(totals), pools)]
    return [(len(keys), {
        name: [gpu for gpu in pool if key_of(gpu) in keys]
        for name, pool in pools.items()}) for keys in _covers(totals, counts)]


def _covers(totals: _Totals, counts: _Counts) -> list[frozenset[_Key]]:
    """Return the smallest sets of nodes (switches) that have enough."""
    demanded = list(enumerate(counts.values()))

    def is_enough(keys: Sequence[_Key]) -> bool:
        return all(sum([totals[key][index] for key in keys]) >= count
                   for index, count in demanded)

    keys = sorted(totals)
    for size in range(1, len(keys) + 1):
        if math.comb(len(keys), size) > MAX_COMBINATIONS:
            break
        found = [frozenset(combination)
                 for combination in itertools.combinations(keys, size)
                 if is_enough(combination)]
        if found:
            return found
    return [_largest_first(totals, is_enough)]


def _totals(pools: _Pools, counts: _Counts,
            key_of: _KeyOf) -> _Totals:
    """Return how many GPUs of each class each node (switch) has."""
    totals: dict[_Key, list[int]] = {}
    for index, name in enumerate(counts):
        for gpu in pools[name]:
            totals.setdefault(key_of(gpu), [0] * len(counts))[index] += 1
    return totals


def _largest_first(totals: _Totals,
                   is_enough: Callable[[Sequence[_Key]], bool],
                   ) -> frozenset[_Key]:
    ordered = sorted(totals, key=lambda key: (-sum(totals[key]), key))
    for size in range(1, len(ordered) + 1):
        if is_enough(ordered[:size]):
            return frozenset(ordered[:size])
    return frozenset(ordered)
