# SPDX-License-Identifier: Apache-2.0
"""Consumers whose allocations Nova is removing from the host's providers.

If an inventory changes while Nova writes an allocation on the same provider,
Placement answers 409 (placement.concurrent_update). Nova does not retry when
it confirms a migration, deletes an instance under
``reclaim_instance_interval`` or cleans up after an evacuation: the instance
goes to ERROR, or the allocation stays for ever. Therefore the providers must
not change until the allocation is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Collection

from gpgpu_plugin.compute import nova_types

PATIENCE = 60
"""Seconds after which Nova is presumed to have left the allocation."""


class AllocationRemoval:
    """Set of consumers; each one expires after ``PATIENCE``. Thread-safe.

    :param clock: seconds that only grow
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._expiry: dict[str, float] = {}

    def add(self, consumer: str) -> None:
        """Note that Nova is about to remove a consumer's allocation."""
        with self._lock:
            self._expiry[consumer] = self._clock() + PATIENCE

    def __bool__(self) -> bool:
        """Return whether Nova is removing any allocation; makes no call."""
        with self._lock:
            now = self._clock()
            self._expiry = {consumer: expiry for consumer, expiry
                            in self._expiry.items() if expiry > now}
            return bool(self._expiry)

    def forget_removed(self, context: nova_types.Context,
                       client: nova_types.ReportClient,
                       providers: Collection[str]) -> None:
        """Ask Placement, and forget consumers without an allocation.

        :param providers: UUIDs of the providers of the host's groups
        :raises nova.exception.ConsumerAllocationRetrievalFailed: Placement
            did not answer
        """
        with self._lock:
            consumers = list(self._expiry)
        for consumer in consumers:
            allocated = client.get_allocs_for_consumer(
                context, consumer)['allocations']
            if allocated.keys().isdisjoint(providers):
                with self._lock:
                    self._expiry.pop(consumer, None)
