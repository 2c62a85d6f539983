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
"""What the driver of a card said of its room: which of it holds now."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping

from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import vgpu_type


def newer(
    before: vgpu_type.DriverCapacity | None,
    told: vgpu_type.DriverCapacity,
    used: Mapping[str, str | None],
) -> vgpu_type.DriverCapacity:
    """Which of two the driver told last: answers of several builds may
    arrive in any order.

    Each change is told after it was made, so what was asked last saw all
    that others saw. Between two starts of a nova-compute nothing is known;
    the one that arrives last is taken.

    :param used: types of the host's places that are in use, by stable id
    """
    if before is not None and before.sampled_at[0] == told.sampled_at[0] and (
            told.sampled_at < before.sampled_at):
        return before
    return dataclasses.replace(
        told,
        observed_max=_most(before.observed_max if before else {}, told, used),
    )


def _most(most: Mapping[str, int], told: vgpu_type.DriverCapacity,
          used: Mapping[str, str | None]) -> dict[str, int]:
    """How many of a type the card takes, learnt where it has no other."""
    result = dict(most)
    there = collections.Counter(used.get(name) for name in told.existing)
    for name in {*told.available, *filter(None, there)}:
        count, more = there[name], told.available.get(name, 0)
        if count != there.total():
            continue
        if more is None:
            if result.get(name, count + 1) <= count:
                del result[name]
        elif count + more:
            # None at all is trouble of the driver's, not a size.
            result[name] = count + more
    return result


def named(told: vgpu_type.DriverCapacity,
          places: Mapping[str, str]) -> vgpu_type.DriverCapacity:
    """With the stable ids of places instead of the UUIDs of mdevs.

    :param places: of mdevs that were made for assignments; others keep
        their UUIDs
    """
    return dataclasses.replace(told, existing=tuple(sorted(
        places.get(name, name) for name in told.existing)))


def types(facts: pci.PCIFunction) -> dict[str, vgpu_type.VGPUType]:
    """What a card can be carved into, by name."""
    found = {kind.name: kind for kind in facts.vgpu_types or ()}
    most = (
        facts.driver_capacity.observed_max
        if facts.driver_capacity is not None
        else {}
    )
    for name in found.keys() & most.keys():
        if most[name] < (found[name].max_instances or 0):
            found[name] = dataclasses.replace(
                found[name], max_instances=most[name])
    return found


def available(
    told: vgpu_type.DriverCapacity | None,
    used: Mapping[str, str | None],
    foreign: Iterable[str],
) -> dict[str, int | None] | None:
    """How many more of each type the driver makes now.

    :param used: types of the card's places where something is, or will be,
        by stable id
    :param foreign: mdevs of others
    :returns: as in sharing.GPUCapacity; None: it told nothing that still
        holds, since something that was there then is gone
    """
    if told is None:
        return None
    if not used.keys() | set(foreign) >= set(told.existing):
        return None
    since = collections.Counter(
        used[name] for name in used.keys() - set(told.existing))
    return {name: None if count is None else max(0, count - since[name])
            for name, count in told.available.items()}
