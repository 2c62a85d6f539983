# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage what-if``: what would happen, without doing it."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from cliff import lister

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.cmd import why_not
from gpgpu_plugin.cmd import why_not_cloud
from gpgpu_plugin.domain import what_if
from gpgpu_plugin.gpu_map import text
from gpgpu_plugin.objects import forecast
from gpgpu_plugin.rpc import conductor_contract

STAY = 1
"""Exit code if not all instances can leave."""

FITS_NOWHERE = 'fits_nowhere'
NO_SERVER = 'no_server'
ELSEWHERE = 'server_elsewhere'
EXACT = 'exact_devices'
NOT_REQUESTED = 'allocation_not_requested'
STATUS = 'server_status'
"""Reasons for which an instance has no target, or cannot go there as it is."""

_BLOCKING = frozenset({FITS_NOWHERE, EXACT, NOT_REQUESTED, STATUS})
_MIGRATED = ('ACTIVE', 'SHUTOFF')
_MOVED = 'VERIFY_RESIZE'
_COLUMNS = ('what', 'name', 'resources', 'host', 'target', 'before', 'after',
            'reason', 'detail')

INSTANCE, CAPACITY = 'instance', 'capacity'
"""Values of ``What``. CAPACITY: units that all hosts have left for new
instances, before and after."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoveRow:
    """A line of the output.

    :ivar name: UUID of an instance, or VARIANT/TYPE
    :ivar resources: devices that the instance leaves, by resource class
    :ivar host: which the instance leaves
    """

    what: str
    name: str
    resources: dict[str, int] | None = None
    host: str | None = None
    target: str | None = None
    before: int | None = None
    after: int | None = None
    reason: str | None = None
    detail: str | None = None


class WhatIfDrain(why_not_cloud.WhyNotCommand, lister.Lister):
    """Show where the instances of hosts would go if these were drained.

    Nothing is changed. One order is tried, the largest instances first, and
    they are listed in it: each fits on its target after those before it have
    moved. If one fits nowhere, another order may fit more. Exit code: 0 all
    can leave; 1 not all can. It reads Placement and Nova as the administrator
    of --os-cloud.
    """

    _code = 0

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('host', nargs='+',
                            help='name of the nova-compute service')
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; return its exit code."""
        return super().run(parsed_args) or self._code

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        context = gpgpu_context.admin()
        hosts = list(dict.fromkeys(parsed_args.host))
        leaving = self.api.what_if_leaving(context, hosts)
        with self.asking('host', ', '.join(hosts)):
            servers = [_examine(self.source, one) for one in leaving]
            question, is_cut = _question(self.source, hosts, servers)
        answer = self.api.what_if_drain(context, question)
        rows = list(_rows(servers, answer))
        self._remark(hosts, servers, rows, answer.examined)
        if is_cut:
            self.note('Placement has more candidates than were examined')
        return listing.rows(rows, _COLUMNS)

    def _remark(self, hosts: Sequence[str], servers: Sequence[_Server],
                rows: Iterable[MoveRow], examined: int) -> None:
        stay = {row.name: row.reason for row in rows
                if row.what == INSTANCE and row.reason in _BLOCKING}
        self._code = STAY if stay else 0
        instances = len({one.leaving.instance_uuid for one in servers})
        self.note(
            f'{instances - len(stay)} of {text.counted(instances, "instance")}'
            f' can leave {", ".join(hosts)}, one after the other in this order'
            f' ({text.counted(examined, "host")} examined)')
        if FITS_NOWHERE in stay.values():
            self.note('only this order was tried, the largest instances '
                      'first; another one may fit more')
        numa = [one.leaving.instance_uuid for one in servers
                if one.has_numa_topology]
        if numa:
            self.note(
                'these servers have a NUMA topology, but only the hosts know '
                'which of their NUMA nodes have the vCPUs and RAM for it; '
                'they are planned as if all had, so a target may refuse them, '
                'and servers after them may fit on other hosts: '
                + ', '.join(dict.fromkeys(numa)))
        for remark in dict.fromkeys(
                remark for one in servers if one.asked is not None
                for remark in one.asked.remarks[1:]):
            self.note(remark)
        names = ', '.join(why_not.not_examined(self.rpc_conf)) or 'none'
        self.detail(f'filters of Nova that were not examined: {names}')


# -- servers ----------------------------------------------------------------

@dataclasses.dataclass(frozen=True, kw_only=True)
class _Server:
    """A server that has devices on a host.

    :ivar asked: what it requests; None: no host is sought for it
    :ivar reason: see above; None: Nova can migrate it
    :ivar detail: what that means, or what comes before the migration
    """

    leaving: forecast.Leaving
    asked: why_not_cloud.Asked | None = None
    reason: str | None = None
    detail: str = ''

    @property
    def has_numa_topology(self) -> bool:
        """Return whether a plan depends on NUMA nodes of its target."""
        return self.asked is not None and self.asked.guest_nodes is not None


def _examine(source: why_not_cloud.WhyNotCloud,
             leaving: forecast.Leaving) -> _Server:
    """Return what Nova can do with an instance that leaves.

    :raises cloud.ERRORS: Nova cannot be asked
    :raises Invalid: its flavor and image are no request
    """
    server = source.find_server(leaving.instance_uuid)
    found = functools.partial(_Server, leaving=leaving)
    if server is None:
        return found(reason=NO_SERVER, detail=(
            'Nova has no such server; nova-compute of the host releases its '
            'devices, or "gpgpu-manage assignment end" does'))
    host, status = server.get('OS-EXT-SRV-ATTR:host'), server['status']
    if host != leaving.host:
        return found(reason=ELSEWHERE, detail=(
            f'the server is {status} on {host}; its devices here are released '
            f'when its resize or migration is confirmed, or when nova-compute '
            f'is back after an evacuation'))
    if leaving.exact:
        return found(reason=EXACT, detail=(
            'the server named its devices in a scheduler hint, so it cannot '
            'be moved; shelve or delete it'))
    asked = source.asked_of(server)
    if not leaving.resources.keys() & {
            demand.resource_class for demand in asked.request.demands}:
        return found(reason=NOT_REQUESTED, detail=(
            'its flavor requests none of the GPUs that it has'))
    if status == _MOVED:
        return found(asked=asked, detail='confirm or revert its resize first')
    if status in _MIGRATED:
        return found(asked=asked)
    return found(asked=asked, reason=STATUS, detail=(
        f'the server is {status}; Nova migrates servers that are '
        f'{" or ".join(_MIGRATED)}'))


def _question(source: why_not_cloud.WhyNotCloud, hosts: Sequence[str],
              servers: Iterable[_Server],
              ) -> tuple[forecast.DrainQuestion, bool]:
    """Return the question about servers, those of a kind together.

    It comes with whether Placement has more candidates than are asked about.

    :raises cloud.ERRORS: Nova or Placement cannot be asked
    """
    kinds: list[why_not_cloud.Asked] = []
    leaving: dict[str, int] = {}
    for server in servers:
        if server.asked is not None:
            asked = dataclasses.replace(server.asked, remarks=())
            if asked not in kinds:
                kinds.append(asked)
            leaving[server.leaving.instance_uuid] = kinds.index(asked)
    found = [source.candidates(asked.needs) for asked in kinds]
    most = conductor_contract.OPTIONS_AT_ONCE // max(1, len(kinds))
    built = tuple(_kind(source, asked, answer, most)
                  for asked, answer in zip(kinds, found, strict=True))
    providers = {provider for kind in built
                 for options in kind.options.values()
                 for option in options for provider in option}
    return forecast.DrainQuestion(
        hosts=tuple(hosts), kinds=built, leaving=leaving, free={
            provider: dict(amounts) for answer in found
            for provider, amounts in answer.free.items()
            if provider in providers}), any(
        not answer.complete or len(answer.of) > len(kind.options)
        for answer, kind in zip(found, built, strict=True))


def _kind(source: why_not_cloud.WhyNotCloud, asked: why_not_cloud.Asked,
          found: why_not_cloud.Candidates, most: int) -> what_if.InstanceKind:
    nodes = list(found.of)[:most]
    return what_if.InstanceKind(
        request=asked.request, guest_nodes=asked.guest_nodes,
        options={node: tuple(
            {provider: dict(amounts['resources'])
             for provider, amounts in option['allocations'].items()}
            for option in found.of[node].allocation_candidates)
            for node in nodes},
        closed=tuple(host for host, findings in source.nova_findings(
            asked.needs).items() if findings))


# -- lines ------------------------------------------------------------------

def _rows(servers: Sequence[_Server],
          answer: forecast.DrainAnswer) -> Iterator[MoveRow]:
    """Yield all lines: first the instances that move, in their order."""
    planned = {one.leaving.instance_uuid: one for one in servers
               if one.asked is not None}
    for move in answer.moves:
        server = planned[move.instance_uuid]
        if move.target is None:
            yield _line(server, reason=FITS_NOWHERE, detail=(
                f'no host takes it after those above have moved; '
                f'"gpgpu-manage why-not --server {move.instance_uuid}" says '
                f'where it fits now, and why not elsewhere'))
        else:
            yield _line(server, target=move.target, reason=server.reason,
                        detail=_way(server, move.target))
    for server in servers:
        if server.asked is None:
            yield _line(server, reason=server.reason, detail=server.detail)
    for left in answer.capacities:
        yield MoveRow(what=CAPACITY, name=f'{left.variant}/{left.vgpu_type}',
                      before=left.before, after=left.after,
                      detail=left.resource_class)


def _line(server: _Server, *, target: str | None = None, reason: str | None,
          detail: str) -> MoveRow:
    return MoveRow(what=INSTANCE, name=server.leaving.instance_uuid,
                   resources=server.leaving.resources,
                   host=server.leaving.host,
                   target=target, reason=reason, detail=detail)


def _way(server: _Server, target: str) -> str:
    """Return how a server gets to its target, as a text for operators."""
    seconds = server.leaving.cleaning_seconds
    cleaning = ('how long the cleaning of its GPUs takes is not known'
                if seconds is None else
                f'the last cleaning of its GPUs took {seconds:.0f} s')
    first = f'{server.detail}; then ' if server.detail else ''
    numa = ('; vCPUs and RAM of its NUMA nodes are not examined'
            if server.has_numa_topology else '')
    return (f'{first}cold migration: openstack server migrate --host {target} '
            f'{server.leaving.instance_uuid}, and confirm it; a live '
            f'migration is refused; {cleaning}{numa}')
