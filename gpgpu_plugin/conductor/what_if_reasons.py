# SPDX-License-Identifier: Apache-2.0
"""Why an instance fits nowhere if hosts are drained, and what would help."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator

from sqlalchemy import orm

from gpgpu_plugin.conductor import what_if_hosts
from gpgpu_plugin.conductor import why_not
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.db import vgpu_type as vgpu_type_db
from gpgpu_plugin.domain.what_if import plan as plan_mod
from gpgpu_plugin.domain.why_not import change as change_mod
from gpgpu_plugin.domain.why_not import host as host_mod
from gpgpu_plugin.domain.why_not import smallest
from gpgpu_plugin.objects import what_if as objects

HOSTS = 50
"""Hosts that are examined at most for the reasons of one kind."""

TAKEN = 'placement_taken'
NO_CANDIDATE = 'placement_no_candidate'
"""Reasons for which Placement has nothing on a host that the plugin would
take."""

_DETAILS = {
    TAKEN: 'servers that move there first take its vCPUs, RAM, disk or GPUs',
    NO_CANDIDATE: 'Placement has no candidate there, or Nova does not select '
                  'the host; "gpgpu-manage why-not --server" with --host says '
                  'why'}


def of(session: orm.Session, hosts: what_if_hosts.Hosts, kind: plan_mod.Kind,
       plan: plan_mod.Plan, has_time: Callable[[], bool]) -> objects.Move:
    """Return why no host takes a kind after a plan, and the best change.

    The answer names no instance, since it holds for all of the kind.

    :param has_time: whether further changes are searched
    """
    refusals: list[objects.HostFinding] = []
    best: tuple[tuple[int, int, str], str, smallest.Proposal] | None = None
    for name in _names(session, hosts, kind) if has_time() else ():
        host = plan.hosts.get(name, hosts.values[name])
        found = host_mod.findings(host, kind.request, kind.guest_nodes)
        refusals += (objects.HostFinding(host=name, finding=one)
                     for one in found or _of_placement(kind, name))
        for proposal in _proposals(host, kind) if (
                found and has_time()) else ():
            key = (*_cost(proposal), name)
            if best is None or key < best[0]:
                best = key, name, proposal
    return objects.Move(
        instance_uuid='', refusals=tuple(refusals),
        change_host=None if best is None else best[1],
        change=() if best is None else tuple(
            why_not.change_info(change, {
                device.stable_id: device for device
                in hosts.loaded[best[1]].rows.devices})
            for change in best[2]))


def _names(session: orm.Session, hosts: what_if_hosts.Hosts,
           kind: plan_mod.Kind) -> Collection[str]:
    """Return hosts with GPUs of a kind, and load them."""
    wanted = {demand.resource_class for demand in kind.request.demands}
    names: dict[str, None] = {}
    for row in variant_db.all(session):
        for vgpu_type in vgpu_type_db.of_variant(session, row.id):
            if row.value.class_of(vgpu_type) in wanted:
                names |= dict.fromkeys(found.host for found in (
                    group_db.types_listed(
                        session, HOSTS, variant=row.value.name,
                        vgpu_type=vgpu_type)))
    targets = [name for name in names if hosts.is_target(name)][:HOSTS]
    hosts.load(session, (host_db.get(session, name) for name in targets))
    return targets


def _of_placement(kind: plan_mod.Kind,
                  host: str) -> Iterator[host_mod.Finding]:
    reason = TAKEN if host in kind.options else NO_CANDIDATE
    yield host_mod.Finding(reason=reason, detail=_DETAILS[reason])


def _proposals(host: host_mod.Host,
               kind: plan_mod.Kind) -> Iterator[smallest.Proposal]:
    for proposal in smallest.proposals(
            host, kind.request, kind.guest_nodes):
        if all(change.kind in change_mod.OF_HOST for change in proposal):
            yield proposal


def _cost(proposal: smallest.Proposal) -> tuple[int, int]:
    """Return the dearest kind of a proposal, and its size."""
    return (max(change_mod.OF_HOST.index(change.kind)
                for change in proposal), len(proposal))
