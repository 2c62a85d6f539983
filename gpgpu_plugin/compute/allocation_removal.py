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
"""Whose allocations Nova is about to take back, and tries to only once.

Where an inventory changes while Nova writes an allocation on the same
provider, Placement answers 409 (placement.concurrent_update). Nova does not
write again after it when it confirms a migration, deletes an instance under
``reclaim_instance_interval``, or cleans up an evacuation: the instance ends in
ERROR, or the allocation stays for ever. So Placement is left alone until the
allocation is gone.
"""

from __future__ import annotations

import threading
import typing
from collections.abc import Callable
from collections.abc import Collection

PATIENCE = 60
"""Seconds after which an allocation is taken for one that stays."""


class AllocationRemoval:
    """Thread-safe.

    :param clock: seconds that only grow
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def add(self, consumer: str) -> None:
        """Nova takes back what this consumer has on the host's groups."""
        with self._lock:
            self._until[consumer] = self._clock() + PATIENCE

    def __bool__(self) -> bool:
        """Whether there are any; calls nobody."""
        with self._lock:
            now = self._clock()
            self._until = {consumer: until for consumer, until
                           in self._until.items() if until > now}
            return bool(self._until)

    def forget_removed(self, context: typing.Any, client: typing.Any,
             providers: Collection[str]) -> None:
        """Ask Placement, and forget those whose allocations are gone.

        :param client: nova.scheduler.client.report.SchedulerReportClient
        :param providers: UUIDs of the host's groups
        :raises nova.exception.ConsumerAllocationRetrievalFailed: Placement
            does not say
        """
        with self._lock:
            consumers = list(self._until)
        for consumer in consumers:
            allocated = client.get_allocs_for_consumer(
                context, consumer)['allocations']
            if allocated.keys().isdisjoint(providers):
                with self._lock:
                    self._until.pop(consumer, None)
