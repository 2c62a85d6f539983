# SPDX-License-Identifier: Apache-2.0
"""Where instances go that leave their hosts, one after the other.

An order and a host for each instance are searched, so that no two instances
count on the same GPUs, vCPUs, RAM or disk. The hardest instance comes first,
and each goes to the host that it fills the most. If one is left over, it comes
first in the next attempt; then other orders are tried, as many as allowed.
That none was found is no proof that there is none.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import random
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.what_if import claim
from gpgpu_plugin.domain.why_not import host as host_mod

Amounts = Mapping[str, Mapping[str, int]]
"""Amounts by the UUID of a provider and by resource class."""

ORDERS = 200
"""Orders that are tried at most."""

_FULLEST, _EMPTIEST = 1, -1
_Kinds = tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """What some of the instances request alike.

    :ivar request: the demands for the plugin's classes alone
    :ivar guest_nodes: number of NUMA nodes of the guest; None: it has no
        NUMA topology
    :ivar options: by name of a host, what Placement would allocate there, one
        of these
    """

    request: request_mod.Request
    guest_nodes: int | None = None
    options: Mapping[str, Sequence[Amounts]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Outcome of a search.

    :ivar order: numbers of all instances; those that fit nowhere come last
    :ivar targets: name of the host by the number of the instance
    :ivar hosts: all hosts after that
    :ivar orders: how many were tried
    """

    order: Sequence[int]
    targets: Mapping[int, str]
    hosts: Mapping[str, host_mod.Host]
    free: Amounts
    orders: int

    @property
    def is_complete(self) -> bool:
        """Return whether every instance has a host."""
        return len(self.targets) == len(self.order)


class Planner:
    """Search for a plan.

    :param hosts: those that may take instances, by name
    :param free: what Placement can still allocate
    """

    def __init__(self, hosts: Mapping[str, host_mod.Host], free: Amounts,
                 kinds: Sequence[Kind]) -> None:
        self._hosts = hosts
        self._free = free
        self._kinds = kinds
        # A host is what the kinds that were claimed there, in their order,
        # made of it: attempts share these states. None: the last one is
        # refused.
        self._states: dict[tuple[str, _Kinds], host_mod.Host | None] = {}
        # Units of the last kind that are left then.
        self._left: dict[tuple[str, _Kinds], int] = {}
        # Who was left over by the last attempt.
        self._failed: Sequence[int] = ()

    def plan(self, leaving: Sequence[int],
             has_time: Callable[[], bool] = lambda: True) -> Plan:
        """Return the first plan that has a host for everybody, or the best.

        :param leaving: number of the kind of each instance
        """
        best: Plan | None = None
        tried = 0
        hosts = self._hosts_of_kinds()
        # No order helps those that fit nowhere alone.
        most = sum(hosts[kind] > 0 for kind in leaving)
        for order, preference in self._attempts(leaving):
            found = self._attempt(leaving, order, preference)
            tried += 1
            if best is None or len(found.targets) > len(best.targets):
                best = found
            if (len(best.targets) == most or tried >= ORDERS
                    or not has_time()):
                break
            self._failed = found.order[len(found.targets):]
        assert best is not None  # There is at least one order.
        return dataclasses.replace(best, orders=tried)

    def _attempts(self, leaving: Sequence[int],
                  ) -> Iterator[tuple[Sequence[int], int]]:
        """Yield orders, each different, and which hosts come first.

        Instances of one kind are alike: only the order of kinds counts.
        """
        order = self._hardest_first(leaving)
        seen: set[tuple[_Kinds, int]] = set()
        self._failed = ()
        while (key := (tuple(leaving[one] for one in order), _FULLEST)
               ) not in seen:
            seen.add(key)
            yield order, _FULLEST
            order = [*self._failed, *(
                one for one in order if one not in self._failed)]
        yield self._hardest_first(leaving), _EMPTIEST
        for other in _shuffled(leaving):
            for preference in (_FULLEST, _EMPTIEST):
                key = tuple(leaving[one] for one in other), preference
                if key not in seen:
                    seen.add(key)
                    yield other, preference

    def _hosts_of_kinds(self) -> list[int]:
        """Return how many hosts take one instance of each kind."""
        free = _Free(self._free)
        return [sum(any(map(free.has, options))
                    and self._after(host, (), number) is not None
                    for host, options in kind.options.items())
                for number, kind in enumerate(self._kinds)]

    def _hardest_first(self, leaving: Sequence[int]) -> list[int]:
        hosts = self._hosts_of_kinds()
        units = [sum(demand.count for demand in kind.request.demands)
                 for kind in self._kinds]
        return sorted(range(len(leaving)), key=lambda one: (
            hosts[leaving[one]], -units[leaving[one]], one))

    def _attempt(self, leaving: Sequence[int], order: Sequence[int],
                 preference: int) -> Plan:
        """Return what becomes of one order."""
        free = _Free(self._free)
        claimed: dict[str, _Kinds] = {}
        targets: dict[int, str] = {}
        for one in order:
            kind = leaving[one]
            target = self._target(kind, claimed, free, preference)
            if target is None:
                continue
            host, amounts = target
            free.take(amounts)
            targets[one] = host
            claimed[host] = (*claimed.get(host, ()), kind)
        hosts = {**self._hosts}
        for name, kinds in claimed.items():
            after = self._states[name, kinds]
            assert after is not None
            hosts[name] = after
        return Plan(
            order=[*(one for one in order if one in targets),
                   *(one for one in order if one not in targets)],
            targets=targets, hosts=hosts, free=free.left, orders=1)

    def _target(self, kind: int, claimed: Mapping[str, _Kinds],
                free: _Free, preference: int) -> tuple[str, Amounts] | None:
        """Return the best host, and what Placement would allocate there."""
        best: tuple[tuple[int, str], Amounts] | None = None
        for name, options in self._kinds[kind].options.items():
            amounts = next(filter(free.has, options), None)
            before = claimed.get(name, ())
            if amounts is None or self._after(name, before, kind) is None:
                continue
            key = preference * self._left[name, (*before, kind)], name
            if best is None or key < best[0]:
                best = key, amounts
        return None if best is None else (best[0][1], best[1])

    def _after(self, name: str, claimed: _Kinds,
               kind: int) -> host_mod.Host | None:
        """Return a host after claims of some kinds and another one."""
        key = name, (*claimed, kind)
        if key not in self._states:
            before = (self._states[name, claimed] if claimed
                      else self._hosts[name])
            assert before is not None
            asked = self._kinds[kind]
            after = self._states[key] = claim.after(
                before, asked.request, asked.guest_nodes)
            if after is not None:
                self._left[key] = claim.available(after, asked.request)
        return self._states[key]


class _Free:
    """What Placement can still allocate."""

    def __init__(self, free: Amounts) -> None:
        self._free = free
        self._taken: collections.Counter[tuple[str, str]] = (
            collections.Counter())

    def has(self, amounts: Amounts) -> bool:
        """Return whether amounts are left."""
        return all(
            self._free.get(provider, {}).get(name, 0)
            - self._taken[provider, name] >= amount
            for provider, resources in amounts.items()
            for name, amount in resources.items())

    def take(self, amounts: Amounts) -> None:
        """Subtract amounts."""
        for provider, resources in amounts.items():
            for name, amount in resources.items():
                self._taken[provider, name] += amount

    @property
    def left(self) -> Amounts:
        """Return what is left of all."""
        return {provider: {name: amount - self._taken[provider, name]
                           for name, amount in resources.items()}
                for provider, resources in self._free.items()}


def _shuffled(leaving: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield all orders if there are few, else random ones, always alike."""
    if math.factorial(min(len(leaving), 6)) <= ORDERS:
        yield from itertools.permutations(range(len(leaving)))
        return
    generator = random.Random(0)
    for _ in range(10 * ORDERS):
        yield generator.sample(range(len(leaving)), len(leaving))
