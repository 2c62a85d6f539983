# SPDX-License-Identifier: Apache-2.0
"""Devices that instances name instead of requesting them by a flavor.

A scheduler asks where they are, and a claim takes them. Both get the same
answer from ``select``; the claim's counts, since it holds the host's lock and
knows the guest's NUMA nodes.
"""

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
from gpgpu_plugin.domain.allocation import exact
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj

_Reason = request_mod.Reason


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selected:
    """Whole GPUs that were named, by resource class.

    :ivar demands: how many of each class
    :ivar offers: the named GPUs alone
    """

    demands: tuple[request_mod.Demand, ...]
    offers: Mapping[str, offer_mod.TypeOffer]


def check_project(project_id: str | None, projects: Collection[str]) -> None:
    """Refuse projects that may not name devices.

    :param projects: ``[gpgpu_conductor] exact_device_projects``
    :raises Unsatisfiable: the project is not among them
    """
    if project_id not in projects:
        raise exact.not_allowed(project_id)


def locate(session: orm.Session, names: Iterable[exact.DeviceName],
           ) -> tuple[host_db.HostRow, dict[str, exact.DeviceName]]:
    """Return the host of devices, and their names by their stable ids.

    :raises Unsatisfiable: there is no such device, one was named twice, or
        they are on several hosts
    """
    found: dict[str, exact.DeviceName] = {}
    hosts: dict[int, host_db.HostRow] = {}
    for name in names:
        host, device = _find(session, name)
        hosts[host.id] = host
        if len(hosts) > 1:
            raise exact.refusal(
                names, _Reason.EXACT_DEVICE_ELSEWHERE,
                'these devices are on several hosts, '
                + ' and '.join(sorted(known.name for known in hosts.values())))
        if device.stable_id in found:
            raise exact.refusal(
                [found[device.stable_id], name],
                _Reason.EXACT_DEVICES_INVALID, 'these are one device')
        found[device.stable_id] = name
    [host] = hosts.values()
    return host, found


def _find(session: orm.Session, name: exact.DeviceName,
          ) -> tuple[host_db.HostRow, device_db.DeviceRow]:
    if name.uuid:
        try:
            device = device_db.get(session, name.uuid)
        except exception.NotFound:
            raise exact.refusal(
                [name], _Reason.EXACT_DEVICE_UNKNOWN,
                'no device has this UUID; see "gpgpu-manage device list"',
            ) from None
        hosts = host_db.by_ids(session, [device.host_id])
        if hosts and not hosts[0].deleted:
            return hosts[0], device
        raise exact.refusal([name], _Reason.EXACT_DEVICE_UNKNOWN,
                            'the host of this device was deleted')
    host = host_db.find(session, name.host)
    if host is None:
        raise exact.refusal([name], _Reason.EXACT_DEVICE_UNKNOWN,
                            f'no host {name.host} has reported its devices')
    at = device_db.at_address(session, host.id, name.address)
    if at is None:
        raise exact.refusal(
            [name], _Reason.EXACT_DEVICE_UNKNOWN,
            f'{name.host} has no device at this address; see "gpgpu-manage '
            f'device list --host {name.host}"')
    return host, at


def select(groups: Iterable[capacity.LoadedGroup],
           names: Mapping[str, exact.DeviceName],
           held: Collection[str] = ()) -> Selected:
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
            raise exact.refusal(
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
    return Selected(
        demands=tuple(
            request_mod.Demand(resource_class=name, count=len(ids))
            for name, ids in sorted(chosen.items())),
        offers={name: _only(group.value.offer(offered), chosen[name])
                for name, (group, offered) in by_class.items()})


def _passthrough(group: capacity.LoadedGroup,
                 name: exact.DeviceName) -> group_rules.OfferedType:
    offered = group.value.by_name.get(naming.PASSTHROUGH)
    if offered is None:
        raise exact.refusal(
            [name], _Reason.EXACT_DEVICE_UNAVAILABLE,
            f'variant {group.rows.variant.name} offers no whole GPUs')
    refused = next(group.value.refusals(offered), None)
    if refused is not None:
        raise exact.refusal([name], refused.reason, refused.detail)
    return offered


def _check_gpu(group: capacity.LoadedGroup, gpu: group_rules.Device,
               name: exact.DeviceName) -> None:
    [found] = [known for known in group.value.gpu_capacities
               if known.id == gpu.id]
    if found.available(naming.PASSTHROUGH) < 1:
        state = gpu.shown_state(group.value.children[gpu.id])
        raise exact.refusal(
            [name], _Reason.EXACT_DEVICE_UNAVAILABLE,
            f'its state is {state}' if state != 'available' else
            'it cannot be assigned as a whole GPU; see "gpgpu-manage device '
            'show"')


def _only(offer: offer_mod.TypeOffer,
          ids: Collection[str]) -> offer_mod.TypeOffer:
    return dataclasses.replace(
        offer, gpus=[gpu for gpu in offer.gpus if gpu.id in ids])


def find(db: api.Database, request: scheduling_obj.ExactRequest,
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
    check_project(request.project_id, projects)
    names = parse(request.devices)
    check_flavor(session, request.request)
    host, found = locate(session, names)
    rows = host_rows.load_one(session, host)
    own = held(rows.assignments, request.instance_uuid)
    selected = select(capacity.groups(rows), found, own)
    # What the instance has is not available, and only its claim knows better.
    if not own.intersection(found):
        allocate.allocate(selected.offers, dataclasses.replace(
            request.request, demands=selected.demands), {})
    return scheduling_obj.ExactHost(host=host.name, node_uuid=host.node_uuid)


def parse(devices: Sequence[str]) -> tuple[exact.DeviceName, ...]:
    """Read the names of devices.

    :raises Unsatisfiable: one has another form
    """
    try:
        return exact.parse(devices)
    except exception.Invalid as exc:
        raise request_mod.Unsatisfiable(request_mod.Refusal(
            reason=_Reason.EXACT_DEVICES_INVALID, detail=str(exc))) from None


def check_flavor(session: orm.Session, request: request_mod.Request) -> None:
    """Refuse a flavor that requests GPUs beside named devices.

    :raises Unsatisfiable: it demands some of the plugin's classes
    """
    if own := request.own(variant_db.classes(session)):
        raise exact.mixed(own)


def held(assignments: Iterable[assignment_db.AssignmentRow],
         instance_uuid: str) -> frozenset[str]:
    """Return the stable ids of the devices that an instance has."""
    return frozenset(row.device.stable_id for row in assignments
                     if row.instance_uuid == instance_uuid)
