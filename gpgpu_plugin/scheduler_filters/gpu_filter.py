# SPDX-License-Identifier: Apache-2.0
"""GpuFilter drops candidates whose group cannot satisfy the request."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from nova.scheduler import filters
from nova.scheduler import utils
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.scheduler_filters import conductor_messages
from gpgpu_plugin.scheduler_filters import request_view
from gpgpu_plugin.scheduler_filters import scheduler_view

LOG = logging.getLogger(__name__)


class _Asked:
    """A request, and what it is checked against."""

    def __init__(self, request: request_mod.Request,
                 view: scheduler_view.SchedulerView,
                 guest_nodes: int | None) -> None:
        self.view = view
        self._request = request
        self._guest_nodes = guest_nodes
        self._kind = view.kind(request, guest_nodes)

    def refusal(self, known: scheduler_view.SchedulerHost,
                own: frozenset[str]) -> request_mod.Refusal | None:
        """Return why some groups cannot meet the request."""
        return known.known_refusal(
            own, self._request, self._guest_nodes, self._kind)


def _fitting(host: nova_types.HostState,
             known: scheduler_view.SchedulerHost, asked: _Asked,
             ) -> request_mod.Refusal | None:
    """Drop candidates that differ in providers of the host's groups."""
    refusal = None
    fitting = []
    for candidate in host.allocation_candidates:
        found = asked.refusal(known, known.own(candidate['allocations']))
        if found is None:
            fitting.append(candidate)
        else:
            refusal = found
    host.allocation_candidates = fitting
    return None if fitting else refusal


class GpuFilter(filters.BaseHostFilter):
    """Filter by vGPU type, topology and capacity, with the conductor's data.

    Placement may be out of date, and knows no topology. Requests without GPUs
    pass without a call, once the view was read; so do rebuilds, which keep
    their devices. The claim checks again.
    """

    RUN_ON_REBUILD = False

    def __init__(
        self, cache: scheduler_view.SchedulerViewCache | None = None
    ) -> None:
        super().__init__()
        self._source = request_view.ViewSource(cache)

    def filter_all(self, filter_obj_list: Iterable[nova_types.HostState],
                   spec_obj: nova_types.RequestSpec,
                   ) -> Iterator[nova_types.HostState]:
        """Return the hosts that have a candidate with the requested GPUs."""
        hosts = list(filter_obj_list)
        request_view.forget_decision(spec_obj)
        if utils.request_is_rebuild(spec_obj):
            return iter(hosts)
        try:
            request = request_view.read_request(spec_obj)
        except exception.Invalid as exc:
            return self._refuse_all(spec_obj, hosts, request_mod.Refusal(
                reason=request_mod.Reason.EXTRA_SPEC_INVALID,
                detail=str(exc)))
        if request_view.names_devices(spec_obj):
            return self._filter_exact(hosts, spec_obj, request)
        if not request:
            self._source.count(spec_obj, request)
            request_view.remember_decision(spec_obj,
                                           request_view.FilterDecision(
                request=request, view=self._source.last()))
            return self._plain(hosts, spec_obj)
        try:
            view = self._source.refresh()
        except exception.ConductorUnavailable as exc:
            if not request.own(naming.NOVA_CLASSES):
                return iter(hosts)
            return self._refuse_all(spec_obj, hosts, request_mod.Refusal(
                reason=request_mod.Reason.CONDUCTOR_UNAVAILABLE,
                detail=str(exc)))
        return self._filter(
            hosts, spec_obj, view.own_demands(request), view)

    def _filter_exact(self, hosts: list[nova_types.HostState],
                      spec_obj: nova_types.RequestSpec,
                      request: request_mod.Request,
                      ) -> Iterator[nova_types.HostState]:
        """Return the host that has the devices that the instance names."""
        found = self._exact_host(spec_obj, request)
        passed = [host for host in hosts if host.uuid == found.node_uuid]
        if passed:
            return iter(passed)
        return self._refuse_all(
            spec_obj, hosts, found.refusal or request_mod.Refusal(
                reason=request_mod.Reason.EXACT_DEVICE_ELSEWHERE,
                detail=f'only {found.host} has the devices that scheduler '
                       f'hint {request_mod.HINT} names, and it is not among '
                       f'the hosts that Nova considers'))

    def _exact_host(self, spec_obj: nova_types.RequestSpec,
                    request: request_mod.Request,
                    ) -> scheduling_obj.ExactHost:
        """Return the host of the named devices, or why there is none."""
        try:
            return self._source.exact_host(
                request_view.read_exact(spec_obj, request))
        except exception.Invalid as exc:
            reason, detail = request_mod.Reason.EXACT_DEVICES_INVALID, str(exc)
        except exception.ConductorUnavailable as exc:
            reason, detail = request_mod.Reason.CONDUCTOR_UNAVAILABLE, str(exc)
        return scheduling_obj.ExactHost(refusal=request_mod.Refusal(
            reason=reason, detail=detail))

    def _filter(self, hosts: list[nova_types.HostState],
                spec_obj: nova_types.RequestSpec,
                request: request_mod.Request,
                view: scheduler_view.SchedulerView,
                ) -> Iterator[nova_types.HostState]:
        topology = spec_obj.numa_topology
        guest_nodes = None if topology is None else len(topology.cells)
        request_view.remember_decision(spec_obj, request_view.FilterDecision(
            request=request, view=view, guest_nodes=guest_nodes))
        if not request:
            self._source.count(spec_obj, request)
            return self._plain(hosts, spec_obj)
        passed = []
        asked = _Asked(request, view, guest_nodes)
        reasons: collections.Counter[str] = collections.Counter()
        detail = ''
        for host in hosts:
            refusal = self._refusal(host, asked)
            if refusal is None:
                request_view.watch_host(host)
                passed.append(host)
                continue
            reasons[refusal.reason] += 1
            detail = f'{host.host}: {refusal.detail}'
            LOG.debug('GpuFilter refuses %(host)s: %(reason)s (%(detail)s)',
                      {'host': host.host, 'reason': refusal.reason,
                       'detail': refusal.detail})
        self._source.count(spec_obj, request, is_refused=not passed)
        self._record(spec_obj, reasons, len(passed), detail)
        return iter(passed)

    def _plain(self, hosts: list[nova_types.HostState],
               spec_obj: nova_types.RequestSpec,
               ) -> Iterator[nova_types.HostState]:
        """Return all hosts, unless the image requires a GPU."""
        return (self._refuse_all(spec_obj, hosts, request_mod.GPU_REQUIRED)
                if nova_types.requires_gpu(spec_obj.image) else iter(hosts))

    @staticmethod
    def _refusal(host: nova_types.HostState, asked: _Asked,
                 ) -> request_mod.Refusal | None:
        """Drop the host's candidates that do not fit.

        :returns: None if some candidates fit, else why the last one does not
        """
        candidates = host.allocation_candidates
        # A forced host or a move to the same host has no candidates: the
        # claim decides.
        if not candidates:
            return None
        known = asked.view.hosts.get(host.uuid)
        if known is None:
            host.allocation_candidates = []
            return scheduler_view.UNKNOWN
        if known.offers_all(candidates):
            # They differ in providers of others only.
            refusal = asked.refusal(known, known.providers)
            if refusal is not None:
                host.allocation_candidates = []
            return refusal
        return _fitting(host, known, asked)

    def _refuse_all(self, spec_obj: nova_types.RequestSpec,
                    hosts: list[nova_types.HostState],
                    refusal: request_mod.Refusal,
                    ) -> Iterator[nova_types.HostState]:
        LOG.warning('GpuFilter: %s (%s)', refusal.reason, refusal.detail)
        self._record(
            spec_obj, {refusal.reason: len(hosts)}, 0, refusal.detail)
        return iter(())

    def _record(self, spec_obj: nova_types.RequestSpec,
                reasons: Mapping[str, int], passed: int,
                detail: str) -> None:
        """Log that no host is left, and have all refusals stored."""
        if reasons:
            self._source.refused(conductor_messages.refused_decision(
                type(self).__name__, spec_obj, reasons, passed, detail))
        if passed:
            return
        LOG.info('GpuFilter refuses all hosts for instance %s: %s',
                 spec_obj.instance_uuid,
                 ', '.join(f'{reason} {count}'
                           for reason, count in sorted(reasons.items())))
