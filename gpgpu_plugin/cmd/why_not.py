# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage why-not``: where an instance fits, and why not elsewhere.

The conductor says what the plugin's filter and claim would, Placement and
Nova are asked for the rest. Hosts that fit are ranked by GpuWeigher's own
code; the free vCPUs and RAM, which the weigher gets from Nova, come from
Placement. Nothing is changed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import typing
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from cliff import lister
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import cloud
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.cmd import names as names_cmd
from gpgpu_plugin.cmd import why_not_cloud
from gpgpu_plugin.domain import why_not
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import forecast
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.scheduler_filters import scheduler_view
from gpgpu_plugin.scheduler_weights import catalogue
from gpgpu_plugin.scheduler_weights import ranking

if typing.TYPE_CHECKING:
    from gpgpu_plugin.compute import nova_types

_COLUMNS = ('host', 'fits', 'rank', 'score', 'by', 'reason', 'detail')
_NO_GROUP = str(request_mod.Reason.NO_SUCH_GROUP)

PLUGIN, PLACEMENT, NOVA, CHANGE = 'gpgpu', 'placement', 'nova', 'change'
"""Values of ``By``. CHANGE marks a change that removes reasons."""

UNKNOWN = 'unknown'
"""Reason if somebody could not be asked."""

_EXAMINED = frozenset({
    'ComputeFilter', 'GpuFilter', 'GpuNUMATopologyFilter',
    'NUMATopologyFilter'})
_NOVA_FILTERS = (
    'ComputeCapabilitiesFilter', 'ImagePropertiesFilter',
    'ServerGroupAntiAffinityFilter', 'ServerGroupAffinityFilter')

_NOT_RANKED = (
    'not included: the other weighers of Nova, multipliers, also those of '
    'aggregates, choices of schedulers that were not claimed yet, and what '
    'they know of hosts that this request does not fit on')

_DIGITS = 6

_Findings = tuple[why_not.Finding, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhyNotRow:
    """A line of the output: one reason of a host, or one change.

    :ivar fits: whether the host takes the instance; None: somebody who could
        refuse it was not asked
    :ivar rank: 1 for the best host that fits; hosts that are equal share it
    :ivar score: GPUs that the choice saves for the requests to come, by the
        policy; more is better
    """

    host: str
    fits: bool | None
    rank: int | None = None
    score: float | None = None
    by: str | None = None
    reason: str | None = None
    detail: str | None = None


class WhyNot(why_not_cloud.WhyNotCommand, lister.Lister):
    """Show on which hosts an instance fits, and all reasons why not elsewhere.

    A host that does not fit has a line for each reason, and one for each
    change that removes some of them, with those that are left. A host that
    fits has its rank among those that do, and its score, by GpuWeigher's code
    and the weight_policy of this command's own configuration. Hosts without a
    GPU of the requested kind are left out unless --host names them.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument('--flavor', help='name or ID of the flavor')
        what.add_argument(
            '--server', help=f'{names_cmd.HELP}, whose flavor and image '
                             f'are examined')
        parser.add_argument('--host', help='examine only this host')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        api, context = self.api, gpgpu_context.admin()
        # What is wrong here is found before Nova is asked.
        if parsed_args.host:
            api.host_show(context, parsed_args.host)
        else:
            api.host_list(context, limit=1)
        with self.asking('flavor' if parsed_args.flavor else 'server',
                         parsed_args.flavor or parsed_args.server):
            asked = (
                self.source.asked_by_flavor(parsed_args.flavor)
                if parsed_args.flavor else self.source.asked_by_server(
                    names_cmd.server_uuid_of(self, parsed_args.server)))
        examination = _Examination(self.source, asked)
        answers = api.why_not(
            context, asked.request, asked.guest_nodes, parsed_args.host)
        shown = [answer for answer in answers
                 if parsed_args.host or not _has_no_group(answer)]
        rows = [row for answer in shown for row in examination.rows(answer)]
        self._remark(asked, len(answers), len(shown), rows)
        if any(row.fits for row in rows):
            # The rank of one host is among all that fit.
            others = api.why_not(
                context, asked.request,
                asked.guest_nodes) if parsed_args.host else ()
            rows = self._ranked(examination, asked, rows, [
                *answers, *(answer for answer in others
                            if answer.host != parsed_args.host)])
        return listing.rows(rows, _COLUMNS)

    def _ranked(self, examination: _Examination, asked: why_not_cloud.Asked,
                rows: Sequence[WhyNotRow],
                answers: Iterable[forecast.HostAnswer]) -> list[WhyNotRow]:
        """Return the rows with the ranks of hosts that fit."""
        policy = self.rpc_conf.gpgpu_scheduler.weight_policy
        fitting = examination.fitting(answers)
        view = _view(self.api)
        flavors = examination.flavors()
        scores = _scores(view, policy, asked, fitting, flavors)
        best = sorted(set(scores.values()), reverse=True)
        if len(fitting) > 1:
            self.detail(
                f'rank among {len(fitting)} hosts that fit, by policy '
                f'{policy}, for {_mix(view, flavors)}; {_NOT_RANKED}')
        return [row if row.host not in scores else dataclasses.replace(
            row, score=scores[row.host],
            rank=best.index(scores[row.host]) + 1) for row in rows]

    def _remark(self, asked: why_not_cloud.Asked, hosts: int, shown: int,
                rows: Sequence[WhyNotRow]) -> None:
        for remark in asked.remarks:
            self.note(remark)
        fitting = len({row.host for row in rows if row.fits})
        self.note(f'fits on {fitting} of {shown} hosts; {hosts - shown} more '
                  f'have no GPU of the requested kind')
        names = ', '.join(not_examined(self.rpc_conf)) or 'none'
        self.detail(f'filters of Nova that were not examined: {names}')


def _has_no_group(answer: forecast.HostAnswer) -> bool:
    return any(found.reason == _NO_GROUP for found in answer.findings)


def not_examined(conf: cfg.ConfigOpts) -> list[str]:
    """Return the names of Nova's filters that nobody examined here.

    :param conf: where ``[filter_scheduler] enabled_filters`` may be; else
        Nova's own list counts
    """
    try:
        enabled: Sequence[str] = conf.filter_scheduler.enabled_filters
    except cfg.NoSuchOptError:
        conf.register_opt(
            cfg.ListOpt('enabled_filters', default=list(_NOVA_FILTERS)),
            group='filter_scheduler')
        enabled = conf.filter_scheduler.enabled_filters
    return [name for name in enabled if name not in _EXAMINED]


# -- hosts ------------------------------------------------------------------

class _Examination:
    """Examination of hosts for one instance.

    :param source: its services are asked at the first host
    """

    def __init__(self, source: why_not_cloud.WhyNotCloud,
                 asked: why_not_cloud.Asked) -> None:
        self._source = source
        self._asked = asked
        # Those that were missing from the one long answer of Placement.
        self._alone: dict[str, why_not_cloud.Candidate] = {}

    @functools.cached_property
    def _candidates(self) -> why_not_cloud.Candidates:
        return self._source.candidates(self._asked.needs)

    @functools.cached_property
    def _services(self) -> Mapping[str, _Findings] | _Findings:
        """Return reasons of Nova by host, or why they are unknown."""
        try:
            return self._source.nova_findings(self._asked.needs)
        except cloud.ERRORS as exc:
            return _unknown(exc)

    def flavors(self) -> Sequence[scheduling_obj.CountedRequests]:
        """Return the requests that flavors make; empty: they cannot be read.

        nova-scheduler does without them, too.
        """
        try:
            return self._source.flavor_requests(catalogue.MAX_FLAVORS)
        except cloud.ERRORS:
            return ()

    def rows(self, answer: forecast.HostAnswer) -> list[WhyNotRow]:
        """Return the lines of one host."""
        found = [*((PLUGIN, one) for one in answer.findings),
                 *((PLACEMENT, one) for one in self._placement(answer)),
                 *((NOVA, one) for one in self._nova(answer.host))]
        if not found:
            return [WhyNotRow(host=answer.host, fits=True)]
        fits = None if all(
            one.reason == UNKNOWN for _, one in found) else False
        ours = {demand.resource_class
                for demand in self._asked.request.demands}
        # Placement has too few GPUs for the same reason as the plugin.
        besides = [one.reason for by, one in found if by != PLUGIN
                   and one.reason != UNKNOWN
                   and one.resource_class not in ours]
        lines = [(by, one.reason, one.detail) for by, one in found]
        for one in answer.advice:
            left = ', '.join(dict.fromkeys([*one.left, *besides]))
            lines.append((CHANGE, one.kind, one.detail + (
                f'; not enough alone: {left}' if left else '')))
        return [WhyNotRow(host=answer.host, fits=fits, by=by, reason=reason,
                          detail=detail) for by, reason, detail in lines]

    def fitting(self, answers: Iterable[forecast.HostAnswer],
                ) -> dict[str, why_not_cloud.Candidate]:
        """Return the candidates on hosts that fit, by the host's name."""
        found: dict[str, why_not_cloud.Candidate] = {}
        for answer in answers:
            if not answer.findings and not self._nova(answer.host):
                with contextlib.suppress(*cloud.ERRORS):
                    candidate = self._candidate(answer.node_uuid)
                    if candidate is not None:
                        found[answer.host] = candidate
        return found

    def _placement(self, answer: forecast.HostAnswer) -> _Findings:
        try:
            if self._candidate(answer.node_uuid) is not None:
                return ()
            return self._source.placement_findings(
                answer.node_uuid, self._asked.needs)
        except cloud.ERRORS as exc:
            return _unknown(exc)

    def _candidate(self, node: str) -> why_not_cloud.Candidate | None:
        """Return the candidate on a host.

        :raises cloud.ERRORS: Placement cannot be asked
        """
        found = self._candidates.of.get(node) or self._alone.get(node)
        if found is None and not self._candidates.complete:
            found = self._source.candidates(
                self._asked.needs, node).of.get(node)
            if found is not None:
                self._alone[node] = found
        return found

    def _nova(self, host: str) -> _Findings:
        if isinstance(self._services, tuple):
            return self._services
        return self._services.get(host, (why_not.Finding(
            reason=why_not_cloud.NO_SERVICE,
            detail='Nova has no nova-compute of this host'),))


def _unknown(exc: Exception) -> _Findings:
    return (why_not.Finding(
        reason=UNKNOWN, detail=f'cannot be asked: {base.first_line(exc)}'),)


# -- ranks ------------------------------------------------------------------

def _view(api: conductor_client.ConductorAPI) -> scheduler_view.SchedulerView:
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


def _scores(seen: scheduler_view.SchedulerView, policy: str,
            asked: why_not_cloud.Asked,
            fitting: Mapping[str, why_not_cloud.Candidate],
            possible: Sequence[scheduling_obj.CountedRequests],
            ) -> dict[str, float]:
    """Return the scores of hosts that fit, by name.

    :param policy: ``[gpgpu_scheduler] weight_policy``
    :param possible: the requests that flavors make
    """
    kind = (seen.own_demands(asked.request), asked.vcpus, asked.ram,
            asked.guest_nodes)
    weigher = ranking.Ranking(seen, policy, possible)
    scores: list[float] = []
    # One decision works out no more than NEW states.
    for _ in range(0, len(fitting) + 1, ranking.NEW):
        scores = weigher.scores(typing.cast(
            'list[nova_types.HostState]', list(fitting.values())), kind)
    return {host: round(score, _DIGITS)
            for host, score in zip(fitting, scores, strict=True)}


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
