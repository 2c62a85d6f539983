# SPDX-License-Identifier: Apache-2.0
"""The parts of one compute host that its tasks work with."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator

from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import session as session_mod
from gpgpu_plugin.host import base
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_client


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostParts:
    """A compute host: its hardware, its book and whom it talks to.

    :ivar name: of the nova-compute service
    :ivar client: Nova's report client
    """

    name: str
    backend: base.ComputeHost
    api: conductor_client.ConductorAPI
    client: nova_types.ReportClient
    assignments: assignment_file.AssignmentFile
    session: session_mod.HostSession


# -- Instances whose guests are created or destroyed on this host now.


class Builds:
    """Builds under way, and those that began during a comparison.

    A build is a call of the driver that creates or destroys a guest.
    Thread-safe.

    :param left_out: called with an instance's UUID at the end of a build that
        a comparison has left out
    :ivar lock: no build begins or ends while it is held
    """

    def __init__(self, left_out: Callable[[str], None]) -> None:
        self.lock = threading.RLock()
        self._report_left_out = left_out
        # Whether a comparison has left them out, by the instance's UUID.
        self._running: dict[str, bool] = {}
        self._begun: set[str] = set()

    @contextlib.contextmanager
    def running(self, instance_uuid: str) -> Iterator[None]:
        """Keep an instance out of comparisons until its build is over."""
        with self.lock:
            self._running[instance_uuid] = False
            self._begun.add(instance_uuid)
        try:
            yield
        finally:
            with self.lock:
                left_out = self._running.pop(instance_uuid)
            if left_out:
                self._report_left_out(instance_uuid)

    def current(self) -> set[str]:
        """Return the UUIDs of instances with a build under way."""
        with self.lock:
            return set(self._running)

    def begin_comparison(self) -> None:
        """Note that a comparison begins, which has read nothing yet."""
        with self.lock:
            self._begun.clear()

    def leave_out(self) -> set[str]:
        """Return the builds under way, which the comparison leaves out."""
        with self.lock:
            self._running = dict.fromkeys(self._running, True)
            return set(self._running)

    def since_begin(self) -> set[str]:
        """Return the builds that ran at any time during the comparison."""
        return self.leave_out() | self._begun


# -- PCI addresses of GPUs in guests, until a conductor has them.


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
