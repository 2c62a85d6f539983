# SPDX-License-Identifier: Apache-2.0
"""Requests that arrived at this scheduler, until a conductor has counted them.

They are sent with the calls that read the view. Those without GPUs
count, too: they take vCPUs and RAM of hosts with GPUs.
"""

from __future__ import annotations

import collections
import itertools
import threading
import typing
from collections.abc import Iterable

from gpgpu_plugin.domain import quota
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj

if typing.TYPE_CHECKING:
    # Nova is not installed wherever hosts are ranked.
    from gpgpu_plugin.compute import nova_types

KNOWN = 10_000
"""Instances of which a later request is not sent again."""

SENT = 1000
"""Requests in one call."""

KEPT = 10_000
"""Requests that wait at most; further ones are not counted."""


def kind(flavor: nova_types.Flavor, request: request_mod.Request,
         ) -> scheduling_obj.RequestKind:
    """Return the kind of a request for a flavor."""
    return scheduling_obj.RequestKind.of(
        flavor.vcpus, flavor.memory_mb, request)


class Requests:
    """Requests by instance, each once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._quota = quota.Quota()
        self._known: collections.OrderedDict[str, None] = (
            collections.OrderedDict())
        self._waiting: dict[str, scheduling_obj.RequestKind] = {}

    def add(self, instance_uuid: str, requested: scheduling_obj.RequestKind,
            refused_for: str | None = None) -> None:
        """Have the request of an instance counted, the first time only.

        Filters run again for alternates, and if Nova tries again. Conductors
        know what other schedulers have counted.

        :param refused_for: project of a request that no host can take, which
            has a quota of these; None: some host can
        """
        with self._lock:
            if instance_uuid in self._known or (
                    refused_for is not None
                    and not self._quota.take((refused_for, requested))):
                return
            self._known[instance_uuid] = None
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
            if len(self._waiting) < KEPT:
                self._waiting[instance_uuid] = requested

    def arrived(self) -> tuple[scheduling_obj.ArrivedRequests, ...]:
        """Return what to send with the next call, the oldest requests."""
        found: dict[scheduling_obj.RequestKind, list[str]] = {}
        with self._lock:
            for instance, kind in itertools.islice(
                    self._waiting.items(), SENT):
                found.setdefault(kind, []).append(instance)
        return tuple(scheduling_obj.ArrivedRequests(kind, tuple(instances))
                     for kind, instances in found.items())

    def recorded(self, sent: Iterable[scheduling_obj.ArrivedRequests],
                 ) -> None:
        """Forget requests that a conductor has."""
        with self._lock:
            for _, instances in sent:
                for instance in instances:
                    self._waiting.pop(instance, None)
