# SPDX-License-Identifier: Apache-2.0
"""Ranks of the hosts that an instance fits on, by GpuWeigher's own code.

The free vCPUs and RAM, which the weigher gets from Nova, come from Placement.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.cmd import candidates as candidates_mod
from gpgpu_plugin.cmd import cloud as cloud_mod
from gpgpu_plugin.cmd import why_not_cloud
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.rpc import conductor_api
from gpgpu_plugin.scheduler_filters import scheduler_view
from gpgpu_plugin.scheduler_weights import catalogue
from gpgpu_plugin.scheduler_weights import ranking

if typing.TYPE_CHECKING:
    from gpgpu_plugin.compute import nova_types

NOT_INCLUDED = (
    'not included: the other weighers of Nova, multipliers, also those of '
    'aggregates, choices of schedulers that were not claimed yet, and what '
    'they know of hosts that this request does not fit on')

_DIGITS = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rank:
    """Rank of a host.

    :ivar number: 1 for the best host; hosts that are equal share it
    :ivar score: GPUs that the choice saves for the requests to come, by the
        policy; more is better
    """

    number: int
    score: float


def view(api: conductor_api.ConductorAPI) -> scheduler_view.SchedulerView:
    """Return the view that a scheduler which starts now would have."""
    found = scheduler_view.SchedulerView()
    marker: int | None = None
    while True:
        page = api.scheduler_view(gpgpu_context.admin(), marker)
        found.update(scheduling_obj.unpack(page.packed))
        found.mix = page.mix
        marker = page.marker
        if marker is None:
            return found


def flavors(source: why_not_cloud.Cloud,
            ) -> Sequence[scheduling_obj.CountedRequests]:
    """Return the requests that flavors make; empty: they cannot be read.

    nova-scheduler does without them, too.
    """
    try:
        return source.flavor_requests(catalogue.MOST_FLAVORS)
    except cloud_mod.ERRORS:
        return ()


def ranks(seen: scheduler_view.SchedulerView, policy: str,
          asked: why_not_cloud.Asked,
          fitting: Iterable[candidates_mod.Candidate],
          possible: Sequence[scheduling_obj.CountedRequests],
          ) -> Mapping[str, Rank]:
    """Return the ranks of hosts that fit, by the UUID of the node.

    :param policy: ``[gpgpu] weight_policy``
    :param possible: see ``flavors``
    """
    hosts = list(fitting)
    kind = (seen.own_demands(asked.request), asked.vcpus, asked.ram,
            asked.guest_nodes)
    weigher = ranking.Ranking(seen, policy, possible)
    scores: list[float] = []
    # One decision works out no more than NEW states.
    for _ in range(0, len(hosts) + 1, ranking.NEW):
        scores = [round(score, _DIGITS) for score in weigher.scores(
            typing.cast('list[nova_types.HostState]', hosts), kind)]
    best = sorted(set(scores), reverse=True)
    return {host.uuid: Rank(number=best.index(score) + 1, score=score)
            for host, score in zip(hosts, scores, strict=True)}


def remark(seen: scheduler_view.SchedulerView, policy: str, fitting: int,
           possible: Sequence[scheduling_obj.CountedRequests]) -> str:
    """Return how the ranks came about, for the reader."""
    return (f'rank among {fitting} hosts that fit, by policy {policy}, for '
            f'{_mix(seen, possible)}; {NOT_INCLUDED}')


def _mix(seen: scheduler_view.SchedulerView,
         possible: Sequence[scheduling_obj.CountedRequests]) -> str:
    if seen.mix is not None and _has_gpus(seen, seen.mix.requests):
        return f'the {len(seen.mix.requests)} most frequent kinds of requests'
    if _has_gpus(seen, possible):
        return 'the cloud\'s flavors alike, since too few requests arrived yet'
    return ('equally many requests for one, two, four and eight GPUs of each '
            'kind, since too few requests have arrived')


def _has_gpus(seen: scheduler_view.SchedulerView,
              counted: Iterable[scheduling_obj.CountedRequests]) -> bool:
    return any(seen.has_class(kind.resource_class) for kind, _ in counted)
