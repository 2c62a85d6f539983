# SPDX-License-Identifier: Apache-2.0
"""GpuWeigher ranks the hosts that passed GpuFilter by the plugin's policy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence

import nova.conf
from nova.scheduler import utils
from nova.scheduler import weights

from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.scheduler_filters import request_view
from gpgpu_plugin.scheduler_filters import scheduler_view
from gpgpu_plugin.scheduler_weights import flavors
from gpgpu_plugin.scheduler_weights import ranking

CONF = nova.conf.CONF


class GpuWeigher(weights.BaseHostWeigher):
    """Weigher that prefers the hosts that are of least use to later requests.

    Requests without GPUs prefer the hosts with the fewest special
    capabilities. Whatever GpuFilter did not decide about, such as a rebuild
    or a forced host, has the same weight on all hosts.

    :param read_flavors: returns one request of each kind that flavors make;
        they are the mix until one is known, and part of it afterwards
    """

    minval = 0.0
    maxval = ranking.TOP

    def __init__(self, read_flavors: Callable[
            [],
            Sequence[scheduling_obj.CountedRequests]] = flavors.read,
            ) -> None:
        super().__init__()
        conf_gpgpu.register_opts(CONF)
        self._flavors = read_flavors()
        self._lock = threading.Lock()
        self._ranking: ranking.Ranking | None = None

    def weight_multiplier(self, host_state: nova_types.HostState) -> float:
        """Return the multiplier, which a host's aggregate can change."""
        multiplier: float = utils.get_weight_multiplier(
            host_state, 'gpgpu_weight_multiplier',
            CONF.gpgpu_scheduler.weight_multiplier)
        return multiplier

    def _weigh_object(self, host_state: nova_types.HostState,
                      weight_properties: nova_types.RequestSpec) -> float:
        """Return the rank of a host that has no competitor."""
        return 0.0

    def weigh_objects(self,
                      weighed_obj_list: Sequence[nova_types.WeighedHost],
                      weight_properties: nova_types.RequestSpec,
                      ) -> list[float]:
        """Return the ranks of all hosts."""
        decision = request_view.decision_of(weight_properties)
        if decision is None or not weighed_obj_list:
            return [0.0] * len(weighed_obj_list)
        if not decision.request:
            gpu_hosts = decision.view.hosts if decision.view else {}
            return ranking.capability_ranks(
                (weighed.obj for weighed in weighed_obj_list), gpu_hosts)
        if decision.view is None:
            return [0.0] * len(weighed_obj_list)
        with self._lock:
            return self._ranks(
                self._of(decision.view), weighed_obj_list, weight_properties,
                decision)

    @staticmethod
    def _ranks(hosts: ranking.Ranking,
               weighed: Sequence[nova_types.WeighedHost],
               spec_obj: nova_types.RequestSpec,
               decision: request_view.FilterDecision) -> list[float]:
        """Return the ranks of all hosts, and expect Nova to choose the best.
        """
        flavor, instance = spec_obj.flavor, spec_obj.instance_uuid
        pending = hosts.view.pending
        pending.withdraw(instance)
        ranks = ranking.ranks(hosts.scores(
            [host.obj for host in weighed],
            (decision.request, flavor.vcpus, flavor.memory_mb,
             decision.guest_nodes)))
        # Weighers that came before this one decide among equal ranks.
        rank, _, best = max(
            (rank, host.weight, -number)
            for number, (rank, host) in enumerate(
                zip(ranks, weighed, strict=True)))
        if rank:
            pending.expect(weighed[-best].obj.uuid, instance,
                           decision.request)
        return ranks

    def _of(self, view: scheduler_view.SchedulerView) -> ranking.Ranking:
        """Return the ranking of a view, which stays until it is read anew."""
        if self._ranking is None or self._ranking.view is not view:
            self._ranking = ranking.Ranking(
                view, CONF.gpgpu_scheduler.weight_policy, self._flavors)
        return self._ranking
