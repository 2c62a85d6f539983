# SPDX-License-Identifier: Apache-2.0
"""Locks for the calls of the driver that create or destroy a guest.

Nova has a lock of its own per instance, but starts, rebuilds, rescues and both
halves of a resize and of its revert run without it, beside a delete. Without
this lock a guest could be created whose GPUs a delete has just released.

``nova.utils.synchronized`` with the instance's UUID is Nova's own lock, which
its callers of the driver hold already and which is not re-entrant.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator


@dataclasses.dataclass(eq=False)
class _Lock:
    """Lock of one instance.

    :ivar users: threads that hold it or wait for it, counted per call
    """

    # With eventlet, as in nova-compute of Nova 33, the class is patched, and
    # belongs to a green thread in the same way.
    lock: threading.RLock = dataclasses.field(
        default_factory=threading.RLock)
    users: int = 0


class InstanceLocks:
    """Re-entrant locks by instance UUID. Thread-safe.

    The lock of an instance exists while a thread holds it or waits for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, _Lock] = {}

    @contextlib.contextmanager
    def hold(self, instance_uuid: str) -> Iterator[None]:
        """Hold the lock of an instance; wait until no other thread has it."""
        with self._lock:
            entry = self._locks.setdefault(instance_uuid, _Lock())
            entry.users += 1
        try:
            with entry.lock:
                yield
        finally:
            with self._lock:
                entry.users -= 1
                if not entry.users:
                    del self._locks[instance_uuid]

    def users(self, instance_uuid: str) -> int:
        """Return how many calls hold the lock of an instance or wait."""
        with self._lock:
            entry = self._locks.get(instance_uuid)
            return 0 if entry is None else entry.users
