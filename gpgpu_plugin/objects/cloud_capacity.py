# SPDX-License-Identifier: Apache-2.0
"""Capacity of a vGPU type on all hosts together."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

from gpgpu_plugin.objects import admin

SUMMED = ('max_capacity', 'remaining_capacity', 'assigned')
"""Fields that are added up."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CloudCapacity:
    """A type on all hosts together.

    :ivar hosts: number of hosts on which it is enabled
    """

    variant: str
    vgpu_type: str
    hosts: int
    max_capacity: int
    remaining_capacity: int
    assigned: int


def summed(types: Iterable[admin.VGPUTypeInfo]) -> list[CloudCapacity]:
    """Return the capacity on all hosts, by variant and type."""
    found: dict[tuple[str, str], list[admin.VGPUTypeInfo]] = (
        collections.defaultdict(list))
    for info in types:
        found[info.variant, info.vgpu_type].append(info)
    return [CloudCapacity(
        variant=variant, vgpu_type=vgpu_type,
        hosts=sum(info.enabled for info in infos),
        **{name: sum(getattr(info, name) for info in infos)
           for name in SUMMED})
        for (variant, vgpu_type), infos in sorted(found.items())]
