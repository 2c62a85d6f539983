# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage why-not``: where an instance fits, and why not elsewhere.

The conductor says what the plugin's filter and claim would, Placement and
Nova are asked for the rest. Nothing is changed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import openstack
from cliff import lister
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import candidates
from gpgpu_plugin.cmd import cloud
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import errors
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.cmd import server_name
from gpgpu_plugin.cmd import why_not_cloud
from gpgpu_plugin.cmd import why_not_rank
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.why_not import change as change_mod
from gpgpu_plugin.domain.why_not import host as host_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.objects import why_not as objects

_Kind = change_mod.ChangeKind
_COLUMNS = ('host', 'fits', 'rank', 'score', 'by', 'reason', 'detail')
_NO_GROUP = str(request_mod.Reason.NO_SUCH_GROUP)

PLUGIN, PLACEMENT, NOVA, CHANGE = 'gpgpu', 'placement', 'nova', 'change'
"""Values of ``By``. CHANGE marks a change after which the instance fits."""

UNKNOWN = 'unknown'
"""Reason if somebody could not be asked."""

_NOT_CHANGED = (host_mod.HOST_SILENT, host_mod.HOST_DISABLED)
_EXAMINED = frozenset({
    'ComputeFilter', 'GpuFilter', 'GpuNUMATopologyFilter',
    'NUMATopologyFilter'})
_NOVA_FILTERS = (
    'ComputeCapabilitiesFilter', 'ImagePropertiesFilter',
    'ServerGroupAntiAffinityFilter', 'ServerGroupAffinityFilter')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the output: one reason of a host, or one change.

    :ivar fits: whether the host takes the instance; None: somebody who could
        refuse it was not asked
    :ivar rank: a why_not_rank.Rank.number, as is ``score``
    """

    host: str
    fits: bool | None
    rank: int | None = None
    score: float | None = None
    by: str | None = None
    reason: str | None = None
    detail: str | None = None


_Findings = tuple[host_mod.Finding, ...]


class Examination:
    """Examination of hosts for one instance.

    :param source: its services are asked at the first host
    """

    def __init__(self, source: why_not_cloud.Cloud,
                 asked: why_not_cloud.Asked) -> None:
        self._source = source
        self._asked = asked
        # Those that were missing from the one long answer of Placement.
        self._alone: dict[str, candidates.Candidate] = {}

    @functools.cached_property
    def _candidates(self) -> candidates.Candidates:
        return candidates.read(self._source, self._asked.needs)

    @functools.cached_property
    def _services(self) -> Mapping[str, _Findings] | _Findings:
        """Return reasons of Nova by host, or why they are unknown."""
        try:
            return self._source.nova_findings(self._asked.needs)
        except cloud.ERRORS as exc:
            return _unknown(exc)

    def flavors(self) -> Sequence[scheduling_obj.CountedRequests]:
        """Return the requests that the cloud's flavors make."""
        return why_not_rank.flavors(self._source)

    def rows(self, answer: objects.HostAnswer) -> list[Row]:
        """Return the lines of one host."""
        found = [*((PLUGIN, one) for one in answer.findings),
                 *((PLACEMENT, one) for one in self._placement(answer)),
                 *((NOVA, one) for one in self._nova(answer.host))]
        fits = not found
        if all(one.reason == UNKNOWN for _, one in found) and found:
            return self._lines(answer, None, found)
        return self._lines(answer, fits, found)

    def _besides(self, found: Sequence[tuple[str, host_mod.Finding]]) -> str:
        """Return what a change of the plugin's devices leaves."""
        ours = {demand.resource_class
                for demand in self._asked.request.demands}
        left = dict.fromkeys(
            one.reason for by, one in found
            if one.reason in _NOT_CHANGED or (
                by != PLUGIN and one.reason != UNKNOWN
                and one.resource_class not in ours))
        return f'; not enough alone: {", ".join(left)}' if left else ''

    def fitting(self, answers: Iterable[objects.HostAnswer],
                rows: Iterable[Row]) -> dict[str, candidates.Candidate]:
        """Return the candidates on hosts that fit, by the host's name."""
        fit = {row.host for row in rows if row.fits}
        found = ((answer.host, self._candidate(answer.node_uuid))
                 for answer in answers if answer.host in fit)
        return {host: candidate for host, candidate in found
                if candidate is not None}

    def _lines(self, answer: objects.HostAnswer, fits: bool | None,
               found: Sequence[tuple[str, host_mod.Finding]]) -> list[Row]:
        if not found:
            return [Row(host=answer.host, fits=fits)]
        return [
            *(Row(host=answer.host, fits=fits, by=by, reason=one.reason,
                  detail=one.detail) for by, one in found),
            *(Row(host=answer.host, fits=fits, by=CHANGE,
                  reason='+'.join(dict.fromkeys(
                      change.kind for change in proposal)),
                  detail=in_words(answer.host, proposal, self._asked.request)
                  + self._besides(found))
              for proposal in answer.proposals)]

    def _placement(self, answer: objects.HostAnswer) -> _Findings:
        try:
            if self._candidate(answer.node_uuid) is not None:
                return ()
            return self._source.placement_findings(
                answer.node_uuid, self._asked.needs)
        except cloud.ERRORS as exc:
            return _unknown(exc)

    def _candidate(self, node: str) -> candidates.Candidate | None:
        """Return the candidate on a host.

        :raises cloud.ERRORS: Placement cannot be asked
        """
        found = self._candidates.of.get(node) or self._alone.get(node)
        if found is None and not self._candidates.complete:
            found = candidates.read(
                self._source, self._asked.needs, node).of.get(node)
            if found is not None:
                self._alone[node] = found
        return found

    def _nova(self, host: str) -> _Findings:
        if isinstance(self._services, tuple):
            return self._services
        return self._services.get(host, (host_mod.Finding(
            reason=why_not_cloud.NO_SERVICE,
            detail='Nova has no nova-compute of this host'),))


def _unknown(exc: Exception) -> _Findings:
    return (host_mod.Finding(
        reason=UNKNOWN, detail=f'cannot be asked: {errors.first_line(exc)}'),)


_WORDS: Mapping[_Kind, Callable[[str, str], str]] = {
    _Kind.WAIT: lambda host, names: (
        f'wait until the cleaning of {names} has passed'),
    _Kind.UNDRAIN: lambda host, names: (
        f'undrain the host: gpgpu-manage host undrain {host}'),
    _Kind.ENABLE_TYPE: lambda host, names: (
        f'enable {names}: gpgpu-manage vgpu-type enable '
        f'{names.replace("/", " ")} --host {host}'),
    _Kind.ENABLE: lambda host, names: (
        f'enable {names}: gpgpu-manage device set {host} {names} --enable'),
    _Kind.REPAIR: lambda host, names: (
        f'repair {names} (quarantined): gpgpu-manage device show '
        f'{host} {names} says why, and device release has it cleaned again'),
    _Kind.MOVE: lambda host, names: (
        f'move instance {names} to another host, and wait for the cleaning'),
}
_ONE_BY_ONE = frozenset({_Kind.ENABLE_TYPE, _Kind.ENABLE, _Kind.REPAIR})
"""Kinds with a command for each of their subjects."""


def in_words(host: str, proposal: Iterable[objects.ChangeInfo],
             request: request_mod.Request) -> str:
    """Return a proposal as a sentence without a full stop."""
    # Several vGPUs of one GPU have its address.
    names: dict[_Kind, dict[str, None]] = {}
    for change in proposal:
        names.setdefault(_Kind(change.kind), {})[
            change.address or change.subject] = None
    return '; '.join(
        _words(host, kind, ', '.join(some), request)
        for kind, subjects in names.items()
        for some in (([name] for name in subjects) if kind in _ONE_BY_ONE
                     else [subjects]))


def _words(host: str, kind: _Kind, names: str,
           request: request_mod.Request) -> str:
    if kind is _Kind.TOPOLOGY:
        return (f'request gpgpu:topology={names} instead of '
                f'{request.topology}')
    if kind is _Kind.FEWER:
        [demand] = request.demands
        return (f'request {names} of {demand.resource_class} instead of '
                f'{demand.count}')
    return _WORDS[kind](host, names)


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


class WhyNot(reach.Command, lister.Lister):
    """Show on which hosts an instance fits, and all reasons why not elsewhere.

    A host that does not fit has a line for each reason, and one for each
    change after which the plugin would accept the instance, the cheapest
    first. A host that fits has its rank among those that do, and its score,
    by GpuWeigher's code and the weight_policy of this command's own
    configuration. Hosts without a GPU of the requested kind are left out
    unless --host names them.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument('--flavor', help='name or ID of the flavor')
        what.add_argument(
            '--server', help=f'{server_name.HELP}, whose flavor and image '
                             f'are examined')
        parser.add_argument('--host', help='examine only this host')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        api, context = self.api, gpgpu_context.admin()
        # What is wrong here is found before Nova is asked.
        if parsed_args.host:
            api.host_show(context, parsed_args.host)
        else:
            api.host_list(context, limit=1)
        connect = self.manage.connect or openstack.connect
        source = why_not_cloud.Cloud(functools.partial(
            connect, cloud=self.manage.options.os_cloud))
        asked = self._asked(source, parsed_args)
        examination = Examination(source, asked)
        answers = api.why_not(
            context, asked.request, asked.guest_nodes, parsed_args.host)
        shown = [answer for answer in answers
                 if parsed_args.host or not _has_no_group(answer)]
        rows = [row for answer in shown for row in examination.rows(answer)]
        self._remark(asked, len(answers), len(shown), rows)
        if any(row.fits for row in rows):
            rows = self._ranked(examination, asked, answers, rows,
                                only_one=bool(parsed_args.host))
        return columns.rows(rows, _COLUMNS)

    def _ranked(self, examination: Examination, asked: why_not_cloud.Asked,
                answers: Sequence[objects.HostAnswer],
                rows: Sequence[Row], *, only_one: bool) -> list[Row]:
        """Return the rows with the ranks of hosts that fit.

        If only one host is examined, its rank is among all that fit.
        """
        api, policy = self.api, self.rpc_conf.gpgpu.weight_policy
        examined = list(rows)
        known = {answer.host for answer in answers}
        others = [answer for answer in api.why_not(
            gpgpu_context.admin(), asked.request, asked.guest_nodes)
            if answer.host not in known] if only_one else []
        examined += [row for answer in others if not answer.findings
                     for row in examination.rows(answer)]
        fitting = examination.fitting((*answers, *others), examined)
        view = why_not_rank.view(api)
        flavors = examination.flavors()
        ranks = why_not_rank.ranks(
            view, policy, asked, fitting.values(), flavors)
        self.note(why_not_rank.remark(view, policy, len(fitting), flavors))
        return [_with_rank(row, ranks.get(fitting[row.host].uuid))
                if row.host in fitting else row for row in rows]

    def _remark(self, asked: why_not_cloud.Asked, hosts: int, shown: int,
                rows: Sequence[Row]) -> None:
        for remark in asked.remarks:
            self.note(remark)
        fitting = len({row.host for row in rows if row.fits})
        self.note(f'fits on {fitting} of {shown} hosts; {hosts - shown} more '
                  f'have no GPU of the requested kind')
        names = ', '.join(not_examined(self.rpc_conf)) or 'none'
        self.note(f'filters of Nova that were not examined: {names}')

    def _asked(self, source: why_not_cloud.Cloud,
               parsed_args: argparse.Namespace) -> why_not_cloud.Asked:
        try:
            if parsed_args.flavor:
                return source.asked_by_flavor(parsed_args.flavor)
            return source.asked_by_server(
                server_name.uuid_of(self, parsed_args.server))
        except cloud.ERRORS as exc:
            raise exception.Conflict(
                kind='flavor' if parsed_args.flavor else 'server',
                name=parsed_args.flavor or parsed_args.server,
                reason=f'Nova cannot be asked for it (clouds.yaml, cloud '
                       f'{self.manage.options.os_cloud or "of OS_CLOUD"}): '
                       f'{errors.first_line(exc)}; name the cloud of an '
                       f'administrator with --os-cloud before the command',
            ) from exc


def _with_rank(row: Row, rank: why_not_rank.Rank | None) -> Row:
    return row if rank is None else dataclasses.replace(
        row, rank=rank.number, score=rank.score)


def _has_no_group(answer: objects.HostAnswer) -> bool:
    return any(found.reason == _NO_GROUP for found in answer.findings)
