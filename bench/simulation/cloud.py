# SPDX-License-Identifier: Apache-2.0
"""Hosts of a simulated cloud, and the best choice for a request."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence

from gpgpu_plugin.domain import weighing

_UNFIT = weighing.UNFIT
_MOST_CHOICES = 200_000


class _Column:
    """One choice of every host for a request: gain, and what is lost."""

    def __init__(self, hosts: int) -> None:
        self.gains = [_UNFIT] * hosts
        self.lost = [0] * hosts


class _Ranking:
    """Choices of all hosts for one request.

    :ivar seen: number of the cloud's changes that are in it
    """

    def __init__(self) -> None:
        self.seen = -1
        self.columns: list[_Column] = []
        self.lost: dict[tuple[int, ...], int] = {}

    def set(self, index: int, hosts: int,
            choices: Sequence[weighing.PolicyChoice]) -> None:
        """Replace the choices of a host."""
        while len(self.columns) < len(choices):
            self.columns.append(_Column(hosts))
        for number, column in enumerate(self.columns):
            if number < len(choices):
                choice = choices[number]
                column.gains[index] = choice.gain
                column.lost[index] = self.lost.setdefault(
                    choice.lost, len(self.lost))
            else:
                column.gains[index] = _UNFIT

    def scores(self, column: _Column, policy: weighing.Policy,
               ) -> list[float]:
        """Return the scores of one column as of now."""
        if len(self.lost) == 1 and not any(self.lost):
            return column.gains
        prices = [policy.price(lost) for lost in self.lost]
        return [gain - prices[lost] for gain, lost in
                zip(column.gains, column.lost, strict=True)]


class Cloud:
    """Hosts in a fixed order; of equal scores the first host is taken."""

    def __init__(self, hosts: Iterable[weighing.HostCapacity],
                 policy: weighing.Policy, mix: weighing.Mix) -> None:
        self.hosts = list(hosts)
        self._policy = policy
        self._changed: list[int] = []
        self.use_mix(mix)

    def use_mix(self, mix: weighing.Mix) -> None:
        """Give the policy another mix; all choices are made anew."""
        self._policy.start(mix, self.hosts)
        self._rankings: dict[weighing.WeighedRequest, _Ranking] = {}
        self._known: dict[tuple[weighing.HostCapacity,
                                weighing.WeighedRequest],
                          list[weighing.PolicyChoice]] = {}

    def place(self, request: weighing.WeighedRequest) -> int | None:
        """Place a request.

        :returns: number of its host; None: it fits nowhere
        """
        ranking = self._refresh(request)
        best: tuple[float, int, int] | None = None
        for number, column in enumerate(ranking.columns):
            scores = ranking.scores(column, self._policy)
            if max(scores, default=_UNFIT) == _UNFIT:
                continue
            scores = list(self._policy.finish(scores))
            highest = max(scores)
            index = scores.index(highest)
            if best is None or (highest, -index) > (best[0], -best[1]):
                best = highest, index, number
        if best is None:
            return None
        _, index, number = best
        self.replace(index, self._choices(
            self.hosts[index], request)[number].after)
        return index

    def replace(self, index: int, after: weighing.HostCapacity) -> None:
        """Replace the state of a host."""
        self._policy.change(self.hosts[index], after)
        self.hosts[index] = after
        self._changed.append(index)

    def _choices(self, host: weighing.HostCapacity,
                 request: weighing.WeighedRequest,
                 ) -> list[weighing.PolicyChoice]:
        key = (host, request)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_CHOICES:
                self._known.clear()
            found = self._known[key] = self._policy.choices(host, request)
        return found

    def _refresh(self, request: weighing.WeighedRequest) -> _Ranking:
        """Return the ranking for a request, with all changes in it."""
        ranking = self._rankings.get(request)
        if ranking is None:
            ranking = self._rankings[request] = _Ranking()
            due: Iterable[int] = range(len(self.hosts))
        else:
            due = set(self._changed[ranking.seen:])
        ranking.seen = len(self._changed)
        for index in due:
            ranking.set(index, len(self.hosts), self._choices(
                self.hosts[index], request))
        return ranking
