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
"""What a group offers in Placement."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Desired:
    """The inventory record of one resource class."""

    total: int
    reserved: int
    max_unit: int


def desired(*, most: int, remaining: int, allocated: int,
            largest_allocation: int = 0) -> Desired | None:
    """The inventory with which Placement offers exactly ``remaining``.

    Placement offers total - reserved - used. Capacity is taken away through
    ``reserved`` alone: a total or max_unit below a live allocation would
    break every other build and delete on the host.

    :param most: units that the group's cards in any state, missing ones
        too, can be
    :param remaining: units that a claim could take now
    :param allocated: units held under a Placement allocation on the provider
    :param largest_allocation: the most units one live allocation holds
    :returns: None for a type without cards and allocations: 0 is not a
        legal total
    """
    total = max(most, remaining + allocated, largest_allocation)
    if total == 0:
        return None
    return Desired(total=total, max_unit=total,
                   reserved=max(0, total - remaining - allocated))
