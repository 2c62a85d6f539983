# SPDX-License-Identifier: Apache-2.0
"""One host in the view of a scheduler."""

from __future__ import annotations

import typing
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from gpgpu_plugin.domain.allocation import feasibility
from gpgpu_plugin.domain.allocation import region
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj

if typing.TYPE_CHECKING:
    # Nova is not installed wherever hosts are ranked.
    from gpgpu_plugin.compute import nova_types

_MasksByClass = Mapping[str, feasibility.Masks]

_NONE: frozenset[str] = frozenset()

UNKNOWN = request_mod.Refusal(
    reason=request_mod.Reason.HOST_UNKNOWN,
    detail='the host never reported its devices')


class Offer(typing.NamedTuple):
    """A resource class of a group.

    :ivar most: units of a GPU that has no other ones
    """

    resource_class: str
    variant: str
    most: int


class SchedulerHost:
    """Masks of one host as the conductor sent them, ready for decisions.

    Immutable, but for what was worked out before: a host that changes gets
    another one.

    :ivar sent: as the conductor sent them
    :ivar providers: UUIDs of the groups' resource providers
    :ivar only: that of the only group; None: there are none or several
    """

    __slots__ = ('_masks', '_refusals', 'only', 'providers', 'sent')

    def __init__(self, sent: scheduling_obj.HostMasks) -> None:
        self.sent = sent
        self.providers = frozenset(
            group.provider_uuid for group in sent.groups)
        self.only = (sent.groups[0].provider_uuid
                     if len(sent.groups) == 1 else None)
        # By kind of request and the providers of some groups.
        self._refusals: dict[tuple[int, frozenset[str]],
                             request_mod.Refusal | None] = {}
        # By the providers of some groups; made when a decision needs them.
        self._masks: dict[frozenset[str], _MasksByClass] = {}

    @property
    def offers(self) -> frozenset[Offer]:
        """Return what its groups offer."""
        return frozenset(
            Offer(resource_class=offer.resource_class, variant=group.variant,
                  most=offer.most)
            for group in self.sent.groups for offer in group.types)

    def own(self, providers: Collection[str]) -> frozenset[str]:
        """Return those of a candidate's providers that are of its groups."""
        if self.only is not None:
            # Most hosts have one group, and this is ten times as fast.
            return self.providers if self.only in providers else _NONE
        return self.providers.intersection(providers)

    def refusal(self, own: frozenset[str], request: request_mod.Request,
                guest_nodes: int | None = None,
                ) -> request_mod.Refusal | None:
        """Return why some groups cannot meet the request; None if they can.

        :param own: UUIDs of the groups' providers
        :param guest_nodes: number of NUMA nodes of the guest; None: it has
            no NUMA topology
        """
        return feasibility.refusal(
            self._masks_of(own), request, guest_nodes)

    def offers_all(self, candidates: Iterable[nova_types.AllocationCandidate],
                   ) -> bool:
        """Return whether all candidates have the host's only group."""
        only = self.only
        if only is None:
            return False
        # A loop is twice as fast as all() here.
        for candidate in candidates:
            if only not in candidate['allocations']:
                return False
        return True

    def known_refusal(self, own: frozenset[str], request: request_mod.Request,
                      guest_nodes: int | None, kind: int | None,
                      ) -> request_mod.Refusal | None:
        """Return what ``refusal`` does; it is worked out once.

        :param kind: number that the view gave to the request and its nodes;
            None: do not remember it
        """
        if kind is None:
            return self.refusal(own, request, guest_nodes)
        try:
            return self._refusals[kind, own]
        except KeyError:
            found = self._refusals[kind, own] = self.refusal(
                own, request, guest_nodes)
            return found

    def refusal_on(self, own: frozenset[str], request: request_mod.Request,
                   guest_nodes: frozenset[int], sockets: region.Sockets,
                   ) -> request_mod.Refusal | None:
        """Return why some groups cannot have the guest on these NUMA nodes.

        :param own: UUIDs of the groups' providers
        :param sockets: the NUMA nodes of each of the host's sockets; empty:
            unknown
        """
        return feasibility.refusal_on(
            self._masks_of(own), request, guest_nodes, sockets)

    def _masks_of(self, own: frozenset[str]) -> _MasksByClass:
        masks = self._masks.get(own)
        if masks is None:
            masks = self._masks[own] = {
                offer.resource_class: feasibility.Masks(
                    free=offer.free, available=offer.available,
                    numa=group.numa, numa_nodes=group.numa_nodes,
                    switches=group.switches, alone=group.alone,
                    partitions=offer.partitions, fabric=offer.fabric,
                    problem=offer.problem)
                for group in self.sent.groups if group.provider_uuid in own
                for offer in group.types}
        return masks
