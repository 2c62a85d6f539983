# SPDX-License-Identifier: Apache-2.0
"""Resource classes of a cloud, and requests for them as the policy sees them.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable

from gpgpu_plugin.domain import weighing
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.scheduler_filters import scheduler_view

_NUMBERS = (1, 2, 4, 8)
"""Numbers of GPUs that requests are assumed to have, until some arrived."""

MAX_FLAVORS = 1000
"""Flavors that are read; a cloud with more of them has counts soon."""


class Catalogue:
    """Resource classes that some hosts offer.

    :ivar offers: of which it was made
    """

    def __init__(self, offers: Iterable[scheduler_view.Offer]) -> None:
        self.offers = frozenset(offers)
        self._variants: dict[str, set[str]] = collections.defaultdict(set)
        self._most: dict[str, int] = {}
        for offer in self.offers:
            self._variants[offer.resource_class].add(offer.variant)
            self._most[offer.resource_class] = max(
                offer.most, self._most.get(offer.resource_class, 1))
        self._every = frozenset(offer.variant for offer in self.offers)

    def most(self, resource_class: str) -> int:
        """Return how many units of a class one GPU has at most."""
        return self._most.get(resource_class, 1)

    def variants(self, resource_class: str) -> frozenset[str]:
        """Return the variants that offer a class; empty: all of them."""
        found = frozenset(self._variants.get(resource_class, ()))
        return frozenset() if found == self._every else found

    def request(self, vcpus: int, memory_mib: int,
                demand: request_mod.Demand | None, *,
                is_linked: bool = False) -> weighing.WeighedRequest:
        """Return a request as the policy sees it."""
        if demand is None:
            return weighing.WeighedRequest(
                1000 * vcpus, memory_mib, 0, 0, frozenset())
        most = self.most(demand.resource_class)
        whole = weighing.WHOLE
        variants = self.variants(demand.resource_class)
        if most == 1:
            return weighing.WeighedRequest(
                1000 * vcpus, memory_mib, demand.count, whole, variants,
                is_linked)
        # Several vGPUs as one large one: the policy knows no better.
        return weighing.WeighedRequest(
            1000 * vcpus, memory_mib, 1,
            max(1, min(whole, demand.count * whole // most)), variants)

    def mix(self, counted: Iterable[scheduling_obj.CountedRequests],
            flavors: Iterable[scheduling_obj.CountedRequests] = (),
            ) -> weighing.Mix:
        """Return the mix of the requests that arrived.

        :param flavors: what can be requested, all alike
        :returns: the mix of the flavors if no request had GPUs, and the
            unknown one if they have none either
        """
        counts, possible = self._counts(counted), self._counts(flavors)
        if any(request.gpus for request in counts):
            return weighing.Mix.learnt(counts, possible or counts)
        if any(request.gpus for request in possible):
            return weighing.Mix.learnt({}, possible)
        return self.unknown_mix()

    def _counts(self, counted: Iterable[scheduling_obj.CountedRequests],
                ) -> dict[weighing.WeighedRequest, float]:
        counts: dict[weighing.WeighedRequest, float] = {}
        for (vcpus, memory_mib, resource_class, units), number in counted:
            # A class that no host offers may be another service's.
            request = self.request(vcpus, memory_mib, request_mod.Demand(
                resource_class=resource_class, count=units)
                if resource_class in self._variants else None)
            counts[request] = counts.get(request, 0.0) + number
        return counts

    def unknown_mix(self) -> weighing.Mix:
        """Return the mix that is assumed until requests are known.

        All classes of whole GPUs alike, by one, two, four and eight GPUs.
        """
        return weighing.Mix.count({
            self.request(0, 0, request_mod.Demand(
                resource_class=name, count=count)): 1.0
            for name in sorted(self._variants) for count in _NUMBERS
            if self.most(name) == 1})
