# SPDX-License-Identifier: Apache-2.0
"""The host after a claim, as values.

GPUs and their devices are selected by the same functions as in a claim of the
conductor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable
from collections.abc import Mapping

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import group as group_mod
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import unit_device
from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import guest_nodes as guest_nodes_mod
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.allocation import whole_gpus
from gpgpu_plugin.domain.why_not import host as host_mod

_Units = list[offer_mod.Selection]


def after(host: host_mod.Host, request: request_mod.Request,
          guest_nodes: int | None = None) -> host_mod.Host | None:
    """Return a host after the claim of a request; None: it is refused.

    A guest with a NUMA topology gets GPUs as if all NUMA nodes of the host had
    the vCPUs and RAM for it: only the host knows which of them have.

    :param guest_nodes: as of ``findings``
    """
    if host_mod.findings(host, request, guest_nodes):
        return None
    taken: dict[str, _Units] = {}
    for resource_class, units in _selected(
            host, request, guest_nodes).items():
        found = host.offered(resource_class)
        assert found is not None
        taken.setdefault(found[0].provider_uuid, []).extend(units)
    return dataclasses.replace(host, groups=tuple(
        _group_after(group, taken.get(group.provider_uuid, ()))
        for group in host.groups))


def available(host: host_mod.Host, request: request_mod.Request) -> int:
    """Return how many units of a request's classes a host has left."""
    found = [host.offered(demand.resource_class)
             for demand in request.demands]
    return sum(group.available(offered)
               for group, offered in filter(None, found))


def _selected(host: host_mod.Host, request: request_mod.Request,
              guest_nodes: int | None) -> allocate.Selections:
    offers: dict[str, offer_mod.TypeOffer] = {}
    policies: dict[str, request_mod.AllocationPolicy] = {}
    for demand in request.demands:
        found = host.offered(demand.resource_class)
        assert found is not None
        group, offered = found
        offers[demand.resource_class] = group.offer(offered)
        policies[demand.resource_class] = group.allocation_policy
    selected = None
    if guest_nodes is not None:
        # The policy "socket" allows more nodes, but sockets are not known.
        with contextlib.suppress(request_mod.Unsatisfiable):
            selected = guest_nodes_mod.allocate_near(
                offers, request, policies, _choices(offers, guest_nodes))
    if selected is None:
        selected = allocate.allocate(
            offers, host_mod.anywhere(request), policies)
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
        whole_gpus.MAX_COMBINATIONS)]


def _group_after(group: group_mod.GroupCapacity,
                 units: Iterable[offer_mod.Selection],
                 ) -> group_mod.GroupCapacity:
    taken: dict[str, group_mod.Device] = {}
    for unit in units:
        device = unit_device.of_unit(group, unit, taken)
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
