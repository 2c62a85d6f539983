# SPDX-License-Identifier: Apache-2.0
"""Capacity that the driver of a GPU reported, and how long it is valid."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

from gpgpu_plugin.domain.vgpu import capability as capability_mod
from gpgpu_plugin.domain.vgpu import vgpu_type


@dataclasses.dataclass(frozen=True, kw_only=True)
class DriverCapacity:
    """Report of a driver about the vGPUs that it can still create on one GPU.

    :ivar existing: vGPUs that the GPU had at that time: UUIDs of mdevs, or
        stable ids of VFs
    :ivar available: how many more of each type the driver can create if it
        creates no other type, by the type's name; None: at least one. A type
        that is left out cannot be created
    :ivar observed_max: how many of a type the GPU was seen to have without
        any other type; only the conductor knows it
    :ivar sampled_at: identifies the start of the host's nova-compute, and a
        growing number that was drawn before the driver was read; the equality
        of reports ignores it
    """

    existing: tuple[str, ...] = ()
    available: dict[str, int | None] = dataclasses.field(default_factory=dict)
    observed_max: dict[str, int] = dataclasses.field(default_factory=dict)
    sampled_at: tuple[str, int] = dataclasses.field(
        default=('', 0), compare=False
    )


def is_older(one: DriverCapacity, other: DriverCapacity) -> bool:
    """Return whether one report is known to be older than another."""
    return (one.sampled_at[0] == other.sampled_at[0]
            and one.sampled_at < other.sampled_at)


def newer(stored: DriverCapacity | None, reported: DriverCapacity,
          used: Mapping[str, str | None]) -> DriverCapacity:
    """Return the newer of two driver reports.

    Reports of several builds may arrive in any order. Each one is sampled
    after its change was made, so the one that was sampled last saw all that
    the others saw. Reports of two starts of nova-compute cannot be ordered;
    the one that arrives last is used.

    :param used: types of the host's devices that are in use, by stable id
    """
    if stored is not None and is_older(reported, stored):
        return stored
    return dataclasses.replace(reported, observed_max=_observed_max(
        stored.observed_max if stored else {}, reported, used))


def _observed_max(before: Mapping[str, int], reported: DriverCapacity,
                  used: Mapping[str, str | None]) -> dict[str, int]:
    """Return how many of each type fit, as observed without other types."""
    result = dict(before)
    existing = collections.Counter(
        used.get(stable_id) for stable_id in reported.existing)
    for name in {*reported.available, *filter(None, existing)}:
        count, more = existing[name], reported.available.get(name, 0)
        if count != existing.total():
            continue
        if more is None:
            if result.get(name, count + 1) <= count:
                del result[name]
        elif count + more:
            # None at all means that the driver is in trouble, not a size.
            result[name] = count + more
    return result


def merge(stored: DriverCapacity | None, observed: DriverCapacity | None,
          places: Mapping[str, str], used: Mapping[str, str | None],
          ) -> DriverCapacity | None:
    """Return what is known about a driver's capacity after a scan.

    A scan that could not read the driver's report changes nothing, and neither
    does one that read the same report later.

    :param places: stable ids of mdevs made for assignments, by UUID
    :param used: as of ``newer``
    """
    if observed is None:
        return stored
    result = newer(stored, with_stable_ids(observed, places), used)
    return stored if result == stored else result


def with_stable_ids(reported: DriverCapacity,
                    places: Mapping[str, str]) -> DriverCapacity:
    """Return the report with stable ids of mdev rows instead of UUIDs.

    :param places: stable ids of mdevs made for assignments, by UUID; others
        keep their UUIDs
    """
    return dataclasses.replace(reported, existing=tuple(sorted(
        places.get(name, name) for name in reported.existing)))


def types(capability: capability_mod.VGPUCapability | None,
          reported: DriverCapacity | None) -> dict[str, vgpu_type.VGPUType]:
    """Return the types that a GPU can be partitioned into, by name.

    Some were not listed while the GPU was empty, such as those of MIG
    instances that were made later.
    """
    if capability is None:
        return {}
    found = {known.name: known for known in capability.types or ()}
    if reported is None:
        return found
    found |= {known.name: known for known in vgpu_type.of_names(
        reported.available.keys() - found.keys())}
    observed_max = reported.observed_max
    for name in found.keys() & observed_max.keys():
        if observed_max[name] < (found[name].max_instances or 0):
            found[name] = dataclasses.replace(
                found[name], max_instances=observed_max[name])
    return found


def available(
    reported: DriverCapacity | None, used: Mapping[str, str | None],
) -> dict[str, int | None] | None:
    """Return how many more of each type the driver can create now.

    A vGPU that existed when the driver reported, and that nobody knows here,
    may be another tool's: the report holds until the next one.

    :param used: types of the GPU's mdev rows and VFs that have a vGPU or
        will have one, by stable id
    :returns: as in capacity.GPUCapacity
    """
    if reported is None:
        return None
    since = collections.Counter(
        used[stable_id] for stable_id in used.keys() - set(reported.existing))
    return {name: None if count is None else max(0, count - since[name])
            for name, count in reported.available.items()}
