# SPDX-License-Identifier: Apache-2.0
"""Selection of the devices that a claim gets on its host."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import exact_devices
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import exact
from gpgpu_plugin.domain.allocation import guest_nodes
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import claim as objects

_Reason = request_mod.Reason


def denied(request: objects.ClaimRequest, reason: request_mod.Reason,
           detail: str) -> exception.ClaimDenied:
    """Return the error with which a claim is refused."""
    return exception.ClaimDenied(
        instance=request.instance_uuid, host=request.host,
        reason=str(reason), detail=detail)


def check_allocation(request: objects.ClaimRequest,
                     demanded: request_mod.Request,
                     groups: Iterable[capacity.LoadedGroup]) -> None:
    """Refuse an instance that would have units without devices.

    :param demanded: what the claim is for
    :raises ClaimDenied: Placement allocated more than the request is for
    """
    for group in groups:
        refusal = request_mod.unrequested(
            demanded, request.allocated.get(group.value.provider_uuid, {}))
        if refusal is not None:
            raise denied(request, refusal.reason, refusal.detail)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offer:
    """One resource class of the host."""

    group: capacity.LoadedGroup
    type: group_rules.OfferedType


def offers(groups: Iterable[capacity.LoadedGroup]) -> dict[str, Offer]:
    """Return what a host offers by resource class."""
    return {
        group.value.resource_class(offered.vgpu_type): Offer(
            group=group, type=offered)
        for group in groups if group.value.devices
        for offered in group.value.types}


def own_demands(session: orm.Session, request: objects.ClaimRequest,
                offers: Mapping[str, Offer]) -> request_mod.Request:
    """Return the part of the request that is for the plugin's classes.

    :raises ClaimDenied: such a class has no group on the host, is disabled,
        or its variant is being deleted
    """
    asked = {demand.resource_class for demand in request.request.demands}
    ours = request.request.own(
        offers if asked <= offers.keys()
        else {*offers, *variant_db.classes(session)})
    for demand in ours.demands:
        name = demand.resource_class
        if name not in offers:
            raise denied(
                request, _Reason.NO_SUCH_GROUP,
                f'no GPU of {name} on this host, which has '
                f'{", ".join(sorted(offers)) or "no group"}')
        refusal = next(offers[name].group.value.refusals(
            offers[name].type), None)
        if refusal is not None:
            raise denied(request, refusal.reason, refusal.detail)
    return ours


def choose(request: objects.ClaimRequest, ours: request_mod.Request,
           offers: Mapping[str, Offer],
           ) -> allocate.Selections:
    """Select devices for demands.

    :param ours: the request's demands for classes of ``offers``
    :raises ClaimDenied: no devices of the host suffice
    """
    if not ours:
        return {}
    asked = {demand.resource_class: offers[demand.resource_class]
             for demand in ours.demands}
    return _allocate(
        request, ours,
        {name: offer.group.value.offer(offer.type)
         for name, offer in asked.items()},
        {name: offer.group.value.allocation_policy
         for name, offer in asked.items()})


def choose_exact(session: orm.Session, host: host_db.HostRow,
                 request: objects.ClaimRequest,
                 groups: Collection[capacity.LoadedGroup],
                 projects: Collection[str]) -> allocate.Selections:
    """Select the devices that the instance names.

    :raises ClaimDenied: its project may not, or one of them is not available
    """
    try:
        exact_devices.check_project(request.project_id, projects)
        names = exact_devices.parse(request.exact_devices)
        exact_devices.check_flavor(session, request.request)
        where, found = exact_devices.locate(session, names)
        if where.id != host.id:
            raise exact.refusal(names, _Reason.EXACT_DEVICE_ELSEWHERE,
                                f'on {where.name}')
        selected = exact_devices.select(groups, found)
    except request_mod.Unsatisfiable as exc:
        raise denied(request, exc.reason, exc.detail) from None
    named = dataclasses.replace(request.request, demands=selected.demands)
    check_allocation(request, named, groups)
    return _allocate(request, named, selected.offers, {})


def _allocate(request: objects.ClaimRequest, ours: request_mod.Request,
              offered: Mapping[str, offer_mod.TypeOffer],
              policies: Mapping[str, request_mod.AllocationPolicy],
              ) -> allocate.Selections:
    try:
        if request.numa_nodes is None:
            return allocate.allocate(offered, ours, policies)
        return guest_nodes.allocate_near(
            offered, ours, policies, _choices(request), _sockets(request))
    except request_mod.Unsatisfiable as exc:
        raise denied(request, exc.reason, exc.detail) from None


def _choices(request: objects.ClaimRequest) -> guest_nodes.Choices:
    return [frozenset(nodes) for nodes in (
        request.numa_nodes or (), *request.numa_choices)]


def _sockets(request: objects.ClaimRequest) -> list[frozenset[int]]:
    return [frozenset(nodes) for nodes in request.sockets]


def numa_nodes(request: objects.ClaimRequest,
               rows: host_rows.HostRows,
               assigned: Iterable[assignment_db.AssignmentRow],
               ) -> tuple[int, ...] | None:
    """Return the guest's nodes for which the devices were selected."""
    if request.numa_nodes is None or not request.numa_choices:
        return request.numa_nodes
    found = {device_id: node for group in capacity.groups(rows)
             for device_id, node in group.value.numa_nodes.items()}
    return tuple(sorted(guest_nodes.nearest(
        frozenset(found.get(row.device.stable_id) for row in assigned),
        request.request, _choices(request), _sockets(request))))
