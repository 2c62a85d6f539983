# SPDX-License-Identifier: Apache-2.0
"""Every reason of a host to refuse a request, and what would help.

The scheduler and the claim end with the first reason that they find. Here all
of them are collected, with the same functions, so that both agree: a host has
no reason to refuse a request if, and only if, GpuFilter and the claim take it.

``ADVICE`` has what may be done about a reason. Each advice is tried by itself,
on values: what the host or the request would be, not what it is.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import group as group_mod
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import feasibility
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod

_Reason = request_mod.Reason

HOST_SILENT = 'host_silent'
HOST_DISABLED = 'host_disabled'
HOST_RESTORED = 'host_restored'
"""Reasons of a host as a whole. The first two are those of Nova's
ComputeFilter, as far as the conductor knows them; the last is its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A reason to refuse a request; its name is that of the claim's refusal.

    :ivar reason: a request.Reason, HOST_SILENT, HOST_DISABLED or HOST_RESTORED
    :ivar resource_class: of which Placement has too little
    """

    reason: str
    detail: str
    resource_class: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExaminedHost:
    """Groups of a host, and who has its devices.

    :ivar groups: those that have devices
    :ivar users: UUIDs of instances by the stable id of their device
    """

    name: str
    groups: tuple[group_mod.GroupCapacity, ...] = ()
    state: host_rules.HostState = host_rules.HostState.UP
    users: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def offered(self) -> Mapping[str, tuple[
            group_mod.GroupCapacity, group_mod.OfferedType]]:
        """Return the group and the type of each resource class."""
        return {group.resource_class(offered.vgpu_type): (group, offered)
                for group in self.groups for offered in group.types}

    def offers(self, request: request_mod.Request,
               ) -> dict[str, offer_mod.TypeOffer]:
        """Return what is offered of each class that a request is for."""
        asked = {demand.resource_class: self.offered[demand.resource_class]
                 for demand in request.demands}
        return {name: group.offer(offered)
                for name, (group, offered) in asked.items()}


def findings(host: ExaminedHost, request: request_mod.Request,
             guest_nodes: int | None = None) -> tuple[Finding, ...]:
    """Return all reasons to refuse a request; none: the host can take it.

    Whether the GPUs that are left meet the topology is examined where they
    are enough.

    :param request: the demands for the plugin's classes alone
    :param guest_nodes: number of NUMA nodes of the guest; None: it has no
        NUMA topology
    """
    found = [_OF_HOST[host.state]] if host.state in _OF_HOST else []
    # A host that is silent or drained has its GPUs all the same.
    opened = _opened(host)
    for demand in request.demands:
        found += _of_demand(host, opened, demand)
    if not any(finding.reason in _OF_COUNT for finding in found):
        refusal = _of_all(opened, request, guest_nodes)
        if refusal is not None:
            found.append(_finding(refusal))
    return tuple(found)


_OF_COUNT = frozenset({
    _Reason.NO_SUCH_GROUP, _Reason.NOT_ENOUGH_AVAILABLE, _Reason.TYPE_CONFLICT,
    _Reason.DRIVER_HAS_NO_ROOM})


def _finding(refusal: request_mod.Refusal) -> Finding:
    return Finding(reason=str(refusal.reason), detail=refusal.detail)


_OF_HOST: Mapping[host_rules.HostState, Finding] = {
    host_rules.HostState.SILENT: Finding(
        reason=HOST_SILENT,
        detail='its nova-compute does not call; see "gpgpu-manage host show" '
               'and the log of nova-compute there'),
    host_rules.HostState.RESTORED: Finding(
        reason=HOST_RESTORED,
        detail='the database was restored, and the host has not reported what '
               'it has since; wait, or restart nova-compute there'),
    host_rules.HostState.DISABLED: Finding(
        reason=HOST_DISABLED,
        detail='its nova-compute is disabled in Nova; see "openstack compute '
               'service list"'),
}


def _of_demand(host: ExaminedHost, opened: ExaminedHost,
               demand: request_mod.Demand) -> Iterator[Finding]:
    if demand.resource_class not in host.offered:
        yield _finding(request_mod.Refusal(
            reason=_Reason.NO_SUCH_GROUP,
            detail=f'no GPU of {demand.resource_class} on this host, which '
                   f'has {", ".join(sorted(host.offered)) or "no group"}'))
        return
    group, offered = host.offered[demand.resource_class]
    for refusal in group.refusals(offered):
        yield _finding(refusal)
    shortage = _of_all(opened, request_mod.Request(demands=(demand,)))
    if shortage is not None:
        yield Finding(
            reason=str(shortage.reason),
            detail=f'{shortage.detail}; {_states(group)}')


def _states(group: group_mod.GroupCapacity) -> str:
    states = ', '.join(f'{count} {state}' for state, count
                       in group.shown_states().items())
    return f'{len(group.gpus)} GPUs of {group.variant.name}: {states}'


def _opened(host: ExaminedHost) -> ExaminedHost:
    """Return the host as if nothing but its GPUs could refuse.

    A group that is open already keeps what was computed of it.
    """
    return dataclasses.replace(host, groups=tuple(
        dataclasses.replace(group, draining=False, types=tuple(
            dataclasses.replace(offered, enabled=True)
            for offered in group.types))
        if group.draining or not all(
            offered.enabled for offered in group.types) else group
        for group in host.groups))


def anywhere(request: request_mod.Request) -> request_mod.Request:
    """Return a request for any NUMA nodes.

    Where the guest's memory will be, only its host knows.
    """
    return dataclasses.replace(
        request, numa_policy=request_mod.NUMAPolicy.NONE,
        pci_numa_policy=None)


def _of_all(host: ExaminedHost, request: request_mod.Request,
            guest_nodes: int | None = None) -> request_mod.Refusal | None:
    """Return why the claim, or else the filter, refuses the request."""
    offers = host.offers(request)
    try:
        allocate.allocate(offers, anywhere(request), {})
    except request_mod.Unsatisfiable as exc:
        return request_mod.Refusal(reason=exc.reason, detail=exc.detail)
    masks = feasibility.masks(list(offers.values()))
    return feasibility.refusal(
        dict(zip(offers, masks, strict=True)), request, guest_nodes)


# -- advice -----------------------------------------------------------------

@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    """A change that removes reasons to refuse a request.

    :ivar kind: name of the change
    :ivar subjects: PCI addresses, UUIDs of instances, types as "VARIANT TYPE",
        the name of the host, a topology or a count, as the kind says
    :ivar detail: what to do, a sentence without a full stop
    :ivar left: reasons that are left; none: the request fits then
    """

    kind: str
    subjects: tuple[str, ...]
    detail: str
    left: tuple[str, ...] = ()


def advice(host: ExaminedHost, request: request_mod.Request,
           guest_nodes: int | None = None) -> tuple[Advice, ...]:
    """Return what helps where a request is refused, each by itself.

    A host that does not call, or has not reported since a restore, has none:
    what it has is not known, and nothing is cleaned.

    :param guest_nodes: as of ``findings``
    """
    if host.state in (host_rules.HostState.SILENT,
                      host_rules.HostState.RESTORED):
        return ()
    before = _reasons(host, request, guest_nodes)
    changes = dict.fromkeys(change for reason in before
                            for change in ADVICE.get(reason, ()))
    found = (change.tried(host, request, guest_nodes, before)
             for change in changes)
    return tuple(filter(None, found))


def _reasons(host: ExaminedHost, request: request_mod.Request,
             guest_nodes: int | None) -> Set[str]:
    return dict.fromkeys(found.reason for found in findings(
        host, request, guest_nodes)).keys()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Change:
    """A change of a host or of a request.

    :ivar subjects: returns what can be changed; one after the other is tried
        alone. Only if all together help, fewer do
    :ivar after: returns both after the change of some subjects, when all
        cleaning has passed
    :ivar text: what to do with a subject, for operators
    """

    kind: str
    subjects: Callable[[ExaminedHost, request_mod.Request], Sequence[str]]
    after: Callable[[ExaminedHost, request_mod.Request, Collection[str]],
                    tuple[ExaminedHost, request_mod.Request]]
    text: str

    def tried(self, host: ExaminedHost, request: request_mod.Request,
              guest_nodes: int | None, before: Set[str]) -> Advice | None:
        """Return an advice if it removes one of the reasons and adds none.

        It is for one subject if one is enough, otherwise for subjects of which
        none can be left out.
        """
        def left(subjects: Sequence[str]) -> Set[str]:
            return _reasons(*self.after(host, request, subjects), guest_nodes)
        needed = self.subjects(host, request)
        if not needed or not left(needed) < before:
            return None
        one = next((one for one in needed if left([one]) < before), None)
        if one is not None:
            needed = [one]
        else:
            for subject in reversed(needed):
                others = [other for other in needed if other != subject]
                if left(others) < before:
                    needed = others
        return Advice(
            kind=self.kind, subjects=tuple(needed), left=tuple(left(needed)),
            detail='; '.join(
                self.text.format(host=host, name=name, request=request)
                for name in needed))


def _host_change(kind: str, subjects: Callable[[ExaminedHost], Sequence[str]],
                 after: Callable[[ExaminedHost, Collection[str]],
                                 ExaminedHost],
                 text: str) -> _Change:
    return _Change(
        kind=kind, subjects=lambda host, request: subjects(host), text=text,
        after=lambda host, request, some: (after(host, some), request))


def _device_change(kind: str, applies: Callable[[group_mod.Device], bool],
                   change: Callable[[group_mod.Device], group_mod.Device],
                   text: str) -> _Change:
    """Return a change of devices, which are named by their PCI address.

    A GPU is named for those of its vGPUs that change with it.

    :param applies: whether a device can be changed. One that is missing on
        the host cannot, from here
    """
    def by_name(host: ExaminedHost) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for group in host.groups:
            gpus = {gpu.id: gpu for gpu in group.gpus}
            for device in group.devices:
                gpu = gpus.get(device.parent_id or '', device)
                function = gpu.function if device.function is None or applies(
                    gpu) else device.function
                if device.present and device.is_managed and function and (
                        applies(device)):
                    found.setdefault(function.address, []).append(device.id)
        return found

    def after(host: ExaminedHost, names: Collection[str]) -> ExaminedHost:
        return _with_devices(host, {
            one for name, found in by_name(host).items()
            for one in found if name in names}, change)
    return _host_change(kind, lambda host: list(by_name(host)), after, text)


def _with_devices(host: ExaminedHost, ids: Collection[str],
                  change: Callable[[group_mod.Device], group_mod.Device],
                  ) -> ExaminedHost:
    return dataclasses.replace(host, groups=tuple(
        dataclasses.replace(group, devices=tuple(
            change(device) if device.id in ids else device
            for device in group.devices)) for group in host.groups))


def _cleaned(device: group_mod.Device) -> group_mod.Device:
    return dataclasses.replace(
        device, state=device_rules.DeviceState.AVAILABLE, vgpu_type=None,
        placement_id=None)


def _repaired(device: group_mod.Device) -> group_mod.Device:
    # What was withdrawn is cleaned with its repair.
    return dataclasses.replace(
        _cleaned(device) if device.state in device_rules.UNCLEAN_STATES
        else device, holds=device.holds - device_rules.WITHDRAWING)


def _guests(host: ExaminedHost) -> list[str]:
    """Return the instances, those with the fewest devices first."""
    count = collections.Counter(host.users.values())
    return sorted(count, key=lambda guest: (count[guest], guest))


def _left_by(host: ExaminedHost, guests: Collection[str]) -> ExaminedHost:
    users = {device: guest for device, guest in host.users.items()
             if guest not in guests}
    return dataclasses.replace(
        _with_devices(host, host.users.keys() - users.keys(), _cleaned),
        users=users)


def _types(host: ExaminedHost) -> list[str]:
    return [f'{group.variant.name} {offered.vgpu_type}'
            for group in host.groups for offered in group.types
            if not offered.enabled]


def _with_types(host: ExaminedHost, names: Collection[str]) -> ExaminedHost:
    return dataclasses.replace(host, groups=tuple(
        dataclasses.replace(group, types=tuple(
            dataclasses.replace(offered, enabled=offered.enabled or (
                f'{group.variant.name} {offered.vgpu_type}' in names))
            for offered in group.types)) for group in host.groups))


def _counts(_: ExaminedHost, request: request_mod.Request) -> list[str]:
    """Return smaller counts for a request of one class, the largest first."""
    if len(request.demands) != 1:
        return []
    return list(map(str, range(request.demands[0].count - 1, 0, -1)))


def _with_count(host: ExaminedHost, request: request_mod.Request,
                counts: Collection[str]) -> tuple[ExaminedHost,
                                                  request_mod.Request]:
    [demand] = request.demands
    return host, dataclasses.replace(request, demands=(
        dataclasses.replace(demand, count=min(map(int, counts))),))


_GPUS = (
    _device_change(
        'wait', lambda device: device.state in device_rules.UNCLEAN_STATES
        and not device_rules.is_withdrawn(device.holds), _cleaned,
        'wait until the cleaning of {name} has passed'),
    _device_change(
        'enable',
        lambda device: device_rules.HoldKind.DISABLED in device.holds,
        lambda device: dataclasses.replace(
            device, holds=device.holds - {device_rules.HoldKind.DISABLED}),
        'enable {name}: gpgpu-manage hold remove {host.name} {name} --kind '
        'disabled'),
    _device_change(
        'repair', lambda device: device_rules.is_withdrawn(device.holds),
        _repaired,
        'repair {name} (quarantined): gpgpu-manage device show {host.name} '
        '{name} says why, and device release has it cleaned again'),
    _host_change(
        'move', _guests, _left_by,
        'move instance {name} to another host, and wait for the cleaning'))
_TOPOLOGY = _Change(
    kind='topology', subjects=lambda host,
    request: [request_mod.GPUTopology.ANY],
    after=lambda host, request, _: (host, dataclasses.replace(
        request, topology=request_mod.GPUTopology.ANY)),
    text='request gpgpu:topology={name} instead of {request.topology}')
_FEWER = _Change(
    kind='fewer', subjects=_counts, after=_with_count,
    text='request {name} of {request.demands[0].resource_class} instead of '
         '{request.demands[0].count}')

ADVICE: Mapping[str, Sequence[_Change]] = {
    _Reason.HOST_DRAINING: [_host_change(
        'undrain', lambda host: [host.name],
        lambda host, names: dataclasses.replace(host, groups=tuple(
            dataclasses.replace(group, draining=False)
            for group in host.groups)),
        'undrain the host: gpgpu-manage host undrain {name}')],
    _Reason.TYPE_DISABLED: [_host_change(
        'enable_type', _types, _with_types,
        'enable {name}: gpgpu-manage vgpu-type enable {host.name} '
        '{name}')],
    **dict.fromkeys((
        _Reason.NOT_ENOUGH_AVAILABLE, _Reason.TYPE_CONFLICT,
        _Reason.DRIVER_HAS_NO_ROOM, _Reason.LINK_PARTITION,
        _Reason.NUMA_POLICY_REQUIRED), (*_GPUS, _FEWER)),
    **dict.fromkeys((
        _Reason.TOPOLOGY_SAME_NUMA, _Reason.TOPOLOGY_SAME_SWITCH,
        _Reason.TOPOLOGY_LINKED), (*_GPUS, _TOPOLOGY, _FEWER)),
}
"""Changes by the reason that they may remove, in the order of their lines."""
