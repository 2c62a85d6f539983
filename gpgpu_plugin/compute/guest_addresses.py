# SPDX-License-Identifier: Apache-2.0
"""PCI addresses of GPUs in guests, until a conductor has them."""

from __future__ import annotations

import threading
from collections.abc import Collection

from gpgpu_plugin.objects import claim as claim_obj


class GuestAddresses:
    """Addresses in guests of this host, by UUID of the assignment.

    They are kept in memory, since after a start they are read from the guests
    again. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accepted: dict[str, tuple[str, ...]] = {}
        self._due: dict[str, tuple[str, ...]] = {}

    def note(self, found: claim_obj.GuestAddresses) -> None:
        """Note the addresses of a guest; what changed is due.

        :param found: empty for a device whose addresses are unknown
        """
        with self._lock:
            for uuid, addresses in found.items():
                if self._accepted.get(uuid) == addresses:
                    self._due.pop(uuid, None)
                else:
                    self._due[uuid] = addresses

    def due(self, uuids: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return those of some assignments that no conductor has."""
        with self._lock:
            return {uuid: addresses for uuid, addresses in self._due.items()
                    if uuid in uuids}

    def accept(self, sent: claim_obj.GuestAddresses) -> None:
        """Note that a conductor has accepted what was due."""
        with self._lock:
            for uuid, addresses in sent.items():
                self._accepted[uuid] = addresses
                if self._due.get(uuid) == addresses:
                    del self._due[uuid]

    def begin(self, uuids: Collection[str]) -> None:
        """Make all due: another database may know nothing of them.

        :param uuids: assignments of this host; others are forgotten
        """
        with self._lock:
            known = self._accepted | self._due
            self._accepted = {}
            self._due = {uuid: addresses for uuid, addresses in known.items()
                         if uuid in uuids}
