# SPDX-License-Identifier: Apache-2.0
"""Scores of the hosts of one view, and their ranks.

A score is worked out once for each state of a host and each kind of request.
A decision compares what the scores were made of, and works out the others.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from collections.abc import Sequence

from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.weighing import host as weighing_host
from gpgpu_plugin.domain.weighing import policies
from gpgpu_plugin.domain.weighing import policy as policy_mod
from gpgpu_plugin.domain.weighing import vgpus
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.scheduler_filters import prediction
from gpgpu_plugin.scheduler_filters import scheduler_host
from gpgpu_plugin.scheduler_filters import scheduler_view
from gpgpu_plugin.scheduler_weights import catalogue as catalogue_mod
from gpgpu_plugin.scheduler_weights import weighed_host

if typing.TYPE_CHECKING:
    # Nova is not installed wherever hosts are ranked.
    from gpgpu_plugin.compute import nova_types

TOP = 15.0
"""The highest rank. With a multiplier of 100 two ranks differ by 6.67, more
than Nova's weighers for host resources can differ together (6)."""

_NONE: tuple[()] = ()
_UNFIT = weighed_host.Score(policy_mod.UNFIT, 0)
_LATER = weighed_host.Score(-1e9, 0)
"""Score of a host for which a decision had no time: the last choice."""
_DIGITS = 6
_MOST_KINDS = 1000
_MOST_CHOICES = 200_000
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
    best = sorted(set(rounded) - {policy_mod.UNFIT}, reverse=True)
    rank = {score: max(TOP - number, 1.0)
            for number, score in enumerate(best)}
    rank[policy_mod.UNFIT] = 0.0
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
        self._hosts: dict[str, weighed_host.WeighedHost] = {}
        self._start()

    def _start(self) -> None:
        """Begin anew with other offers or another mix."""
        self._policy = policies.POLICIES[self._name]()
        self._catalogue = catalogue_mod.Catalogue(list(self.view.offers))
        self._mix = self.view.mix
        self._policy.start(self._catalogue.mix(
            () if self._mix is None else self._mix.requests,
            self._flavors), ())
        self._lost: dict[tuple[int, ...], int] = {(): 0}
        self._kinds: dict[Kind, int] = {}
        self._choices: dict[tuple[weighing_host.Host, weighing_host.Request],
                            weighed_host.Score] = {}
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
                or len(self._kinds) > _MOST_KINDS):
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

    def _recount(self, before: weighed_host.States,
                 after: weighed_host.States) -> None:
        for provider in before.keys() | after.keys():
            old, new = before.get(provider), after.get(provider)
            if old != new:
                self._policy.change(old or _nothing(new),
                                    new or _nothing(old))

    def _score(self, host: nova_types.HostState, kind: Kind, number: int,
               ) -> weighed_host.Score:
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
               known: scheduler_host.SchedulerHost,
               before: weighed_host.WeighedHost | None,
               ) -> weighed_host.WeighedHost:
        renewed = self._hosts[host.uuid] = weighed_host.WeighedHost(
            host, known,
            self.view.pending.of.get(host.uuid, _NONE))
        self._recount(before.states if before else {}, renewed.states)
        return renewed

    def _work_out(self, found: weighed_host.WeighedHost,
                  host: nova_types.HostState, kind: Kind,
                  number: weighed_host.Key) -> weighed_host.Score:
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

    def _choose(self, found: weighed_host.WeighedHost,
                groups: Sequence[scheduling_obj.GroupMasks], kind: Kind,
                ) -> weighed_host.Score:
        request, vcpus, memory_mib, guest_nodes = kind
        if not groups or (found.pending and found.expected.refusal(
                found.expected.providers, request, guest_nodes)):
            return _UNFIT
        demand = scheduling_obj.main_demand(request)
        most = self._catalogue.most(demand.resource_class)
        if most > 1:
            return weighed_host.Score(
                self._gain(groups[0], request, most), 0)
        state = found.states[groups[0].provider_uuid]
        return self._choose_whole(state, self._catalogue.request(
            vcpus, memory_mib, demand, is_linked=request.is_linked))

    def _gain(self, group: scheduling_obj.GroupMasks,
              request: request_mod.Request, most: int) -> float:
        """Return the worth of a host for vGPUs that share GPUs."""
        demand = scheduling_obj.main_demand(request)
        return vgpus.gain(
            prediction.units(prediction.offer_of(
                group, demand.resource_class)), most, demand.count,
            prediction.tiers(group, request),
            breadth_first=prediction.is_breadth_first(group, request),
            is_spread=self._name == 'spread')

    def _choose_whole(self, state: weighing_host.Host,
                      request: weighing_host.Request) -> weighed_host.Score:
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
            if len(self._choices) >= _MOST_CHOICES:
                self._choices.clear()
            score = self._choices[state, request] = self._best(
                self._policy.choices(state, request))
        return score

    def _best(self, choices: Sequence[policy_mod.Choice],
              ) -> weighed_host.Score:
        if not choices:
            return _UNFIT
        choice = choices[0]  # whole GPUs of a host are alike
        return weighed_host.Score(
            choice.gain if self._name == 'spread' else choice.packed_gain,
            self._lost.setdefault(choice.lost, len(self._lost)))


def _nothing(host: weighing_host.Host | None) -> weighing_host.Host:
    """Return a host of the same variant that has nothing."""
    return weighing_host.Host(0, 0, (), '' if host is None else host.variant)
