# SPDX-License-Identifier: Apache-2.0
"""Choice of the NUMA nodes of a guest, together with its GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import region
from gpgpu_plugin.domain.allocation import request as request_mod

Choices = Sequence[frozenset[int]]
"""Sets of the host's NUMA nodes that can take the guest, the best first."""


def allocate_near(
        offers: Mapping[str, offer_mod.TypeOffer],
        request: request_mod.Request,
        policies: Mapping[str, request_mod.AllocationPolicy],
        choices: Choices,
        sockets: region.Sockets = ()) -> allocate.Selections:
    """Select GPUs for the first choice that has enough on its own nodes.

    If none has, they are for the first choice for which the NUMA policies
    allow other GPUs.

    :param choices: at least one
    :param sockets: as of ``allocate``
    :raises Unsatisfiable: with the reason for the first choice
    """
    refusals: list[request_mod.Unsatisfiable] = []
    for wanted in _tiers(request):
        refusals.clear()
        for choice in choices:
            try:
                return allocate.allocate(
                    offers, wanted, policies, choice, sockets)
            except request_mod.Unsatisfiable as exc:
                refusals.append(exc)
    raise refusals[0]


def nearest(gpu_nodes: frozenset[int | None], request: request_mod.Request,
            choices: Choices, sockets: region.Sockets = ()) -> frozenset[int]:
    """Return the choice for which ``allocate_near`` selected some GPUs.

    :param gpu_nodes: their NUMA nodes
    """
    for wanted in _tiers(request):
        for choice in choices:
            allowed = region.base_region(wanted, choice, sockets).numa_nodes
            if allowed is None or gpu_nodes <= allowed:
                return choice
    return choices[0]


def _tiers(request: request_mod.Request) -> list[request_mod.Request]:
    """Return the request with the strictest policy, then as it is."""
    if request.numa_affinity is None:
        return [request]
    return [dataclasses.replace(
        request, pci_numa_policy=request_mod.PCINUMAPolicy.REQUIRED), request]
