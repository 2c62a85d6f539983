# SPDX-License-Identifier: Apache-2.0
"""Scores of the hosts of one view, and their ranks.

A score is worked out once for each state of a host and each kind of request.
A decision compares what the scores were made of, and works out the others.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import weighing
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.scheduler_filters import pending as pending_mod
from gpgpu_plugin.scheduler_filters import scheduler_view
from gpgpu_plugin.scheduler_weights import catalogue as catalogue_mod

if typing.TYPE_CHECKING:
    from gpgpu_plugin.compute import nova_types

# -- A host in the eyes of the policy, kept between decisions.


States = Mapping[str, weighing.HostCapacity]
"""State of each group of a host, by the UUID of its provider."""

HostKey = int | tuple[object, str]
"""Number of a kind of request; with providers, where several groups offer its
class."""

_NO_STATES: States = {}


class Score(typing.NamedTuple):
    """Worth of a host for a kind of request.

    :ivar lost: index of the lost capacity in ``Ranking._lost``; not a count
    """

    gain: float
    lost: int


class RankedHost:
    """State of a host, and its scores as of that state.

    What it is made of is compared by identity in each decision: another view,
    another pending choice or another instance makes another RankedHost.

    :ivar known: as the conductor sent it
    :ivar pending: choices that are subtracted from it
    :ivar vcpus_used: as Nova says, as is ``free_ram_mb``
    :ivar expected: ``known`` minus the GPUs of the pending choices
    :ivar states: of each group, by the UUID of its provider
    :ivar scores: by kind of request and provider
    """

    __slots__ = ('expected', 'free_ram_mb', 'known', 'pending', 'scores',
                 'states', 'vcpus_used')

    def __init__(self, host: nova_types.HostState,
                 known: scheduler_view.SchedulerHost,
                 pending: tuple[pending_mod.PendingChoice, ...]) -> None:
        self.known = known
        self.pending = pending
        self.vcpus_used = host.vcpus_used
        self.free_ram_mb = host.free_ram_mb
        self._subtract()
        self.scores: dict[HostKey, Score] = {}
        self.states = _states(
            self.expected.sent, _free_milli_vcpus(host), _free_memory(host),
            len(pending))

    def _subtract(self) -> None:
        self.expected = self.known
        if self.pending:
            sent = self.known.sent
            for choice in self.pending:
                sent = pending_mod.without_choice(sent, choice.request)
            self.expected = scheduler_view.SchedulerHost(sent)

    def update(self, known: scheduler_view.SchedulerHost,
               pending: tuple[pending_mod.PendingChoice, ...]) -> None:
        """Take another view of the GPUs; vCPUs and RAM stay as they were."""
        state = next(iter(self.states.values()), None)
        self.known, self.pending = known, pending
        self._subtract()
        self.scores = {}
        self.states = _NO_STATES if state is None else _states(
            self.expected.sent, state.milli_vcpus, state.memory_mib,
            len(pending))

    def groups(self, resource_class: str) -> list[scheduling_obj.GroupMasks]:
        """Return the groups that offer a class."""
        return [group for group in self.expected.sent.groups
                if any(offer.resource_class == resource_class
                       for offer in group.types)]


def _free_milli_vcpus(host: nova_types.HostState) -> int:
    total = host.vcpus_total * (host.cpu_allocation_ratio or 1.0)
    return max(0, int(1000 * (total - host.vcpus_used)))


def _free_memory(host: nova_types.HostState) -> int:
    total = host.total_usable_ram_mb
    used = total - host.free_ram_mb
    return max(0, int(total * (host.ram_allocation_ratio or 1.0)) - used)


def _states(sent: scheduling_obj.HostMasks, milli_vcpus: int,
            memory_mib: int, pending: int) -> States:
    guests = len(sent.instances) + pending
    return {group.provider_uuid: weighing.HostCapacity(
        milli_vcpus, memory_mib, _free(group), group.variant,
        _links(group, guests)) for group in sent.groups}


def _links(group: scheduling_obj.GroupMasks,
           guests: int) -> weighing.HostLinks | None:
    """Return the link partitions of a group's whole GPUs, if it has some.

    :param guests: instances that have GPUs of the host
    """
    return next((weighing.HostLinks(
        fabric.partitions_of(offer.partitions), offer.free, offer.fabric,
        guests)
        for offer in group.types if offer.partitions or offer.fabric), None)


def _free(group: scheduling_obj.GroupMasks) -> tuple[int, ...]:
    """Return the free units of each GPU that has some, in ascending order."""
    units: dict[int, int] = {}
    for offer in group.types:
        for gpu in range(offer.free.bit_length()):
            if offer.free >> gpu & 1:
                share = (offer.available[gpu] if offer.available else 1
                         ) * weighing.WHOLE // offer.most
                units[gpu] = max(units.get(gpu, 0), share)
    return tuple(sorted(units.values()))


# -- Scores of the hosts of one view, and their ranks.


TOP = 15.0
"""The highest rank. With a multiplier of 100 two ranks differ by 6.67, more
than Nova's weighers for host resources can differ together (6)."""

_NONE: tuple[()] = ()
_UNFIT = Score(weighing.UNFIT, 0)
_LATER = Score(-1e9, 0)
"""Score of a host for which a decision had no time: the last choice."""
_DIGITS = 6
_MAX_KINDS = 1000
_MAX_CHOICES = 200_000
NEW = 1000
"""States that one decision works out, in about a tenth of a second. Other
hosts whose state is new are the last choice until the next decision."""

Kind = tuple[request_mod.Request, int, int, int | None]


def ranks(scores: Sequence[float]) -> list[float]:
    """Return 0 to TOP; the best scores have ranks of their own.

    Hosts that a request is not expected to fit on have 0. Scores that differ
    by less than a millionth are equal: only arithmetic tells them apart.
    """
    rounded = [round(score, _DIGITS) for score in scores]
    best = sorted(set(rounded) - {weighing.UNFIT}, reverse=True)
    rank = {score: max(TOP - number, 1.0)
            for number, score in enumerate(best)}
    rank[weighing.UNFIT] = 0.0
    return [rank[score] for score in rounded]


class Ranking:
    """Hosts of one view by a policy. Not thread-safe.

    :param flavors: one request of each kind that flavors make; they are the
        mix until the view has one, and part of it afterwards
    :ivar view: whose hosts it knows
    """

    def __init__(self, view: scheduler_view.SchedulerView, policy: str,
                 flavors: Sequence[scheduling_obj.CountedRequests] = (),
                 ) -> None:
        self.view = view
        self._flavors = flavors
        self._name = policy
        self._hosts: dict[str, RankedHost] = {}
        self._start()

    def _start(self) -> None:
        """Begin anew with other offers or another mix."""
        self._policy = weighing.POLICIES[self._name]()
        self._catalogue = catalogue_mod.Catalogue(list(self.view.offers))
        self._mix = self.view.mix
        self._policy.start(self._catalogue.mix(
            () if self._mix is None else self._mix.requests,
            self._flavors), ())
        self._lost: dict[tuple[int, ...], int] = {(): 0}
        self._kinds: dict[Kind, int] = {}
        self._choices: dict[tuple[weighing.HostCapacity,
                                  weighing.WeighedRequest],
                            Score] = {}
        for host in self._hosts.values():
            host.scores = {}
            self._recount({}, host.states)

    def scores(self, hosts: Iterable[nova_types.HostState], kind: Kind,
               ) -> list[float]:
        """Return how good each host is for a request; more is better."""
        self._refresh()
        self._left = NEW
        number = self._kinds.setdefault(kind, len(self._kinds))
        found = [self._score(host, kind, number) for host in hosts]
        prices = [self._policy.price(lost) if lost else 0.0
                  for lost in self._lost]
        return [gain - prices[lost] for gain, lost in found]

    def _refresh(self) -> None:
        """Take what changed since the last decision."""
        self.view.pending.expire()
        if (self.view.offers.keys() != self._catalogue.offers
                or self.view.mix is not self._mix
                or len(self._kinds) > _MAX_KINDS):
            self._start()
        changed, self.view.changed = self.view.changed, set()
        for node_uuid in changed & self._hosts.keys():
            self._changed(node_uuid)

    def _changed(self, node_uuid: str) -> None:
        """Count a host's scarce capacity anew, though it may be no candidate.
        """
        host = self._hosts[node_uuid]
        known = self.view.hosts.get(node_uuid)
        before = dict(host.states)
        if known is None:
            del self._hosts[node_uuid]
            self._recount(before, {})
        else:
            host.update(known, self.view.pending.of.get(node_uuid, ()))
            self._recount(before, host.states)

    def _recount(self, before: States,
                 after: States) -> None:
        for provider in before.keys() | after.keys():
            old, new = before.get(provider), after.get(provider)
            if old != new:
                self._policy.change(old or _nothing(new),
                                    new or _nothing(old))

    def _score(self, host: nova_types.HostState, kind: Kind, number: int,
               ) -> Score:
        node_uuid = host.uuid
        known = self.view.hosts.get(node_uuid)
        found = self._hosts.get(node_uuid)
        if (found is None or found.known is not known
                or found.vcpus_used != host.vcpus_used
                or found.free_ram_mb != host.free_ram_mb
                or found.pending is not self.view.pending.of.get(
                    node_uuid, _NONE)):
            if known is None:
                return _UNFIT
            found = self._renew(host, known, found)
        score = found.scores.get(number)
        return self._work_out(found, host, kind, number) if (
            score is None) else score

    def _renew(self, host: nova_types.HostState,
               known: scheduler_view.SchedulerHost,
               before: RankedHost | None,
               ) -> RankedHost:
        renewed = self._hosts[host.uuid] = RankedHost(
            host, known,
            self.view.pending.of.get(host.uuid, _NONE))
        self._recount(before.states if before else {}, renewed.states)
        return renewed

    def _work_out(self, found: RankedHost,
                  host: nova_types.HostState, kind: Kind,
                  number: HostKey) -> Score:
        """Return the score of a host, and remember it."""
        request, *_ = kind
        groups = found.groups(
            scheduling_obj.main_demand(request).resource_class)
        if len(groups) > 1:
            # The candidate that Nova takes says which one it is.
            own = found.known.own(
                host.allocation_candidates[0]['allocations'])
            groups = [group for group in groups
                      if group.provider_uuid in own]
            number = (number, ','.join(sorted(own)))
            if number in found.scores:
                return found.scores[number]
        score = self._choose(found, groups, kind)
        if score is not _LATER:
            found.scores[number] = score
        return score

    def _choose(self, found: RankedHost,
                groups: Sequence[scheduling_obj.GroupMasks], kind: Kind,
                ) -> Score:
        request, vcpus, memory_mib, guest_nodes = kind
        if not groups or (found.pending and found.expected.refusal(
                found.expected.providers, request, guest_nodes)):
            return _UNFIT
        demand = scheduling_obj.main_demand(request)
        most = self._catalogue.most(demand.resource_class)
        if most > 1:
            return Score(
                self._gain(groups[0], request, most), 0)
        state = found.states[groups[0].provider_uuid]
        return self._choose_whole(state, self._catalogue.request(
            vcpus, memory_mib, demand, is_linked=request.is_linked))

    def _gain(self, group: scheduling_obj.GroupMasks,
              request: request_mod.Request, most: int) -> float:
        """Return the worth of a host for vGPUs that share GPUs."""
        demand = scheduling_obj.main_demand(request)
        return weighing.vgpu_gain(
            pending_mod.units(pending_mod.offer_of(
                group, demand.resource_class)), most, demand.count,
            pending_mod.tiers(group, request),
            breadth_first=pending_mod.is_breadth_first(group, request),
            is_spread=self._name == 'spread')

    def _choose_whole(self, state: weighing.HostCapacity,
                      request: weighing.WeighedRequest) -> Score:
        """Return the score for whole GPUs.

        Nova has found enough vCPUs and RAM, by rules of its own.
        """
        state = state._replace(
            milli_vcpus=max(state.milli_vcpus, request.milli_vcpus),
            memory_mib=max(state.memory_mib, request.memory_mib))
        score = self._choices.get((state, request))
        if score is None:
            if not self._left:
                return _LATER
            self._left -= 1
            if len(self._choices) >= _MAX_CHOICES:
                self._choices.clear()
            score = self._choices[state, request] = self._best(
                self._policy.choices(state, request))
        return score

    def _best(self, choices: Sequence[weighing.PolicyChoice],
              ) -> Score:
        if not choices:
            return _UNFIT
        choice = choices[0]  # whole GPUs of a host are alike
        return Score(
            choice.gain if self._name == 'spread' else choice.packed_gain,
            self._lost.setdefault(choice.lost, len(self._lost)))


def _nothing(host: weighing.HostCapacity | None) -> weighing.HostCapacity:
    """Return a host of the same variant that has nothing."""
    return weighing.HostCapacity(0, 0, (),
                                 '' if host is None else host.variant)


# -- Special capabilities of hosts, which requests without GPUs do not need.
#
# Each is a tag. A host with groups of GPUs has the tag ``GPU``; the metadata
# of its aggregates in Nova adds others. Only their number counts.


KEY = 'gpgpu:tags'
"""Metadata of an aggregate: tags of its hosts, separated by commas."""

GPU = 'GPU'
"""The tag of hosts with groups of GPUs."""

_NO_TAGS: frozenset[str] = frozenset()
_ONLY_GPU = frozenset({GPU})


def capability_ranks(hosts: Iterable[nova_types.HostState],
                     gpu_hosts: Mapping[str, scheduler_view.SchedulerHost],
                     ) -> list[float]:
    """Return the ranks of hosts for a request without GPUs.

    It is the highest one for a host without tags, and lower by one for each.

    :param gpu_hosts: hosts that have reported to the conductor, by the UUID of
        their compute node
    """
    # Nova's hosts share their aggregates, whose fields are slow to read.
    read: dict[int, frozenset[str]] = {}
    found = []
    for host in hosts:
        known = gpu_hosts.get(host.uuid)
        tags = (_ONLY_GPU if known is not None and known.providers
                else _NO_TAGS)
        for aggregate in host.aggregates:
            if id(aggregate) not in read:
                read[id(aggregate)] = _tags(aggregate)
            tags |= read[id(aggregate)]
        found.append(max(TOP - len(tags), 0.0))
    return found


def _tags(aggregate: nova_types.Aggregate) -> frozenset[str]:
    return frozenset(
        tag for text in aggregate.metadata.get(KEY, '').split(',')
        if (tag := text.strip()))
