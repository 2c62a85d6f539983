# SPDX-License-Identifier: Apache-2.0
"""How many GPUs of a host the cloud's mix of requests would leave unused."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from gpgpu_plugin.domain.weighing import host as host_mod
from gpgpu_plugin.domain.weighing import mix as mix_mod

_SEQUENCES = 32
_LENGTH = 80
_MILLI_VCPUS = 4000
_MEMORY_MIB = 16384
_MOST_STATES = 400_000

Needs = tuple[int, int, int, int]


class Leftover:
    """Leftover of states of hosts, remembered by rounded state.

    The rounding of vCPUs and RAM loses nothing that can be measured.
    """

    def __init__(self, mix: mix_mod.Mix) -> None:
        self._sequences = mix.draw(sequences=_SEQUENCES, length=_LENGTH)
        self._by_variant: dict[str, list[list[Needs]]] = {}
        self._known: dict[tuple[object, ...], float] = {}

    def of(self, host: host_mod.Host) -> float:
        """Return the mean number of GPUs that random requests leave over."""
        if not host.free or not host.free[-1]:
            return 0.0
        key = (host.milli_vcpus // _MILLI_VCPUS,
               host.memory_mib // _MEMORY_MIB, host.free, host.variant)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_STATES:
                self._known.clear()
            found = self._known[key] = self._compute(
                host._replace(milli_vcpus=key[0] * _MILLI_VCPUS,
                              memory_mib=key[1] * _MEMORY_MIB))
        return found

    def _compute(self, host: host_mod.Host) -> float:
        sequences = self._by_variant.get(host.variant)
        if sequences is None:
            sequences = self._by_variant[host.variant] = [
                [(request.milli_vcpus, request.memory_mib, request.gpus,
                  request.units) for request in sequence
                 if host_mod.accepts(request, host.variant)]
                for sequence in self._sequences]
        whole = host_mod.whole(host.free)
        partial = [units for units in host.free
                   if 0 < units < host_mod.WHOLE]
        if not sequences:
            return sum(host.free) / host_mod.WHOLE
        return sum(_leave(sequence, host.milli_vcpus, host.memory_mib, whole,
                          partial[:])
                   for sequence in sequences) / (
                       len(sequences) * host_mod.WHOLE)


def _leave(sequence: Iterable[Needs], vcpus: int, memory: int, whole: int,
           partial: list[int]) -> int:
    """Return the units left after a sequence, a share on the fullest GPU.

    :param partial: free units of GPUs in part, ascending; changed
    """
    # One loop without calls: it runs for every new state of a host.
    most = partial[-1] if partial else 0
    for milli_vcpus, memory_mib, gpus, units in sequence:
        if milli_vcpus > vcpus or memory_mib > memory:
            continue
        if gpus:
            if units == host_mod.WHOLE:
                if gpus > whole:
                    continue
                whole -= gpus
            elif units <= most:
                rest = partial.pop(bisect.bisect_left(partial, units)) - units
                if rest:
                    bisect.insort(partial, rest)
                most = partial[-1] if partial else 0
            elif whole:
                whole -= 1
                bisect.insort(partial, host_mod.WHOLE - units)
                most = partial[-1]
            else:
                continue
            if not whole and not most:
                return 0
        vcpus -= milli_vcpus
        memory -= memory_mib
    return whole * host_mod.WHOLE + sum(partial)
