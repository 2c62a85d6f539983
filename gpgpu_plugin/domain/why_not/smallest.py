# SPDX-License-Identifier: Apache-2.0
"""The smallest changes after which a request fits on a host.

One proposal is one kind of change, as few of it as do: all that are left out
are needed by none. Where no kind alone helps, one proposal combines the
cheapest kinds that do together.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.why_not import change as change_mod
from gpgpu_plugin.domain.why_not import host as host_mod

_Kind = change_mod.ChangeKind
_Change = change_mod.Change
Proposal = tuple[change_mod.Change, ...]

_TRIED = 500
"""Sets of instances that are tried to find the fewest. With up to eight
instances on a host these are all sets; with more, the proposal may name more
than the fewest, but none without need."""


def proposals(host: host_mod.Host, request: request_mod.Request,
              guest_nodes: int | None = None) -> tuple[Proposal, ...]:
    """Return changes each of which makes a request fit, the cheapest first.

    :param request: one that does not fit now
    """
    def fits(changes: Sequence[_Change]) -> bool:
        return not host_mod.findings(
            change_mod.after(host, changes), request, guest_nodes)
    of_host = [*_of_one_kind(host, fits)] or [*_of_several(host, fits)]
    return (*of_host, *_of_request(host, request, guest_nodes))


def _of_one_kind(host: host_mod.Host,
                 fits: Callable[[Sequence[_Change]], bool],
                 ) -> Iterator[Proposal]:
    for kind in change_mod.OF_HOST:
        possible = change_mod.possible(host, kind)
        if possible and fits(possible):
            yield _fewest(possible, fits)


def _of_several(host: host_mod.Host,
                fits: Callable[[Sequence[_Change]], bool],
                ) -> Iterator[Proposal]:
    """Yield one proposal; the dearest kind is left out first."""
    possible: list[_Change] = []
    for kind in change_mod.OF_HOST:
        possible = [*change_mod.possible(host, kind), *possible]
        if fits(possible):
            yield tuple(sorted(_needed(possible, fits), key=_cost))
            return


def _cost(change: _Change) -> tuple[int, str]:
    return change_mod.OF_HOST.index(change.kind), change.subject


def _needed(possible: Sequence[_Change],
            fits: Callable[[Sequence[_Change]], bool]) -> list[_Change]:
    """Return changes that suffice, none of which can be left out."""
    needed = list(possible)
    for change in possible:
        without = [other for other in needed if other != change]
        if fits(without):
            needed = without
    return needed


def _fewest(possible: Sequence[_Change],
            fits: Callable[[Sequence[_Change]], bool]) -> Proposal:
    needed = _needed(possible, fits)
    # Of as many instances, those with the fewest devices.
    sets = itertools.chain.from_iterable(
        itertools.combinations(possible, size)
        for size in range(1, len(needed) + 1))
    for changes in itertools.islice(sets, _TRIED):
        if fits(changes):
            return changes
    return tuple(needed)


def _of_request(host: host_mod.Host, request: request_mod.Request,
                guest_nodes: int | None) -> Iterator[Proposal]:
    """Yield changes of the request with which it fits on the host as it is."""
    def fits(other: request_mod.Request) -> bool:
        return not host_mod.findings(host, other, guest_nodes)
    if request.restricts_topology and fits(dataclasses.replace(
            request, topology=request_mod.Topology.ANY)):
        yield (_Change(kind=_Kind.TOPOLOGY,
                       subject=str(request_mod.Topology.ANY)),)
    if len(request.demands) != 1:
        return
    [demand] = request.demands
    for count in range(demand.count - 1, 0, -1):
        if fits(dataclasses.replace(request, demands=(
                dataclasses.replace(demand, count=count),))):
            yield (_Change(kind=_Kind.FEWER, subject=str(count)),)
            return
