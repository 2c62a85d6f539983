# SPDX-License-Identifier: Apache-2.0
"""Servers that leave hosts, as Nova and Placement see them."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.cmd import candidates
from gpgpu_plugin.cmd import why_not_cloud
from gpgpu_plugin.objects import what_if as objects
from gpgpu_plugin.rpc import why_not_contract

NO_SERVER = 'no_server'
ELSEWHERE = 'server_elsewhere'
EXACT = 'exact_devices'
NOT_REQUESTED = 'allocation_not_requested'
STATUS = 'server_status'
"""Reasons for which a server is not planned, or cannot leave as it is."""

BLOCKING = frozenset({EXACT, NOT_REQUESTED, STATUS})
"""Reasons for which a host cannot be emptied."""

_MIGRATED = ('ACTIVE', 'SHUTOFF')
_MOVED = 'VERIFY_RESIZE'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """A server that has devices on a host.

    :ivar asked: what it requests; None: no host is sought for it
    :ivar reason: see above; None: Nova can migrate it
    :ivar detail: what that means, or what comes before the migration
    """

    leaving: objects.Leaving
    asked: why_not_cloud.Asked | None = None
    reason: str | None = None
    detail: str = ''

    @property
    def has_numa_topology(self) -> bool:
        """Return whether a plan depends on NUMA nodes of its target."""
        return self.asked is not None and self.asked.guest_nodes is not None


def examine(source: why_not_cloud.Cloud,
            leaving: objects.Leaving) -> Server:
    """Return what Nova can do with an instance that leaves.

    :raises cloud.ERRORS: Nova cannot be asked
    :raises Invalid: its flavor and image are no request
    """
    server = source.find_server(leaving.instance_uuid)
    if server is None:
        return Server(
            leaving=leaving, reason=NO_SERVER,
            detail='Nova has no such server; nova-compute of the host '
                   'releases its devices, or "gpgpu-manage assignment end" '
                   'does')
    host = server.get('OS-EXT-SRV-ATTR:host')
    if host != leaving.host:
        return Server(
            leaving=leaving, reason=ELSEWHERE,
            detail=f'the server is {server["status"]} on {host}; its devices '
                   f'here are released when its resize or migration is '
                   f'confirmed, or when nova-compute is back after an '
                   f'evacuation')
    if leaving.exact:
        return Server(
            leaving=leaving, reason=EXACT,
            detail='the server named its devices in a scheduler hint, so it '
                   'cannot be moved; shelve or delete it')
    asked = source.asked_of(server)
    if not leaving.resources.keys() & {
            demand.resource_class for demand in asked.request.demands}:
        return Server(
            leaving=leaving, reason=NOT_REQUESTED,
            detail='its flavor requests none of the GPUs that it has')
    return _by_status(server, Server(leaving=leaving, asked=asked))


def _by_status(server: Mapping[str, typing.Any], found: Server) -> Server:
    status = server['status']
    if status == _MOVED:
        return dataclasses.replace(
            found, detail='confirm or revert its resize first')
    if status in _MIGRATED:
        return found
    return dataclasses.replace(
        found, reason=STATUS,
        detail=f'the server is {status}; Nova migrates servers that are '
               f'{" or ".join(_MIGRATED)}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A question to the conductor, and what it leaves out.

    :ivar cut: whether Placement has more candidates than were asked about
    """

    question: objects.DrainQuestion
    cut: bool


def question(source: why_not_cloud.Cloud, hosts: Sequence[str],
             servers: Iterable[Server]) -> Question:
    """Return the question about servers, those of a kind together.

    :raises cloud.ERRORS: Nova or Placement cannot be asked
    """
    kinds: list[why_not_cloud.Asked] = []
    leaving: dict[str, int] = {}
    for server in servers:
        if server.asked is not None:
            kind = dataclasses.replace(server.asked, remarks=())
            if kind not in kinds:
                kinds.append(kind)
            leaving[server.leaving.instance_uuid] = kinds.index(kind)
    found = [candidates.read(source, asked.needs) for asked in kinds]
    built = [_kind(asked, answer, [
        host for host, findings in source.nova_findings(
            asked.needs).items() if findings])
        for asked, answer in zip(kinds, found, strict=True)]
    return Question(
        question=objects.DrainQuestion(
            hosts=tuple(hosts), kinds=tuple(built), leaving=leaving,
            free=_free(found, built)),
        cut=any(not answer.complete or len(answer.of) > len(kind.options)
                for answer, kind in zip(found, built, strict=True)))


def _kind(asked: why_not_cloud.Asked,
          found: candidates.Candidates,
          closed: Iterable[str]) -> objects.Kind:
    options = tuple(
        objects.Option(node_uuid=node, allocations=tuple(
            {provider: dict(amounts['resources'])
             for provider, amounts in option['allocations'].items()}
            for option in candidate.allocation_candidates))
        for node, candidate in found.of.items())
    return objects.Kind(
        request=asked.request, guest_nodes=asked.guest_nodes,
        options=options[:why_not_contract.OPTIONS_AT_ONCE],
        closed=tuple(closed))


def _free(found: Iterable[candidates.Candidates],
          kinds: Iterable[objects.Kind]) -> objects.Amounts:
    """Return what providers of candidates have, of what is allocated."""
    used = {(provider, name) for kind in kinds for option in kind.options
            for amounts in option.allocations
            for provider, resources in amounts.items()
            for name in resources}
    free: objects.Amounts = {}
    for answer in found:
        for provider, resources in answer.free.items():
            for name, amount in resources.items():
                if (provider, name) in used:
                    free.setdefault(provider, {})[name] = amount
    return free
