# SPDX-License-Identifier: Apache-2.0
"""Builders of hosts as the conductor reports them to schedulers."""

import dataclasses

from gpgpu_plugin.objects import scheduling
from tests.fixtures import lattice

RC = 'CUSTOM_GPU_A'


def changes(*hosts, since=1.0, **kwargs):
    return scheduling.Changes(
        since=since, packed=scheduling.pack(map(scheduling.encode, hosts)),
        **kwargs)


def groups(node, free=0b1111, generation=1, available=(), alone=(),
           changed_at=1.0, **kwargs):
    return scheduling.HostMasks(
        host=node,
        node_uuid=node,
        version=scheduling.HostVersion(
            sum(map(ord, node)), generation, changed_at),
        groups=(
            scheduling.GroupMasks(
                variant='A',
                provider_uuid=f'{node}-rp',
                types=(
                    scheduling.TypeMasks(
                        resource_class=RC, free=free, available=available
                    ),
                ),
                numa=(0b0011, 0b1100),
                numa_nodes=(0, 1),
                switches=(0b0001, 0b0010),
                alone=alone,
            ),
        ),
        **kwargs,
    )


def linked(node, free, fabric=True, instances=(), **kwargs):
    """Return a host with link partitions of one, two and four GPUs."""
    sent = groups(node, free, instances=instances, **kwargs)
    [group] = sent.groups
    [offer] = group.types
    return dataclasses.replace(sent, groups=(dataclasses.replace(
        group, types=(dataclasses.replace(
            offer, partitions=lattice.of(4), fabric=fabric),)),))


class Host:
    """A HostState of Nova, with what filters and weighers read."""

    def __init__(self, node, candidates=None, vcpus_used=0,
                 used_ram_mb=0):
        self.host = self.nodename = self.uuid = node
        self.allocation_candidates = (
            candidates if candidates is not None else [
                {'allocations': {node: {}, f'{node}-rp': {}},
                 'mappings': {}}])
        self.vcpus_total = 96
        self.vcpus_used = vcpus_used
        self.total_usable_ram_mb = 1 << 20
        self.free_ram_mb = self.total_usable_ram_mb - used_ram_mb
        self.cpu_allocation_ratio = self.ram_allocation_ratio = 1.0
        self.aggregates = []

    def consume_from_request(self, spec_obj):
        self.vcpus_used += spec_obj.flavor.vcpus


host = Host


class FakeAPI:
    """A conductor that gives prepared answers.

    :ivar asked: ``since`` and marker of each call
    :ivar known: versions that the last call named
    :ivar refusals: those of all calls, as are ``requests`` and ``mixes``
    :ivar exact: answer about named devices, or the error
    :ivar named: requests for such an answer
    :ivar chosen_hosts: choices that were sent
    :ivar periods: of each call
    """

    exact = scheduling.ExactHost()

    def __init__(self, *changes):
        self.changes = list(changes)
        self.asked = []
        self.known = ()
        self.refusals = []
        self.requests = []
        self.mixes = []
        self.named = []
        self.chosen_hosts = []
        self.periods = []

    def chosen(self, context, choices):
        self.chosen_hosts += choices

    def exact_host(self, context, request):
        self.named.append(request)
        if isinstance(self.exact, Exception):
            raise self.exact
        return self.exact

    def changes_since(self, context, since, known, marker, refusals=(),
                      requests=(), mix=0, period=0.0):
        self.periods.append(period)
        self.requests.append(requests)
        self.mixes.append(mix)
        self.asked.append((since, marker))
        self.known = known
        self.refusals.append(refusals)
        change = self.changes.pop(0)
        if isinstance(change, Exception):
            raise change
        return change
