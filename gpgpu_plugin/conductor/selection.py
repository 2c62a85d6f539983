# SPDX-License-Identifier: Apache-2.0
"""Selection of the devices that a claim gets on its host."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import group as group_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import claim as objects
from gpgpu_plugin.objects import scheduling as scheduling_obj

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
class OfferedUnits:
    """One resource class of the host."""

    group: capacity.LoadedGroup
    type: group_rules.OfferedType


def offers(groups: Iterable[capacity.LoadedGroup]) -> dict[str, OfferedUnits]:
    """Return what a host offers by resource class."""
    return {
        group.value.resource_class(offered.vgpu_type): OfferedUnits(
            group=group, type=offered)
        for group in groups if group.value.devices
        for offered in group.value.types}


def own_demands(session: orm.Session, request: objects.ClaimRequest,
                offers: Mapping[str, OfferedUnits]) -> request_mod.Request:
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
           offers: Mapping[str, OfferedUnits],
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
        check_exact_project(request.project_id, projects)
        names = parse_exact(request.exact_devices)
        check_exact_flavor(session, request.request)
        where, found = locate_exact(session, names)
        if where.id != host.id:
            raise request_mod.exact_refusal(names,
                                            _Reason.EXACT_DEVICE_ELSEWHERE,
                                            f'on {where.name}')
        selected = select_exact(groups, found)
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
        return allocate.allocate_near(
            offered, ours, policies, _choices(request), _sockets(request))
    except request_mod.Unsatisfiable as exc:
        raise denied(request, exc.reason, exc.detail) from None


def _choices(request: objects.ClaimRequest) -> allocate.Choices:
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
    return tuple(sorted(allocate.nearest(
        frozenset(found.get(row.device.stable_id) for row in assigned),
        request.request, _choices(request), _sockets(request))))


# -- Devices that instances name instead of requesting them by a flavor.
#
# A scheduler asks where they are, and a claim takes them. Both get the same
# answer from ``select_exact``; the claim's counts, since it holds the host's
# lock and knows the guest's NUMA nodes.


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectedDevices:
    """Whole GPUs that were named, by resource class.

    :ivar demands: how many of each class
    :ivar offers: the named GPUs alone
    """

    demands: tuple[request_mod.Demand, ...]
    offers: Mapping[str, offer_mod.TypeOffer]


def check_exact_project(project_id: str | None,
                        projects: Collection[str]) -> None:
    """Refuse projects that may not name devices.

    :param projects: ``[gpgpu_conductor] exact_device_projects``
    :raises Unsatisfiable: the project is not among them
    """
    if project_id not in projects:
        raise request_mod.exact_not_allowed(project_id)


def locate_exact(session: orm.Session, names: Iterable[request_mod.DeviceName],
                 ) -> tuple[host_db.HostRow,
                            dict[str, request_mod.DeviceName]]:
    """Return the host of devices, and their names by their stable ids.

    :raises Unsatisfiable: there is no such device, one was named twice, or
        they are on several hosts
    """
    found: dict[str, request_mod.DeviceName] = {}
    hosts: dict[int, host_db.HostRow] = {}
    for name in names:
        host, device = _find(session, name)
        hosts[host.id] = host
        if len(hosts) > 1:
            raise request_mod.exact_refusal(
                names, _Reason.EXACT_DEVICE_ELSEWHERE,
                'these devices are on several hosts, '
                + ' and '.join(sorted(known.name for known in hosts.values())))
        if device.stable_id in found:
            raise request_mod.exact_refusal(
                [found[device.stable_id], name],
                _Reason.EXACT_DEVICES_INVALID, 'these are one device')
        found[device.stable_id] = name
    [host] = hosts.values()
    return host, found


def _find(session: orm.Session, name: request_mod.DeviceName,
          ) -> tuple[host_db.HostRow, device_db.DeviceRow]:
    if name.uuid:
        try:
            device = device_db.get(session, name.uuid)
        except exception.NotFound:
            raise request_mod.exact_refusal(
                [name], _Reason.EXACT_DEVICE_UNKNOWN,
                'no device has this UUID; see "gpgpu-manage device list"',
            ) from None
        hosts = host_db.by_ids(session, [device.host_id])
        if hosts and not hosts[0].deleted:
            return hosts[0], device
        raise request_mod.exact_refusal([name], _Reason.EXACT_DEVICE_UNKNOWN,
                                        'the host of this device was deleted')
    host = host_db.find(session, name.host)
    if host is None:
        raise request_mod.exact_refusal(
            [name], _Reason.EXACT_DEVICE_UNKNOWN,
            f'no host {name.host} has reported its devices')
    at = device_db.at_address(session, host.id, name.address)
    if at is None:
        raise request_mod.exact_refusal(
            [name], _Reason.EXACT_DEVICE_UNKNOWN,
            f'{name.host} has no device at this address; see "gpgpu-manage '
            f'device list --host {name.host}"')
    return host, at


def select_exact(groups: Iterable[capacity.LoadedGroup],
                 names: Mapping[str, request_mod.DeviceName],
                 held: Collection[str] = ()) -> SelectedDevices:
    """Return named devices as demands and offers of these devices alone.

    :param names: by stable id, all of the groups' host
    :param held: stable ids of devices that the instance has already
    :raises Unsatisfiable: one of them cannot be claimed as a whole GPU now
    """
    gpus = {gpu.id: (group, gpu) for group in groups
            for gpu in group.value.gpus}
    chosen: dict[str, list[str]] = collections.defaultdict(list)
    by_class: dict[str, tuple[capacity.LoadedGroup,
                              group_rules.OfferedType]] = {}
    for stable_id, name in names.items():
        if stable_id not in gpus:
            raise request_mod.exact_refusal(
                [name], _Reason.EXACT_DEVICE_UNAVAILABLE,
                'it is no whole GPU of a variant; see "gpgpu-manage device '
                'show"')
        group, gpu = gpus[stable_id]
        offered = _passthrough(group, name)
        if stable_id not in held:
            _check_gpu(group, gpu, name)
        resource_class = group.value.resource_class(offered.vgpu_type)
        chosen[resource_class].append(stable_id)
        by_class[resource_class] = group, offered
    return SelectedDevices(
        demands=tuple(
            request_mod.Demand(resource_class=name, count=len(ids))
            for name, ids in sorted(chosen.items())),
        offers={name: _only(group.value.offer(offered), chosen[name])
                for name, (group, offered) in by_class.items()})


def _passthrough(group: capacity.LoadedGroup,
                 name: request_mod.DeviceName) -> group_rules.OfferedType:
    offered = group.value.by_name.get(naming.PASSTHROUGH)
    if offered is None:
        raise request_mod.exact_refusal(
            [name], _Reason.EXACT_DEVICE_UNAVAILABLE,
            f'variant {group.rows.variant.name} offers no whole GPUs')
    refused = next(group.value.refusals(offered), None)
    if refused is not None:
        raise request_mod.exact_refusal([name], refused.reason, refused.detail)
    return offered


def _check_gpu(group: capacity.LoadedGroup, gpu: group_rules.Device,
               name: request_mod.DeviceName) -> None:
    [found] = [known for known in group.value.gpu_capacities
               if known.id == gpu.id]
    if found.available(naming.PASSTHROUGH) < 1:
        state = gpu.shown_state(group.value.children[gpu.id])
        raise request_mod.exact_refusal(
            [name], _Reason.EXACT_DEVICE_UNAVAILABLE,
            f'its state is {state}' if state != 'available' else
            'it cannot be assigned as a whole GPU; see "gpgpu-manage device '
            'show"')


def _only(offer: offer_mod.TypeOffer,
          ids: Collection[str]) -> offer_mod.TypeOffer:
    return dataclasses.replace(
        offer, gpus=[gpu for gpu in offer.gpus if gpu.id in ids])


def find_exact(db: api.Database, request: scheduling_obj.ExactRequest,
               projects: Collection[str]) -> scheduling_obj.ExactHost:
    """Return where a scheduler can put an instance that names devices.

    :param projects: ``[gpgpu_conductor] exact_device_projects``
    """
    with db.reader() as session:
        try:
            return _find_host(session, request, projects)
        except request_mod.Unsatisfiable as exc:
            return scheduling_obj.ExactHost(refusal=request_mod.Refusal(
                reason=exc.reason, detail=exc.detail))


def _find_host(session: orm.Session, request: scheduling_obj.ExactRequest,
               projects: Collection[str]) -> scheduling_obj.ExactHost:
    check_exact_project(request.project_id, projects)
    names = parse_exact(request.devices)
    check_exact_flavor(session, request.request)
    host, found = locate_exact(session, names)
    rows = host_rows.load_one(session, host)
    own = held_exact(rows.assignments, request.instance_uuid)
    selected = select_exact(capacity.groups(rows), found, own)
    # What the instance has is not available, and only its claim knows better.
    if not own.intersection(found):
        allocate.allocate(selected.offers, dataclasses.replace(
            request.request, demands=selected.demands), {})
    return scheduling_obj.ExactHost(host=host.name, node_uuid=host.node_uuid)


def parse_exact(devices: Sequence[str]) -> tuple[request_mod.DeviceName, ...]:
    """Read the names of devices.

    :raises Unsatisfiable: one has another form
    """
    try:
        return request_mod.parse_hint(devices)
    except exception.Invalid as exc:
        raise request_mod.Unsatisfiable(request_mod.Refusal(
            reason=_Reason.EXACT_DEVICES_INVALID, detail=str(exc))) from None


def check_exact_flavor(session: orm.Session,
                       request: request_mod.Request) -> None:
    """Refuse a flavor that requests GPUs beside named devices.

    :raises Unsatisfiable: it demands some of the plugin's classes
    """
    if own := request.own(variant_db.classes(session)):
        raise request_mod.exact_mixed(own)


def held_exact(assignments: Iterable[assignment_db.AssignmentRow],
               instance_uuid: str) -> frozenset[str]:
    """Return the stable ids of the devices that an instance has."""
    return frozenset(row.device.stable_id for row in assignments
                     if row.instance_uuid == instance_uuid)
