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
"""The scheduler's view of the groups of all hosts.

It is kept between decisions; one call per decision fetches the changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Mapping

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.domain.allocation import feasibility
from gpgpu_plugin.domain.allocation import region
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.rpc import conductor_api


class SchedulerView:
    """Groups of all hosts at one generation. Immutable.

    :ivar hosts: by node UUID, which is the UUID of Nova's compute node
    """

    def __init__(self, generation: int = 0,
                 hosts: Mapping[str, scheduling_obj.HostMasks] | None = None,
                 ) -> None:
        self.generation = generation
        self.hosts = dict(hosts or {})
        self.resource_classes = frozenset(
            offer.resource_class for host in self.hosts.values()
            for group in host.groups for offer in group.types)

    def updated(self, changes: scheduling_obj.Changes) -> SchedulerView:
        """Return the view after the changes."""
        hosts = dict(self.hosts)
        for host in changes.hosts:
            known = hosts.get(host.node_uuid)
            if known is not None and known.generation > host.generation:
                continue
            if host.deleted:
                hosts.pop(host.node_uuid, None)
            else:
                hosts[host.node_uuid] = host
        return SchedulerView(changes.generation, hosts)

    def refusal(self, node_uuid: str, providers: frozenset[str],
                request: request_mod.Request,
                guest_nodes: int | None = None,
                ) -> request_mod.Refusal | None:
        """Return why a candidate cannot meet the request; None if it can.

        :param providers: UUIDs of the providers of the candidate; those that
            are not the plugin's are ignored
        :param guest_nodes: number of NUMA nodes of the guest; None: it has
            no NUMA topology
        """
        return self._decide(
            node_uuid, providers, request, lambda masks: feasibility.refusal(
                masks, request, guest_nodes))

    def refusal_on(self, node_uuid: str, providers: frozenset[str],
                   request: request_mod.Request,
                   guest_nodes: frozenset[int], sockets: region.Sockets,
                   ) -> request_mod.Refusal | None:
        """Return why a candidate cannot have the guest on these NUMA nodes.

        :param sockets: the NUMA nodes of each of the host's sockets; empty:
            unknown
        """
        return self._decide(
            node_uuid, providers, request,
            lambda masks: feasibility.refusal_on(
                masks, request, guest_nodes, sockets))

    def _decide(self, node_uuid: str, providers: frozenset[str],
                request: request_mod.Request, decide: Callable[
                    [Mapping[str, feasibility.Masks]],
                    request_mod.Refusal | None],
                ) -> request_mod.Refusal | None:
        host = self.hosts.get(node_uuid)
        if host is None:
            return request_mod.Refusal(
                reason=request_mod.Reason.HOST_UNKNOWN,
                detail='the host never reported its devices')
        asked = {demand.resource_class for demand in request.demands}
        masks = {
            offer.resource_class: feasibility.Masks(
                free=offer.free, available=offer.available, numa=group.numa,
                numa_nodes=group.numa_nodes, switches=group.switches,
                alone=group.alone)
            for group in host.groups if group.provider_uuid in providers
            for offer in group.types if offer.resource_class in asked}
        return decide(masks)


class SchedulerViewCache:
    """Cache of the newest view. Thread-safe."""

    def __init__(self, api: conductor_api.ConductorAPI) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._view = SchedulerView()

    def refresh(self) -> SchedulerView:
        """Fetch the changes in one call and return the new view.

        :raises ConductorUnavailable: the view may be out of date
        """
        with self._lock:
            context = gpgpu_context.admin()
            changes = self._api.changes_since(
                context, self._view.generation)
            if changes.generation < self._view.generation:
                # The conductor's database was set up anew.
                self._view = SchedulerView()
                changes = self._api.changes_since(context, 0)
            self._view = self._view.updated(changes)
            return self._view
