# SPDX-License-Identifier: Apache-2.0
"""Plan of where instances go that leave their hosts, one after the other.

The largest instance comes first, and each goes to the fullest host that takes
it. A host after a claim is a value, for which GPUs and their devices are
selected by the same functions as in a claim of the conductor. That an instance
is left over is no proof: in another order it might fit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import group as group_mod
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import why_not
from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod

Amounts = dict[str, dict[str, int]]
"""Amounts by the UUID of a provider and by resource class."""

_Free = dict[tuple[str, str], int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceKind:
    """Request that some of the instances have in common.

    :ivar request: the demands for the plugin's classes, in a plan no others
    :ivar guest_nodes: number of NUMA nodes of the guest; None: it has no
        NUMA topology
    :ivar options: by the UUID of a compute node, what Placement would
        allocate there, one of these
    :ivar closed: names of hosts that Nova does not select for it; a plan has
        no options on them
    """

    request: request_mod.Request
    guest_nodes: int | None = None
    options: dict[str, tuple[Amounts, ...]] = dataclasses.field(
        default_factory=dict)
    closed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Targets of instances, and the hosts when all have moved.

    :ivar targets: node by the number of the instance, in the order in which
        they move; None: it fits nowhere, after all others
    :ivar hosts: by the UUID of their node
    """

    targets: Mapping[int, str | None]
    hosts: Mapping[str, why_not.ExaminedHost]


def plan(hosts: Mapping[str, why_not.ExaminedHost], free: Amounts,
         kinds: Sequence[InstanceKind], leaving: Sequence[int]) -> Plan:
    """Return where instances go.

    :param hosts: all of the options, by the UUID of their node; they have the
        groups that are requested
    :param free: what Placement can still allocate
    :param leaving: number of the kind of each instance
    """
    hosts = dict(hosts)
    left = _flat(free)
    sizes = [_gpus(kind, hosts) for kind in kinds]
    order = sorted(range(len(leaving)), key=lambda one: -sizes[leaving[one]])
    options = [dict(kind.options) for kind in kinds]
    targets: dict[int, str] = {}
    stay: dict[int, None] = {}
    for one in order:
        number = leaving[one]
        target = _target(kinds[number], options[number], hosts, left)
        if target is None:
            stay[one] = None
            continue
        node, amounts, hosts[node] = target
        targets[one] = node
        for key, amount in _flat(amounts).items():
            left[key] -= amount
    return Plan(hosts=hosts, targets={**targets, **stay})


def _gpus(kind: InstanceKind,
          hosts: Mapping[str, why_not.ExaminedHost]) -> float:
    """Return how many GPUs a request takes; a vGPU is a part of one."""
    for node in kind.options:
        asked = [(demand.count, *hosts[node].offered[demand.resource_class])
                 for demand in kind.request.demands]
        return sum(count / max([1, *group.max_instances(offered)])
                   for count, group, offered in asked)
    return 0.0


def _flat(amounts: Amounts) -> _Free:
    return {(provider, name): amount
            for provider, resources in amounts.items()
            for name, amount in resources.items()}


def _target(kind: InstanceKind, options: dict[str, tuple[Amounts, ...]],
            hosts: Mapping[str, why_not.ExaminedHost], free: _Free,
            ) -> tuple[str, Amounts, why_not.ExaminedHost] | None:
    """Return the fullest host that takes a kind, and itself after that.

    It comes with what Placement would allocate there. None: no host does.

    :param options: of the kind; those of hosts that refuse are removed, since
        hosts only get fuller
    """
    for node in sorted(options, key=lambda node: (
            _available(hosts[node], kind.request), hosts[node].name)):
        amounts = next((option for option in options[node] if all(
            free.get(key, 0) >= amount
            for key, amount in _flat(option).items())), None)
        host = None if amounts is None else after_claim(
            hosts[node], kind.request, kind.guest_nodes)
        if amounts is not None and host is not None:
            return node, amounts, host
        del options[node]
    return None


def after_claim(host: why_not.ExaminedHost, request: request_mod.Request,
                guest_nodes: int | None = None) -> why_not.ExaminedHost | None:
    """Return a host after the claim of a request; None: it is refused.

    A guest with a NUMA topology gets GPUs as if all NUMA nodes of the host had
    the vCPUs and RAM for it: only the host knows which of them have.

    :param guest_nodes: as of ``findings``
    """
    if why_not.findings(host, request, guest_nodes):
        return None
    taken: dict[str, list[offer_mod.Selection]] = {}
    for resource_class, units in _selected(
            host, request, guest_nodes).items():
        group, _ = host.offered[resource_class]
        taken.setdefault(group.provider_uuid, []).extend(units)
    return dataclasses.replace(host, groups=tuple(
        _group_after(group, taken.get(group.provider_uuid, ()))
        for group in host.groups))


def _available(host: why_not.ExaminedHost,
               request: request_mod.Request) -> int:
    """Return how many units of a request's classes a host has left."""
    asked = [host.offered[demand.resource_class]
             for demand in request.demands]
    return sum(group.available(offered) for group, offered in asked)


def _selected(host: why_not.ExaminedHost, request: request_mod.Request,
              guest_nodes: int | None) -> allocate.Selections:
    offers = host.offers(request)
    policies = {name: host.offered[name][0].allocation_policy
                for name in offers}
    selected = None
    if guest_nodes is not None:
        # The policy "socket" allows more nodes, but sockets are not known.
        with contextlib.suppress(request_mod.Unsatisfiable):
            selected = allocate.allocate_near(
                offers, request, policies, _choices(offers, guest_nodes))
    if selected is None:
        selected = allocate.allocate(
            offers, why_not.anywhere(request), policies)
    return dict(sorted(selected.items()))


def _choices(offers: Mapping[str, offer_mod.TypeOffer],
             guest_nodes: int) -> list[frozenset[int]]:
    """Return the sets of so many NUMA nodes that have GPUs.

    If they are many, the first are returned: a claim has those that Nova
    found room on.
    """
    nodes = sorted({gpu.numa_node for offer in offers.values()
                    for gpu in offer.gpus if gpu.numa_node is not None})
    return [frozenset(chosen) for chosen in itertools.islice(
        itertools.combinations(nodes, min(guest_nodes, len(nodes))),
        allocate.MAX_PLACE_COMBINATIONS)]


def _group_after(group: group_mod.GroupCapacity,
                 units: Iterable[offer_mod.Selection],
                 ) -> group_mod.GroupCapacity:
    taken: dict[str, group_mod.Device] = {}
    for unit in units:
        device = group_mod.device_of_unit(group, unit, taken)
        is_whole = unit.vgpu_type == naming.PASSTHROUGH
        taken[device.id] = dataclasses.replace(
            device, state=device_rules.DeviceState.ASSIGNED,
            vgpu_type=device.vgpu_type if is_whole else unit.vgpu_type,
            placement_id=unit.placement_id)
    if not taken:
        return group
    known = {device.id for device in group.devices}
    return dataclasses.replace(group, devices=(
        *(taken.get(device.id, device) for device in group.devices),
        *(device for device in taken.values() if device.id not in known)))
