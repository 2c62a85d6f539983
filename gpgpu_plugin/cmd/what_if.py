# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage what-if``: what would happen, without doing it."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Iterator
from collections.abc import Sequence

import openstack
from cliff import lister

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import cloud
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import errors
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.cmd import what_if_servers
from gpgpu_plugin.cmd import why_not
from gpgpu_plugin.cmd import why_not_cloud
from gpgpu_plugin.gpu_map import text
from gpgpu_plugin.objects import what_if as objects

STAY = 1
"""Exit code if not all instances can leave."""

FITS_NOWHERE = 'fits_nowhere'
_REFUSALS = 8
_COLUMNS = ('what', 'name', 'resources', 'host', 'target', 'before', 'after',
            'reason', 'detail')

INSTANCE, REASON, CHANGE, CAPACITY = 'instance', 'reason', 'change', 'capacity'
"""Values of ``What``. REASON: why an instance does not fit on a host. CHANGE:
the smallest change after which the plugin takes it. CAPACITY: units that all
hosts have left for new instances, before and after."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the output.

    :ivar name: UUID of an instance, or VARIANT/TYPE
    :ivar resources: devices that the instance leaves, by resource class
    :ivar host: which the instance leaves, or which refuses it
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


class WhatIfDrain(reach.Command, lister.Lister):
    """Show where the instances of hosts would go if these were drained.

    Nothing is changed. The instances are listed in an order in which each fits
    on its target; there may be a better one. Exit code: 0 all can leave; 1 not
    all can. It reads Placement and Nova as the administrator of --os-cloud.
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

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        context = gpgpu_context.admin()
        hosts = list(dict.fromkeys(parsed_args.host))
        leaving = self.api.what_if_leaving(context, hosts)
        connect = self.manage.connect or openstack.connect
        source = why_not_cloud.Cloud(functools.partial(
            connect, cloud=self.manage.options.os_cloud))
        servers, asked = self._asked(source, hosts, leaving)
        answer = self.api.what_if_drain(context, asked.question)
        rows = list(_rows(servers, answer))
        stay = {row.name for row in rows if row.what == INSTANCE
                and row.reason in {FITS_NOWHERE, *what_if_servers.BLOCKING}}
        self._code = STAY if stay else 0
        self._remark(hosts, servers, asked, answer, len(stay))
        return columns.rows(rows, _COLUMNS)

    def _asked(self, source: why_not_cloud.Cloud, hosts: Sequence[str],
               leaving: Sequence[objects.Leaving],
               ) -> tuple[list[what_if_servers.Server],
                          what_if_servers.Question]:
        try:
            servers = [what_if_servers.examine(source, one)
                       for one in leaving]
            return servers, what_if_servers.question(source, hosts, servers)
        except cloud.ERRORS as exc:
            raise exception.Conflict(
                kind='host', name=', '.join(hosts),
                reason=f'Nova or Placement cannot be asked (clouds.yaml, '
                       f'cloud {self.manage.options.os_cloud or "of OS_CLOUD"}'
                       f'): {errors.first_line(exc)}; name the cloud of an '
                       f'administrator with --os-cloud before the command',
            ) from exc

    def _remark(self, hosts: Sequence[str],
                servers: Sequence[what_if_servers.Server],
                asked: what_if_servers.Question,
                answer: objects.DrainAnswer, stay: int) -> None:
        instances = len({one.leaving.instance_uuid for one in servers})
        self.note(
            f'{instances - stay} of {text.counted(instances, "instance")} can '
            f'leave {", ".join(hosts)}, one after the other in this order; '
            f'there may be a better one '
            f'({text.counted(answer.orders, "order")} tried, '
            f'{text.counted(answer.examined, "host")} examined)')
        if asked.cut or answer.cut:
            self.note('Placement has more candidates than were examined')
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
        self.note(f'filters of Nova that were not examined: {names}')


def _rows(servers: Sequence[what_if_servers.Server],
          answer: objects.DrainAnswer) -> Iterator[Row]:
    """Yield all lines: first the instances that move, in their order."""
    planned = {one.leaving.instance_uuid: one for one in servers
               if one.asked is not None}
    for move in answer.moves:
        server = planned[move.instance_uuid]
        yield _instance(server, move)
        if move.target is None:
            yield from _refused(server, move)
    for server in servers:
        if server.asked is None:
            yield _line(server, target=None, reason=server.reason,
                        detail=server.detail)
    for left in answer.capacities:
        yield Row(what=CAPACITY, name=f'{left.variant}/{left.vgpu_type}',
                  before=left.before, after=left.after,
                  detail=left.resource_class)


def _line(server: what_if_servers.Server, *, target: str | None,
          reason: str | None, detail: str) -> Row:
    return Row(what=INSTANCE, name=server.leaving.instance_uuid,
               resources=server.leaving.resources, host=server.leaving.host,
               target=target, reason=reason, detail=detail)


def _instance(server: what_if_servers.Server, move: objects.Move) -> Row:
    if move.target is None:
        return _line(server, target=None, reason=FITS_NOWHERE, detail=(
            'no host takes it after the others have moved'))
    uuid, seconds = move.instance_uuid, server.leaving.cleaning_seconds
    cleaning = ('how long the cleaning of its GPUs takes is not known'
                if seconds is None else
                f'the last cleaning of its GPUs took {seconds:.0f} s')
    first = f'{server.detail}; then ' if server.detail else ''
    numa = ('; vCPUs and RAM of its NUMA nodes are not examined'
            if server.has_numa_topology else '')
    return _line(
        server, target=move.target, reason=server.reason,
        detail=f'{first}cold migration: openstack server migrate --host '
               f'{move.target} {uuid}, and confirm it; a live migration is '
               f'refused; {cleaning}{numa}')


def _refused(server: what_if_servers.Server,
             move: objects.Move) -> Iterator[Row]:
    assert server.asked is not None
    shown = move.refusals[:_REFUSALS]
    for refusal in shown:
        yield Row(what=REASON, name=move.instance_uuid, host=refusal.host,
                  reason=refusal.finding.reason,
                  detail=refusal.finding.detail)
    if len(shown) < len(move.refusals):
        yield Row(what=REASON, name=move.instance_uuid, reason='more',
                  detail=f'{len(move.refusals) - len(shown)} more; see '
                         f'"gpgpu-manage why-not --server '
                         f'{move.instance_uuid}"')
    if move.change_host is not None:
        yield Row(what=CHANGE, name=move.instance_uuid,
                  host=move.change_host,
                  reason='+'.join(dict.fromkeys(
                      change.kind for change in move.change)),
                  detail=why_not.in_words(
                      move.change_host, move.change, server.asked.request))
