# SPDX-License-Identifier: Apache-2.0
"""Special capabilities of hosts, which requests without GPUs do not need.

Each is a tag. A host with groups of GPUs has the tag ``GPU``; the metadata of
its aggregates in Nova adds others. Only their number counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping

from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.scheduler_filters import scheduler_host
from gpgpu_plugin.scheduler_weights import ranking

KEY = 'gpgpu:tags'
"""Metadata of an aggregate: tags of its hosts, separated by commas."""

GPU = 'GPU'
"""The tag of hosts with groups of GPUs."""

_NONE: frozenset[str] = frozenset()
_ONLY_GPU = frozenset({GPU})


def ranks(hosts: Iterable[nova_types.HostState],
          gpu_hosts: Mapping[str, scheduler_host.SchedulerHost],
          ) -> list[float]:
    """Return the ranks of hosts for a request without GPUs.

    It is the highest one for a host without tags, and lower by one for each.

    :param gpu_hosts: hosts that have reported to the conductor, by the UUID of
        their compute node
    """
    # Nova's hosts share their aggregates, whose fields are slow to read.
    read: dict[int, frozenset[str]] = {}
    found = []
    for host in hosts:
        known = gpu_hosts.get(host.uuid)
        tags = _ONLY_GPU if known is not None and known.providers else _NONE
        for aggregate in host.aggregates:
            if id(aggregate) not in read:
                read[id(aggregate)] = _tags(aggregate)
            tags |= read[id(aggregate)]
        found.append(max(ranking.TOP - len(tags), 0.0))
    return found


def _tags(aggregate: nova_types.Aggregate) -> frozenset[str]:
    return frozenset(
        tag for text in aggregate.metadata.get(KEY, '').split(',')
        if (tag := text.strip()))
