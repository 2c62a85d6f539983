# SPDX-License-Identifier: Apache-2.0
"""The scheduler's view of the groups of all hosts.

It is kept between decisions; one call per decision fetches the changes, and
one every ten seconds while nobody decides. What the conductor did not find
among them, since it was committed too late (conductor.scheduler_feed), is
found when the hosts are read again: one page after the other, each with some
call.
"""

from __future__ import annotations

import collections
import itertools
import threading
import time
import typing
import uuid
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.domain.allocation import feasibility
from gpgpu_plugin.domain.allocation import offer as offer_rules
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.scheduler_filters import conductor_messages
from gpgpu_plugin.scheduler_filters import pending

if typing.TYPE_CHECKING:
    from gpgpu_plugin.compute import nova_types


LOG = logging.getLogger(__name__)

READ_AGAIN = 10.0
"""Seconds after which a decision reads another page of hosts again: 10,000
hosts are read again in four minutes."""

_OVERLAP = 1.0
"""Seconds that a choice may be on its way to one of the conductors."""

MAX_KINDS = 1000
"""Different requests whose outcome is remembered for each host."""


class SchedulerView:
    """Hosts as they are now, as far as the conductor has told.

    It is changed by one thread while others decide with it: a decision takes
    each host as it is when it comes to it. A copy for each decision would
    cost more than the decision, in a large cloud.

    :ivar hosts: by node UUID, which is the UUID of Nova's compute node
    :ivar offers: in how many hosts there is each
    :ivar pending: choices that the conductor does not know yet
    :ivar mix: requests of the cloud; None: too few are known
    :ivar changed: hosts that changed; emptied by the one who weighs hosts
    :param observer: as of ``pending.PendingChoices``
    """

    def __init__(self, observer: pending.Observer = pending.ignore) -> None:
        self.hosts: dict[str, SchedulerHost] = {}
        self.offers: collections.Counter[Offer] = (
            collections.Counter())
        self.pending = pending.PendingChoices(observer=observer)
        self.changed: set[str] = set()
        self.mix: scheduling_obj.RequestMix | None = None
        self._kinds: dict[tuple[request_mod.Request, int | None], int] = {}
        self._numbers = itertools.count()
        # In how many offers of hosts there is each resource class.
        self._classes: collections.Counter[str] = collections.Counter()

    def kind(self, request: request_mod.Request,
             guest_nodes: int | None) -> int | None:
        """Return a number for a request and the guest's NUMA nodes.

        :returns: None: there were too many different ones to remember more
        """
        number = self._kinds.get((request, guest_nodes))
        if number is None and len(self._kinds) < MAX_KINDS:
            # Of two threads with the same request one gets the other's.
            number = self._kinds.setdefault(
                (request, guest_nodes), next(self._numbers))
        return number

    def has_class(self, resource_class: str) -> bool:
        """Return whether some group has a resource class."""
        return resource_class in self._classes

    def own_demands(self,
                    request: request_mod.Request) -> request_mod.Request:
        """Return the part of a request that is for the plugin's classes."""
        return request.own(self._classes)

    def update(self, changed: Iterable[scheduling_obj.HostMasks]) -> None:
        """Change hosts, those excepted of which a newer state is known."""
        for sent in changed:
            known = self.hosts.get(sent.node_uuid)
            if (known is not None and known.sent.version.generation
                    > sent.version.generation):
                continue
            self._replace(sent.node_uuid, known, None if sent.deleted
                          else SchedulerHost(sent))
            self.pending.confirm(sent)
            self.changed.add(sent.node_uuid)

    def add_choices(self,
                    choices: Iterable[scheduling_obj.SchedulerChoice]) -> None:
        """Take choices of other schedulers that no host shows yet."""
        self.pending.expire()
        for choice in choices:
            known = self.hosts.get(choice.node_uuid)
            if known is not None and scheduling_obj.short_id(
                    choice.instance_uuid) not in known.sent.instances:
                self.pending.add_other(
                    choice.node_uuid, choice.instance_uuid, choice.request)

    def _replace(self, node_uuid: str,
                 known: SchedulerHost | None,
                 new: SchedulerHost | None) -> None:
        # No decision must miss a class that the host has before and after.
        if new is not None:
            for offer in new.offers:
                self.offers[offer] += 1
                self._classes[offer.resource_class] += 1
            self.hosts[node_uuid] = new
        else:
            self.hosts.pop(node_uuid, None)
        if known is not None:
            self._drop(known.offers)

    def _drop(self, offers: Iterable[Offer]) -> None:
        for offer in offers:
            self.offers[offer] -= 1
            if not self.offers[offer]:
                del self.offers[offer]
            self._classes[offer.resource_class] -= 1
            if not self._classes[offer.resource_class]:
                del self._classes[offer.resource_class]

    def is_restored(self, changed: Iterable[scheduling_obj.HostMasks],
                    ) -> bool:
        """Return whether a host lost changes, since its database was restored.

        What is older in every respect is only late.
        """
        both = ((self.hosts.get(host.node_uuid), host.version)
                for host in changed)
        return any(
            known is not None
            and known.sent.version.generation > version.generation
            and known.sent.version.changed_at < version.changed_at
            for known, version in both)


class SchedulerViewCache:
    """Cache of the newest view. Thread-safe.

    :ivar refused: what is sent with the next call
    :ivar requests: the same

    The view is read in pages. Pages that were read stay if a call fails, and
    the next call goes on from there.

    :param start: starts to send choices
    """

    def __init__(
            self, api: conductor_client.ConductorAPI,
            clock: Callable[[], float] = time.monotonic,
            start: conductor_messages.Start = conductor_messages.in_thread,
            ) -> None:
        self._api = api
        self._clock = clock
        self._sender = conductor_messages.ChoiceSender(api, start)
        # Of this scheduler, or of this worker of it.
        self._identity = str(uuid.uuid4())
        self.refused = conductor_messages.RefusalBuffer()
        self.requests = conductor_messages.RequestCounter()
        self._lock = threading.Lock()
        self._failed_at = float('-inf')
        self._error: exception.ConductorUnavailable | None = None
        # When a page was read again; None: never.
        self._read_again_at: float | None = None
        self._forget()

    def _forget(self) -> None:
        self._view = SchedulerView(self._chose)
        # When choices of other schedulers were fetched last.
        self._heard_at = float('-inf')
        # When the last refresh of this view began.
        self._fetched_at = float('-inf')
        # As of objects.scheduling.Changes; 0: the view is not complete.
        self._since = 0.0
        self._next_since = 0.0
        self._marker: int | None = None
        # Of the page that is read again next.
        self._marker_again = 0
        # Versions of the hosts that changed since then, deleted ones too.
        self._recent: dict[int, scheduling_obj.HostVersion] = {}

    @property
    def last(self) -> SchedulerView:
        """The view as it was read last; it may be out of date."""
        return self._view

    def refresh(self) -> SchedulerView:
        """Fetch the changes, usually in one call, and return the new view.

        Callers that waited for a call of another share its outcome, so that
        none waits for more than two calls.

        :raises ConductorUnavailable: the view may be out of date
        """
        asked_at = self._clock()
        with self._lock:
            if self._error is not None and self._failed_at > asked_at:
                # Without the frames of those who raised it before.
                raise self._error.with_traceback(None)
            if self._fetched_at <= asked_at:
                self._fetch_all()
            return self._view

    def _fetch_all(self) -> None:
        began_at = self._clock()
        try:
            while not self._fetch():
                pass
        except exception.ConductorUnavailable as exc:
            self._error, self._failed_at = exc, self._clock()
            raise
        self._fetched_at = began_at
        if self._read_again_at is None:
            self._read_again_at = began_at
        if began_at - self._read_again_at >= READ_AGAIN:
            self._read_again_at = began_at
            self._read_again()

    def _read_again(self) -> None:
        """Read a page of hosts, whether they changed or not."""
        try:
            changes = self._api.changes_since(
                gpgpu_context.current(), 0.0, (), self._marker_again)
        except exception.ConductorUnavailable as exc:
            # The decision does not need it.
            LOG.debug('Cannot read some hosts again: %s', exc)
            return
        self._view.update(scheduling_obj.unpack(changes.packed))
        self._marker_again = changes.marker or 0

    def exact_host(self, request: scheduling_obj.ExactRequest,
                   ) -> scheduling_obj.ExactHost:
        """Ask for the host of named devices, which the view does not have.

        :raises ConductorUnavailable: no conductor answered
        """
        return self._api.exact_host(gpgpu_context.current(), request)

    def keep_fresh(self, period: float) -> None:
        """Fetch the changes if a refusal waits, or nobody did for a period.

        :param period: seconds
        :raises ConductorUnavailable: what was read stays
        """
        if (self.refused.oldest()
                or self._clock() - self._fetched_at >= period):
            self.refresh()

    def _chose(self, node_uuid: str, instance_uuid: str,
               request: request_mod.Request) -> None:
        self._sender.send(scheduling_obj.SchedulerChoice(
            scheduler=self._identity, node_uuid=node_uuid,
            instance_uuid=instance_uuid, request=request))

    def _call(self) -> scheduling_obj.Changes:
        sent, arrived = self.refused.oldest(), self.requests.arrived()
        mix, began_at = self._view.mix, self._clock()
        changes = self._api.changes_since(
            gpgpu_context.current(), self._since,
            tuple(self._recent.values()) if self._since else (),
            self._marker, sent, arrived, 0 if mix is None else mix.version,
            min(began_at - self._heard_at + _OVERLAP, scheduling_obj.LIFETIME))
        if changes.recorded:
            self.refused.recorded(sent)
            self.requests.recorded(arrived)
        self._heard_at = began_at
        return changes

    def _fetch(self) -> bool:
        """Fetch one page.

        :returns: whether the view is complete, and as of this call
        """
        continued = self._marker is not None
        changes = self._call()
        hosts = scheduling_obj.unpack(changes.packed)
        if changes.anew:
            # A database that was set up anew has another mix.
            self._forget()
        elif self._view.is_restored(hosts):
            self._forget()
            return False
        if changes.mix is not None:
            self._view.mix = changes.mix
        if hosts:
            self._view.update(hosts)
            self._recent |= {host.version.id: host.version for host in hosts}
        self._view.add_choices(choice for choice in changes.choices
                               if choice.scheduler != self._identity)
        if changes.anew or not continued:
            self._next_since = changes.since
        self._marker = changes.marker
        if self._marker is not None:
            return False
        self._since = self._next_since
        self._recent = {
            version.id: version for version in self._recent.values()
            if version.changed_at >= self._since}
        # Hosts of the first page may have changed while others were read.
        return not continued


# -- One host in the view of a scheduler.


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
                   guest_nodes: frozenset[int], sockets: offer_rules.Sockets,
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
