# SPDX-License-Identifier: Apache-2.0
"""Why Placement has no candidate, and what its allocations cover.

Placement itself says no more than that a host is no candidate. Its rules for
resources and traits without a suffix are simple enough to be repeated: each
resource comes from some provider of the tree without a forbidden trait, and
the providers of the resources have all required traits among them, or their
root has.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import typing
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import why_not

NO_INVENTORY = 'placement_no_inventory'
NO_CAPACITY = 'placement_no_capacity'
TRAIT_MISSING = 'placement_trait_missing'
TRAIT_FORBIDDEN = 'placement_trait_forbidden'
"""Reasons for which Placement has no candidate on a host."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacementInventory:
    """Inventory of one resource class on one provider, as Placement has it.

    :ivar used: units that are allocated
    """

    total: int
    used: int = 0
    reserved: int = 0
    allocation_ratio: float = 1.0
    min_unit: int = 1
    max_unit: int = 2 ** 31 - 1
    step_size: int = 1

    @property
    def free(self) -> int:
        """Return how many units could be allocated, by count alone."""
        capacity = (self.total - self.reserved) * self.allocation_ratio
        return max(0, int(capacity) - self.used)

    def refusal(self, amount: int) -> str | None:
        """Return why an amount cannot be allocated at once."""
        if not self.min_unit <= amount <= self.max_unit:
            return (f'between {self.min_unit} and {self.max_unit} can be '
                    f'allocated at once')
        if amount % self.step_size:
            return f'only multiples of {self.step_size} can be allocated'
        if amount > self.free:
            return (f'{self.free} free: total {self.total}, reserved '
                    f'{self.reserved}, allocation ratio '
                    f'{self.allocation_ratio:g}, used {self.used}')
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacementProvider:
    """A resource provider of a host's tree; the root comes first."""

    name: str
    inventories: Mapping[str, PlacementInventory]
    traits: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
    """Resources and traits that a flavor needs, without suffixed groups.

    :ivar resources: amounts by resource class, all above 0
    """

    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()

    @property
    def query(self) -> dict[str, str]:
        """Return the query of ``GET /allocation_candidates``."""
        traits = [*sorted(self.required),
                  *(f'!{trait}' for trait in sorted(self.forbidden))]
        return {
            'resources': ','.join(f'{name}:{amount}' for name, amount
                                  in sorted(self.resources.items())),
            **({'required': ','.join(traits)} if traits else {})}


def needs(*, vcpus: int, ram: int, disk: int,
          extra_specs: Mapping[str, str]) -> Needs:
    """Return what a flavor needs, as nova.scheduler.utils has it.

    :param ram: MiB
    :param disk: GiB of root disk, ephemeral disk and swap, rounded up
    """
    cpus = 'PCPU' if extra_specs.get(
        'hw:cpu_policy') == 'dedicated' else 'VCPU'
    resources = {cpus: vcpus, 'MEMORY_MB': ram, 'DISK_GB': disk}
    traits: dict[str, set[str]] = {'required': set(), 'forbidden': set()}
    for key, value in extra_specs.items():
        kind, _, name = key.partition(':')
        if kind == 'resources' and str(value).isdecimal():
            resources[name] = int(value)
        elif kind == 'trait' and value in traits:
            traits[value].add(name)
    return Needs(
        resources={name: amount for name, amount in resources.items()
                   if amount},
        required=frozenset(traits['required']),
        forbidden=frozenset(traits['forbidden']))


def gib(*, root: int, ephemeral: int, swap: int) -> int:
    """Return the ``disk`` of needs; ``swap`` is in MiB."""
    return root + ephemeral + math.ceil(swap / 1024)


def findings(tree: Sequence[PlacementProvider],
             needed: Needs) -> tuple[why_not.Finding, ...]:
    """Return why Placement has no candidate in a tree, as far as it shows.

    :param tree: providers of one host; the root comes first
    """
    allowed = [provider for provider in tree
               if not provider.traits & needed.forbidden]
    return (*_traits(tree, allowed, needed),
            *_resources(tree, allowed, needed))


def _traits(tree: Sequence[PlacementProvider],
            allowed: Sequence[PlacementProvider],
            needed: Needs) -> Iterator[why_not.Finding]:
    givers = [provider for provider in allowed
              if provider.inventories.keys() & needed.resources.keys()]
    found: set[str] = set()
    for provider in (*tree[:1], *givers):
        found |= provider.traits
    missing = needed.required - found
    if missing:
        yield why_not.Finding(
            reason=TRAIT_MISSING,
            detail=f'no provider of its resources has '
                   f'{", ".join(sorted(missing))}')


def _resources(tree: Sequence[PlacementProvider],
               allowed: Sequence[PlacementProvider],
               needed: Needs) -> Iterator[why_not.Finding]:
    for name, amount in sorted(needed.resources.items()):
        having = [provider for provider in tree
                  if name in provider.inventories]
        left = [provider for provider in having if provider in allowed]
        if not having:
            yield why_not.Finding(
                reason=NO_INVENTORY, resource_class=name,
                detail=f'no provider of this host has {name}')
        elif not left:
            yield why_not.Finding(
                reason=TRAIT_FORBIDDEN,
                detail=f'{having[0].name} has {name}, and '
                       f'{", ".join(sorted(_forbidden(having, needed)))}, '
                       f'which the flavor forbids')
        else:
            yield from _capacity(left, name, amount)


def _forbidden(providers: Sequence[PlacementProvider],
               needed: Needs) -> set[str]:
    return {trait for provider in providers
            for trait in provider.traits & needed.forbidden}


def _capacity(providers: Sequence[PlacementProvider], name: str,
              amount: int) -> Iterator[why_not.Finding]:
    refusals = [f'{provider.name}: {refusal}' for provider in providers
                if (refusal := provider.inventories[name].refusal(amount))]
    if len(refusals) == len(providers):
        yield why_not.Finding(
            reason=NO_CAPACITY, resource_class=name,
            detail=f'{amount} of {name} requested; {"; ".join(refusals)}')


# -- Which assignments of a group the allocations in Placement cover.


class CoveredAssignment(typing.Protocol):
    """An active assignment."""

    @property
    def uuid(self) -> str: ...

    @property
    def instance_uuid(self) -> str: ...

    @property
    def resource_class(self) -> str: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coverage:
    """Outcome of a comparison.

    :ivar covered: UUIDs of assignments
    :ivar left: units that cover no assignment, by consumer and class
    """

    covered: frozenset[str]
    left: Mapping[tuple[str, str], int]


def coverage_of(assignments: Collection[CoveredAssignment],
                allocations: Mapping[str, Mapping[str, int]]) -> Coverage:
    """Return which assignments of a group allocations cover.

    An allocation of the instance itself covers an assignment; so does one of
    a consumer without assignments here, such as a migration, which has the
    allocation of the host that the instance leaves.

    :param allocations: on the group's provider: units by consumer UUID and
        resource class
    """
    left = collections.Counter({
        (consumer, resource_class): units
        for consumer, resources in allocations.items()
        for resource_class, units in resources.items()})
    covered = set()
    for assigned in assignments:
        key = assigned.instance_uuid, assigned.resource_class
        if left[key] > 0:
            left[key] -= 1
            covered.add(assigned.uuid)
    instances = {assigned.instance_uuid for assigned in assignments}
    for assigned in assignments:
        if assigned.uuid in covered:
            continue
        other = next((
            key for key, units in left.items()
            if units > 0 and key[0] not in instances
            and key[1] == assigned.resource_class), None)
        if other is not None:
            left[other] -= 1
            covered.add(assigned.uuid)
    return Coverage(covered=frozenset(covered), left={
        key: units for key, units in left.items() if units > 0})
