#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Requests that arrived at this scheduler, until a conductor has counted them.

They are sent with the calls that GpuFilter makes anyway. Those without GPUs
count, too: they take vCPUs and RAM of hosts with GPUs.
"""

from __future__ import annotations

import collections
import threading
import typing

from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj

if typing.TYPE_CHECKING:
    # Nova is not installed wherever hosts are ranked.
    from gpgpu_plugin.compute import nova_types

KNOWN = 10_000
"""Instances of which a later request is not counted again."""

KINDS = 200
"""Kinds of requests that wait at most; further ones are not counted."""


def main_demand(request: request_mod.Request) -> request_mod.Demand:
    """Return the demand by which a request is weighed: the largest one."""
    return max(request.demands, key=lambda demand: demand.count)


def kind(spec_obj: nova_types.RequestSpec, request: request_mod.Request,
         ) -> scheduling_obj.RequestKind:
    """Return the kind of a request."""
    flavor = spec_obj.flavor
    if not request.demands:
        return scheduling_obj.RequestKind(flavor.vcpus, flavor.memory_mb)
    demand = main_demand(request)
    return scheduling_obj.RequestKind(
        flavor.vcpus, flavor.memory_mb, demand.resource_class, demand.count)


class Requests:
    """Requests by kind, each instance once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[str, None] = (
            collections.OrderedDict())
        self._waiting: dict[scheduling_obj.RequestKind, float] = {}

    def add(self, instance_uuid: str,
            requested: scheduling_obj.RequestKind) -> None:
        """Count the request of an instance, the first time only.

        Filters run again for alternates, and if Nova tries again.
        """
        with self._lock:
            if instance_uuid in self._known:
                return
            self._known[instance_uuid] = None
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
            if requested in self._waiting or len(self._waiting) < KINDS:
                self._waiting[requested] = (
                    self._waiting.get(requested, 0) + 1)

    def counted(self) -> tuple[scheduling_obj.CountedRequests, ...]:
        """Return what to send with the next call."""
        with self._lock:
            return tuple(scheduling_obj.CountedRequests(requested, number)
                         for requested, number in self._waiting.items())

    def recorded(self, sent: tuple[scheduling_obj.CountedRequests, ...],
                 ) -> None:
        """Forget requests that a conductor has; more may have come since."""
        with self._lock:
            for requested, number in sent:
                left = self._waiting.pop(requested, 0) - number
                if left > 0:
                    self._waiting[requested] = left
