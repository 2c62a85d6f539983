# SPDX-License-Identifier: Apache-2.0
"""Claimers of one process, which claim devices until none is left."""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from bench import outcome
from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.scheduler_filters import scheduler_view
from tests.fixtures import hosts
from tests.fixtures import tenant

# Share of requests for two types.
_PAIRS = 0.25

_REFUSALS = (request.Reason.NOT_ENOUGH_AVAILABLE,
             request.Reason.TYPE_CONFLICT)


class Claimers:
    """State that the claimers of a process share; it is thread-safe.

    :param nodes: UUIDs of the nodes of all hosts, by the hosts' names
    :param classes: resource classes that they request
    :param pairs: whether some requests are for two classes
    :ivar errors: other errors than refusals that are to be expected
    """

    def __init__(self, calls: conductor_client.ConductorAPI,
                 nodes: Mapping[str, str], classes: Sequence[str], *,
                 pairs: bool) -> None:
        self.grants: list[outcome.Grant] = []
        self.errors: list[str] = []
        self._calls = calls
        self._nodes = nodes
        self._classes = classes
        self._pairs = pairs
        self._cache = scheduler_view.SchedulerViewCache(calls)

    def warm_up(self) -> None:
        """Read what is free, as a scheduler does at its start.

        Only one thread at a time reads it, so each makes a call of its own to
        have a connection.
        """
        self._cache.refresh()
        self._calls.variant_list(gpgpu_context.admin())

    def claim_seen(self, name: str) -> None:
        """Claim as a scheduler does, until no host has what is requested.

        Placement's clients do the same: they ask for candidates, take any of
        them, and ask again if it was refused.

        :param name: of the claimer
        """
        number = 0
        began = time.perf_counter()
        while True:
            asked = self._request((self._classes[0],))
            host = self._candidate(asked)
            if host is None:
                return
            number += 1
            if self._claim(f'{name}-{number}', host, asked, began):
                began = time.perf_counter()

    def claim_unseen(self, name: str) -> None:
        """Claim until every host has refused it.

        :param name: of the claimer
        """
        every = list(self._nodes)
        random.shuffle(every)
        # Hosts that have not refused yet, by resource class.
        open_ = {asked: list(every) for asked in self._classes}
        number = 0
        began = time.perf_counter()
        while open_:
            number += 1
            first = random.choice(sorted(open_))
            left = open_[first]
            classes = {first}
            if self._pairs and random.random() < _PAIRS:
                classes.add(random.choice(self._classes))
            if self._claim(f'{name}-{number}', left[0],
                           self._request(classes), began):
                began = time.perf_counter()
                left.append(left.pop(0))
            elif len(classes) == 1:
                # Nothing is released. If two classes were requested, one of
                # them may still fit.
                left.pop(0)
                if not left:
                    del open_[first]

    def _candidate(self, asked: request.Request) -> str | None:
        """Return any host that has what is requested."""
        view = self._cache.refresh()
        every = list(self._nodes)
        random.shuffle(every)
        return next((host for host in every if _has(
            view, self._nodes[host], asked)), None)

    @staticmethod
    def _request(classes: Collection[str]) -> request.Request:
        return request.Request(demands=tuple(
            request.Demand(resource_class=asked, count=1)
            for asked in sorted(classes)))

    def _claim(self, instance: str, host: str, asked: request.Request,
               began: float) -> bool:
        """Return whether a claim was granted.

        :param began: time since when the claimer wants it
        """
        try:
            granted = self._calls.claim(
                gpgpu_context.admin(), hosts.origin(host, self._nodes[host]),
                claim_obj.ClaimRequest(
                    **tenant.TENANT,
                    instance_uuid=instance, host=host, request=asked))
        except exception.ClaimDenied as exc:
            if exc.reason not in _REFUSALS:
                self.errors.append(str(exc)[:300])
            return False
        except Exception as exc:  # noqa: BLE001 - the race reports it
            self.errors.append(f'{type(exc).__name__}: {exc}'[:300])
            return False
        now = time.perf_counter()
        self.grants += [outcome.Grant(
            device=assignment.device_uuid, assignment=assignment.uuid,
            seconds=now - began, at=now)
            for assignment in granted.assignments]
        return True


def _has(view: scheduler_view.SchedulerView, node: str,
         asked: request.Request) -> bool:
    """Return whether a host has what is requested."""
    host = view.hosts.get(node)
    return (host is not None
            and host.refusal(host.providers, asked) is None)
