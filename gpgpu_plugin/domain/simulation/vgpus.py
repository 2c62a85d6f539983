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
"""Hosts with vGPUs of one type a GPU, for guests that arrive and leave."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable

from gpgpu_plugin.domain.simulation import departures

GPUS = 4
"""GPUs of a host."""


@dataclasses.dataclass
class GPU:
    """A GPU, which takes vGPUs of a single type at a time.

    :ivar most: vGPUs of that type that it takes; 0: none is there
    """

    host: int
    most: int = 0
    used: int = 0

    @property
    def part(self) -> float:
        """Return the part of the GPU that is in use."""
        return self.used / self.most if self.most else 0.0


Rule = Callable[[GPU, float], tuple[float, ...]]
"""Cost of one more vGPU on a GPU; its host's part in use is given."""


def _spread(gpu: GPU, host: float) -> tuple[float, ...]:
    return host, gpu.part


def _pack(gpu: GPU, host: float) -> tuple[float, ...]:
    return -host, -gpu.part


def _started(gpu: GPU, host: float) -> tuple[float, ...]:
    return not gpu.used, -gpu.part, -host


RULES: dict[str, Rule] = {'spread': _spread, 'pack': _pack,
                          'started': _started}
"""The emptiest host; the fullest host; a started GPU of the type anywhere."""


class VGPUs(departures.Pool):
    """Hosts of four GPUs; a kind of guest is the vGPUs of its type a GPU."""

    def __init__(self, hosts: int, rule: Rule) -> None:
        self._gpus = [GPU(host) for host in range(hosts) for _ in range(GPUS)]
        self._used = [0.0] * hosts
        self.units = float(len(self._gpus))
        self._rule = rule

    def place(self, size: int) -> object | None:
        """Take a vGPU of the best GPU."""
        fit = [gpu for gpu in self._gpus if not gpu.used
               or (gpu.most == size and gpu.used < size)]
        if not fit:
            return None
        gpu = min(fit, key=lambda gpu: self._rule(gpu, self._used[gpu.host]))
        gpu.most = size
        self._change(gpu, 1)
        return gpu

    def release(self, place: object) -> None:
        """Give back a vGPU; the last one frees its GPU for all types."""
        self._change(typing.cast('GPU', place), -1)

    def _change(self, gpu: GPU, vgpus: int) -> None:
        gpu.used += vgpus
        self._used[gpu.host] += vgpus / gpu.most
        if not gpu.used:
            gpu.most = 0
