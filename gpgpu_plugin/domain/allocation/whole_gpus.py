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
"""Choice of whole GPUs: the fewest NUMA nodes, then the fewest switches."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.vgpu import capacity

MAX_COMBINATIONS = 500
"""How many sets of nodes (of switches) are tried for the optimum. Beyond it
the largest are taken first, which is optimal for one resource class and close
to the optimum for several."""

_Pools = Mapping[str, Sequence[capacity.GPUCapacity]]
_Counts = Mapping[str, int]
_Key = Callable[[capacity.GPUCapacity], str]


@dataclasses.dataclass(frozen=True)
class Choice:
    """Chosen GPUs, by resource class.

    :ivar cost: of two choices the one with the lower cost is better
    """

    cost: tuple[object, ...]
    gpus: Mapping[str, Sequence[capacity.GPUCapacity]]


def choose(pools: _Pools, counts: _Counts,
           policy: request_mod.AllocationPolicy) -> Choice | None:
    """Return the best choice; None if there are too few GPUs.

    :param pools: GPUs that can be taken, by resource class
    :param counts: how many are demanded, by resource class
    """
    if any(len(pools[name]) < count for name, count in counts.items()):
        return None
    pools = {name: sorted(pool, key=lambda gpu: gpu.id)
             for name, pool in pools.items()}
    # depth_first leaves the fewest GPUs on the used nodes and switches.
    sign = (1 if policy is request_mod.AllocationPolicy.DEPTH_FIRST else -1)
    choices = []
    for nodes in _covers(pools, counts, _numa_key):
        on_nodes = _restrict(pools, _numa_key, nodes)
        for switches in _covers(on_nodes, counts, _switch_key):
            on_switches = _restrict(on_nodes, _switch_key, switches)
            gpus = {name: on_switches[name][:count]
                    for name, count in counts.items()}
            choices.append(Choice(gpus=gpus, cost=(
                len(nodes), len(switches), sign * _total(on_nodes),
                sign * _total(on_switches),
                sorted((name, [gpu.id for gpu in chosen])
                       for name, chosen in gpus.items()))))
    return min(choices, key=lambda choice: choice.cost)


def _numa_key(gpu: capacity.GPUCapacity) -> str:
    # Unknown nodes are together no better than one node of their own.
    return '' if gpu.numa_node is None else f'{gpu.numa_node:08d}'


def _switch_key(gpu: capacity.GPUCapacity) -> str:
    return gpu.switch if gpu.switch is not None else f'\0{gpu.id}'


def _total(pools: _Pools) -> int:
    return sum(map(len, pools.values()))


def _restrict(pools: _Pools, key: _Key, keys: frozenset[str]) -> _Pools:
    return {name: [gpu for gpu in pool if key(gpu) in keys]
            for name, pool in pools.items()}


def _covers(pools: _Pools, counts: _Counts,
            key: _Key) -> list[frozenset[str]]:
    """Return the smallest sets of nodes (switches) that have enough."""
    totals = _totals(pools, counts, key)
    demanded = list(counts.values())

    def is_enough(keys: Iterable[str]) -> bool:
        return all(have >= count for have, count in zip(
            map(sum, zip(*(totals[key] for key in keys), strict=True)),
            demanded, strict=True))

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
            key: _Key) -> dict[str, list[int]]:
    """Return how many GPUs of each class each node (switch) has."""
    totals: dict[str, list[int]] = {}
    for index, name in enumerate(counts):
        for gpu in pools[name]:
            totals.setdefault(key(gpu), [0] * len(counts))[index] += 1
    return totals


def _largest_first(totals: Mapping[str, Sequence[int]],
                   is_enough: Callable[[Iterable[str]], bool],
                   ) -> frozenset[str]:
    ordered = sorted(totals, key=lambda key: (-sum(totals[key]), key))
    for size in range(1, len(ordered) + 1):
        if is_enough(ordered[:size]):
            return frozenset(ordered[:size])
    return frozenset(ordered)
