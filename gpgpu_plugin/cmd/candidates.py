# SPDX-License-Identifier: Apache-2.0
"""Hosts that Placement offers for a request, all in one question."""

from __future__ import annotations

import collections
import dataclasses
import typing
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.cmd import cloud as cloud_mod
from gpgpu_plugin.domain.why_not import placement as placement_rules

LIMIT = 5000
"""Candidates in one answer. Further hosts are asked for one by one."""

_CPUS = ('VCPU', 'PCPU')
_RAM = ('MEMORY_MB',)
Amounts = Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A host that Placement offers, with what Nova's HostState has of it.

    Allocation ratios and reserved amounts are part of the totals.

    :ivar uuid: UUID of the compute node
    :ivar allocation_candidates: what would be allocated, by provider
    """

    uuid: str
    allocation_candidates: Sequence[Mapping[str, typing.Any]]
    vcpus_total: int
    vcpus_used: int
    total_usable_ram_mb: int
    free_ram_mb: int
    cpu_allocation_ratio: float = 1.0
    ram_allocation_ratio: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidates:
    """Answer of Placement.

    :ivar of: by the UUID of the compute node
    :ivar complete: whether it has no others
    :ivar free: free amounts by provider and resource class
    """

    of: Mapping[str, Candidate]
    complete: bool
    free: Mapping[str, Amounts]


def read(cloud: cloud_mod.Cloud, needs: placement_rules.Needs,
         node: str | None = None) -> Candidates:
    """Return the candidates for an instance.

    :param node: only this compute node
    :raises cloud.ERRORS: Placement cannot be asked
    """
    limit = LIMIT if node is None else 1
    answer = cloud.placement('/allocation_candidates', {
        **needs.query, 'limit': str(limit),
        **({} if node is None else {'in_tree': node})})
    summaries = answer['provider_summaries']
    options = collections.defaultdict(list)
    for option in answer['allocation_requests']:
        roots = {summaries[provider]['root_provider_uuid']
                 for provider in option['allocations']}
        for root in roots:
            options[root].append(option)
    return Candidates(
        of={root: _candidate(root, summaries[root]['resources'], found)
            for root, found in options.items()},
        complete=node is None and len(
            answer['allocation_requests']) < limit,
        free={provider: {
            name: amount['capacity'] - amount['used']
            for name, amount in summary['resources'].items()}
            for provider, summary in summaries.items()})


def _candidate(root: str, resources: Mapping[str, Amounts],
               options: Sequence[Mapping[str, typing.Any]]) -> Candidate:
    def total(names: Sequence[str], what: str) -> int:
        return sum(resources[name][what] for name in names
                   if name in resources)
    ram = total(_RAM, 'capacity')
    return Candidate(
        uuid=root, allocation_candidates=options,
        vcpus_total=total(_CPUS, 'capacity'), vcpus_used=total(_CPUS, 'used'),
        total_usable_ram_mb=ram, free_ram_mb=ram - total(_RAM, 'used'))
