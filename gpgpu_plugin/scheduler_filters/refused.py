# SPDX-License-Identifier: Apache-2.0
"""Decisions in which filters refused hosts, until a conductor has them.

It is sent with the calls that the filters make anyway, or two seconds later.
What was not sent is lost if nova-scheduler ends, and the oldest if no
conductor answers for long.
"""

from __future__ import annotations

import collections
import datetime
import threading
import typing
from collections.abc import Mapping

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.objects import scheduling as scheduling_obj

if typing.TYPE_CHECKING:
    # Nova is not installed wherever hosts are ranked.
    from gpgpu_plugin.compute import nova_types

SENT = 50
"""Decisions in one call, which a conductor stores in one statement."""

KEPT = 1000
"""Decisions that wait at most."""


class Refused:
    """Decisions in which a filter refused hosts. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: collections.deque[scheduling_obj.FilterRefusal] = (
            collections.deque(maxlen=KEPT))

    def add(self, refusal: scheduling_obj.FilterRefusal) -> None:
        """Keep a decision; the oldest one goes if there are too many."""
        with self._lock:
            self._waiting.append(refusal)

    def oldest(self) -> tuple[scheduling_obj.FilterRefusal, ...]:
        """Return what to send with the next call."""
        with self._lock:
            return tuple(self._waiting)[:SENT]

    def recorded(self, sent: tuple[scheduling_obj.FilterRefusal, ...],
                 ) -> None:
        """Forget decisions that a conductor has."""
        with self._lock:
            # Some may have gone meanwhile.
            for refusal in sent:
                if self._waiting and self._waiting[0] is refusal:
                    self._waiting.popleft()


def decision(filter_name: str, spec_obj: nova_types.RequestSpec,
             reasons: Mapping[str, int], passed: int, detail: str,
             ) -> scheduling_obj.FilterRefusal:
    """Return what a filter refused in the decision of this thread."""
    return scheduling_obj.FilterRefusal(
        filter=filter_name,
        at=datetime.datetime.now(datetime.UTC).replace(tzinfo=None),
        instance_uuid=spec_obj.instance_uuid,
        project_id=spec_obj.project_id,
        request_id=gpgpu_context.current().global_request_id,
        reasons=dict(reasons), passed=passed, detail=detail)
