# SPDX-License-Identifier: Apache-2.0
"""Choices of schedulers that the conductor's answer does not show yet.

Between a decision and the claim on the host, another decision would see GPUs
that are as good as taken. Placement knows how many, but not on which NUMA
node or for which vGPU type.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping

from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """A host that was chosen for an instance.

    :ivar at: when, by the clock of the process
    :ivar is_expected: it is the best one, and Nova has not chosen yet
    """

    instance_uuid: str
    request: request_mod.Request
    at: float
    is_expected: bool = False


Observer = Callable[[str, str, request_mod.Request], None]
"""Function that is called with node, instance and request of a choice."""


def ignore(node_uuid: str, instance_uuid: str,
           request: request_mod.Request) -> None:
    """Observe nothing."""


class PendingChoices:
    """Choices of the last minute by node UUID. Thread-safe.

    :param observer: called with each choice of this scheduler, once
    :ivar of: an unchanged host has the same tuple as before; empty ones are
        left out
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic,
                 observer: Observer = ignore) -> None:
        self._clock = clock
        self._observer = observer
        self._lock = threading.Lock()
        self._of: dict[str, tuple[Choice, ...]] = {}
        self.of: Mapping[str, tuple[Choice, ...]] = self._of

    def add(self, node_uuid: str, instance_uuid: str,
            request: request_mod.Request) -> None:
        """Remember a choice; an older one for the instance is void."""
        with self._lock:
            is_known = self._has(node_uuid, instance_uuid)
            self._replace(node_uuid, instance_uuid, request)
        if not is_known:
            self._observer(node_uuid, instance_uuid, request)

    def add_other(self, node_uuid: str, instance_uuid: str,
                  request: request_mod.Request) -> None:
        """Remember a choice of another scheduler, the first time only."""
        with self._lock:
            if not self._has(node_uuid, instance_uuid):
                self._replace(node_uuid, instance_uuid, request)

    def _has(self, node_uuid: str, instance_uuid: str) -> bool:
        return any(known.instance_uuid == instance_uuid
                   for known in self._of.get(node_uuid, ()))

    def _replace(self, node_uuid: str, instance_uuid: str,
                 request: request_mod.Request) -> None:
        self._keep_all(lambda known: known.instance_uuid != instance_uuid)
        self._add(node_uuid, Choice(
            instance_uuid=instance_uuid, request=request, at=self._clock()))

    def expect(self, node_uuid: str, instance_uuid: str,
               request: request_mod.Request) -> None:
        """Remember the choice that Nova is about to make.

        Another thread may decide before Placement has answered this one. A
        choice that was made already stands: Nova looks for alternates.
        """
        with self._lock:
            if any(self._has(node, instance_uuid) for node in self._of):
                return
            self._add(node_uuid, Choice(
                instance_uuid=instance_uuid, request=request,
                at=self._clock(), is_expected=True))
        self._observer(node_uuid, instance_uuid, request)

    def withdraw(self, instance_uuid: str) -> None:
        """Forget what was expected for an instance that is decided anew."""
        if self._of:
            with self._lock:
                self._keep_all(lambda known: not (
                    known.is_expected
                    and known.instance_uuid == instance_uuid))

    def _add(self, node_uuid: str, choice: Choice) -> None:
        self._of[node_uuid] = (*self._of.get(node_uuid, ()), choice)

    def confirm(self, sent: scheduling_obj.HostMasks) -> None:
        """Forget the choices that the conductor's answer shows."""
        if sent.node_uuid in self._of:
            with self._lock:
                self._keep(sent.node_uuid, lambda known: (
                    scheduling_obj.short_id(known.instance_uuid)
                    not in sent.instances))

    def expire(self) -> None:
        """Forget choices that did not become claims."""
        if self._of:
            oldest = self._clock() - scheduling_obj.LIFETIME
            with self._lock:
                self._keep_all(lambda known: known.at > oldest)

    def _keep_all(self, condition: Callable[[Choice], bool]) -> None:
        for node in list(self._of):
            self._keep(node, condition)

    def _keep(self, node_uuid: str,
              condition: Callable[[Choice], bool]) -> None:
        known = self._of.get(node_uuid, ())
        kept = tuple(filter(condition, known))
        if not kept:
            self._of.pop(node_uuid, None)
        elif len(kept) < len(known):
            self._of[node_uuid] = kept
