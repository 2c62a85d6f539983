# SPDX-License-Identifier: Apache-2.0
"""Inventory that Placement should have of a group's resource class."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Desired:
    """Inventory record of one resource class, in Placement's words."""

    total: int
    reserved: int
    max_unit: int


def desired(*, max_instances: int, available: int, allocated: int,
            largest_allocation: int = 0) -> Desired | None:
    """Return the inventory with which Placement offers what is available.

    Placement offers total - reserved - used. Capacity is withdrawn through
    ``reserved`` alone: a total or max_unit below a live allocation would
    break every other build and delete on the host.

    :param max_instances: units that the group's GPUs can have, in any state
        and including missing GPUs
    :param available: units that a claim could take now
    :param allocated: units assigned under a Placement allocation on the
        provider
    :param largest_allocation: units of the largest live allocation
    :returns: None for a type without GPUs and allocations: 0 is not a legal
        total
    """
    total = max(max_instances, available + allocated, largest_allocation)
    if total == 0:
        return None
    return Desired(total=total, max_unit=total,
                   reserved=max(0, total - available - allocated))
