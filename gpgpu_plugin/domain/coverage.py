# SPDX-License-Identifier: Apache-2.0
"""Which assignments of a group the allocations in Placement cover."""

from __future__ import annotations

import collections
import dataclasses
import typing
from collections.abc import Collection
from collections.abc import Mapping


class Assigned(typing.Protocol):
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


def of(assignments: Collection[Assigned],
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
