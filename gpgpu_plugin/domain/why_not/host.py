# SPDX-License-Identifier: Apache-2.0
"""One host as a request finds it, and every reason to refuse the request.

The scheduler and the claim end with the first reason that they find. Here all
of them are collected, with the same functions, so that both agree: a host has
no reason to refuse a request if, and only if, GpuFilter and the claim take it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping

from gpgpu_plugin.domain import group as group_mod
from gpgpu_plugin.domain import host_state
from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import feasibility
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod

_Reason = request_mod.Reason

HOST_SILENT = 'host_silent'
HOST_DISABLED = 'host_disabled'
HOST_RESTORED = 'host_restored'
"""Reasons of a host as a whole. The first two are those of Nova's
ComputeFilter, as far as the conductor knows them; the last is its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A reason to refuse a request; its name is that of the claim's refusal.

    :ivar reason: a request.Reason, HOST_SILENT, HOST_DISABLED or HOST_RESTORED
    :ivar resource_class: of which Placement has too little
    """

    reason: str
    detail: str
    resource_class: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """Groups of a host, and who has its devices.

    :ivar groups: those that have devices
    :ivar users: UUIDs of instances by the stable id of their device
    """

    name: str
    groups: tuple[group_mod.GroupCapacity, ...] = ()
    state: host_state.HostState = host_state.HostState.UP
    users: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def offered(self, resource_class: str) -> tuple[
            group_mod.GroupCapacity, group_mod.OfferedType] | None:
        """Return the group and type of a resource class; None: it has none."""
        for group in self.groups:
            for offered in group.types:
                if group.resource_class(offered.vgpu_type) == resource_class:
                    return group, offered
        return None


def findings(host: Host, request: request_mod.Request,
             guest_nodes: int | None = None) -> tuple[Finding, ...]:
    """Return all reasons to refuse a request; none: the host can take it.

    Whether the GPUs that are left meet the topology is examined where they
    are enough.

    :param request: the demands for the plugin's classes alone
    :param guest_nodes: number of NUMA nodes of the guest; None: it has no
        NUMA topology
    """
    found = [*_of_host(host)]
    for demand in request.demands:
        found += _of_demand(host, demand)
    # A host that is silent or drained has its GPUs all the same.
    if not any(finding.reason in _OF_COUNT for finding in found):
        refusal = _of_all(_opened(host), request, guest_nodes)
        if refusal is not None:
            found.append(_finding(refusal))
    return tuple(found)


_OF_COUNT = frozenset({
    _Reason.NO_SUCH_GROUP, _Reason.NOT_ENOUGH_AVAILABLE, _Reason.TYPE_CONFLICT,
    _Reason.DRIVER_HAS_NO_ROOM})


def _finding(refusal: request_mod.Refusal) -> Finding:
    return Finding(reason=str(refusal.reason), detail=refusal.detail)


def _of_host(host: Host) -> Iterator[Finding]:
    if host.state is host_state.HostState.SILENT:
        yield Finding(
            reason=HOST_SILENT,
            detail='its nova-compute does not call; see "gpgpu-manage host '
                   'show" and the log of nova-compute there')
    elif host.state is host_state.HostState.RESTORED:
        yield Finding(
            reason=HOST_RESTORED,
            detail='the database was restored, and the host has not reported '
                   'what it has since; wait, or restart nova-compute there')
    elif host.state is host_state.HostState.DISABLED:
        yield Finding(
            reason=HOST_DISABLED,
            detail='its nova-compute is disabled in Nova; see "openstack '
                   'compute service list"')


def _of_demand(host: Host, demand: request_mod.Demand) -> Iterator[Finding]:
    found = host.offered(demand.resource_class)
    if found is None:
        classes = sorted(
            group.resource_class(offered.vgpu_type)
            for group in host.groups for offered in group.types)
        yield _finding(request_mod.Refusal(
            reason=_Reason.NO_SUCH_GROUP,
            detail=f'no GPU of {demand.resource_class} on this host, which '
                   f'has {", ".join(classes) or "no group"}'))
        return
    group, offered = found
    for refusal in group.refusals(offered):
        yield _finding(refusal)
    shortage = _of_all(_opened(host), request_mod.Request(demands=(demand,)))
    if shortage is not None:
        yield Finding(
            reason=str(shortage.reason),
            detail=f'{shortage.detail}; {_states(group)}')


def _states(group: group_mod.GroupCapacity) -> str:
    states = ', '.join(f'{count} {state}' for state, count
                       in group.shown_states().items())
    return f'{len(group.gpus)} GPUs of {group.variant.name}: {states}'


def _opened(host: Host) -> Host:
    """Return the host as if nothing but its GPUs could refuse.

    A group that is open already keeps what was computed of it.
    """
    return dataclasses.replace(host, groups=tuple(
        dataclasses.replace(group, draining=False, types=tuple(
            dataclasses.replace(offered, enabled=True)
            for offered in group.types))
        if group.draining or not all(
            offered.enabled for offered in group.types) else group
        for group in host.groups))


def anywhere(request: request_mod.Request) -> request_mod.Request:
    """Return a request for any NUMA nodes.

    Where the guest's memory will be, only its host knows.
    """
    return dataclasses.replace(
        request, numa_policy=request_mod.NUMAPolicy.NONE,
        pci_numa_policy=None)


def _of_all(host: Host, request: request_mod.Request,
            guest_nodes: int | None = None) -> request_mod.Refusal | None:
    """Return why the claim, or else the filter, refuses the request."""
    offers: dict[str, offer_mod.TypeOffer] = {}
    for demand in request.demands:
        found = host.offered(demand.resource_class)
        assert found is not None
        offers[demand.resource_class] = found[0].offer(found[1])
    try:
        allocate.allocate(offers, anywhere(request), {})
    except request_mod.Unsatisfiable as exc:
        return request_mod.Refusal(reason=exc.reason, detail=exc.detail)
    masks = feasibility.masks(list(offers.values()))
    return feasibility.refusal(
        dict(zip(offers, masks, strict=True)), request, guest_nodes)
