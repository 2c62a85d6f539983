# SPDX-License-Identifier: Apache-2.0
"""GpuNUMATopologyFilter: Nova's NUMATopologyFilter, which knows GPUs."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from collections.abc import Iterator

from nova.scheduler import utils
from nova.scheduler.filters import numa_topology_filter
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import host_numa
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.scheduler_filters import conductor_messages
from gpgpu_plugin.scheduler_filters import request_view
from gpgpu_plugin.scheduler_filters import scheduler_view

LOG = logging.getLogger(__name__)


class GpuNUMATopologyFilter(numa_topology_filter.NUMATopologyFilter):
    """Filter by NUMA nodes that have room for the guest and free GPUs.

    It replaces Nova's filter, which knows the guest alone, while GpuFilter
    knows the GPUs alone: a host with free memory on one node and free GPUs on
    another one passes both. It differs from Nova's filter only if a guest has
    a NUMA topology and a NUMA policy requires its GPUs to be near.
    """

    def __init__(
        self, cache: scheduler_view.SchedulerViewCache | None = None
    ) -> None:
        super().__init__()
        self._source = request_view.ViewSource(cache)

    def filter_all(self, filter_obj_list: Iterable[nova_types.HostState],
                   spec_obj: nova_types.RequestSpec,
                   ) -> Iterator[nova_types.HostState]:
        """Return the hosts on which guest and GPUs can be near."""
        hosts = list(filter_obj_list)
        near = self._near(spec_obj)
        if near is None:
            passed: Iterator[nova_types.HostState] = super().filter_all(
                hosts, spec_obj)
            return passed
        request, view = near
        # All at once: what was refused is one record.
        return iter(self._filter_near(hosts, spec_obj, request, view))

    def _filter_near(self, hosts: list[nova_types.HostState],
                     spec_obj: nova_types.RequestSpec,
                     request: request_mod.Request,
                     view: scheduler_view.SchedulerView,
                     ) -> list[nova_types.HostState]:
        passed = [host for host in hosts
                  if self._passes_near(host, spec_obj, request, view)]
        count = len(hosts) - len(passed)
        if count:
            self._source.refused(conductor_messages.refused_decision(
                type(self).__name__, spec_obj,
                {request_mod.Reason.NUMA_POLICY_REQUIRED: count}, len(passed),
                'no NUMA nodes have room for the guest and its GPUs'))
        return passed

    def _near(self, spec_obj: nova_types.RequestSpec) -> tuple[
            request_mod.Request, scheduler_view.SchedulerView] | None:
        """Return the request for near GPUs, and the view; None: no such one.

        GpuFilter and the claim refuse what cannot be read or checked now.
        """
        if (spec_obj.numa_topology is None
                or utils.request_is_rebuild(spec_obj)):
            return None
        try:
            request = request_view.read_request(spec_obj)
            if not request or not request.restricts_numa:
                return None
            view = self._source.refresh()
        except (exception.Invalid, exception.ConductorUnavailable) as exc:
            LOG.warning('GpuNUMATopologyFilter ignores GPUs: %s', exc)
            return None
        request = view.own_demands(request)
        return (request, view) if request else None

    def _passes_near(self, host: nova_types.HostState,
                     spec_obj: nova_types.RequestSpec,
                     request: request_mod.Request,
                     view: scheduler_view.SchedulerView) -> bool:
        """Drop the host's candidates that fit on no set of NUMA nodes."""
        # A forced host or a move to the same host has no candidates: Nova's
        # filter decides, and then the claim.
        if host.numa_topology is None or not host.allocation_candidates:
            return bool(self.host_passes(host, spec_obj))
        known = view.hosts.get(host.uuid)
        if known is None:
            host.allocation_candidates = []
            return False
        assert spec_obj.numa_topology is not None
        sockets = host_numa.sockets(host.numa_topology)
        good: set[int] = set()
        for nodes in host_numa.choices(
                host.numa_topology, spec_obj.numa_topology):
            part = copy.copy(host)
            part.allocation_candidates = [
                candidate for candidate in host.allocation_candidates
                if known.refusal_on(
                    known.own(candidate['allocations']), request, nodes,
                    sockets) is None]
            part.numa_topology = host_numa.confined(host.numa_topology, nodes)
            if part.allocation_candidates and self.host_passes(
                    part, spec_obj):
                good.update(map(id, part.allocation_candidates))
        host.allocation_candidates = [
            candidate for candidate in host.allocation_candidates
            if id(candidate) in good]
        if not good:
            LOG.debug('GpuNUMATopologyFilter refuses %s: no NUMA nodes have '
                      'room for the guest and its GPUs', host.host)
        return bool(good)
