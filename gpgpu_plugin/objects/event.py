# SPDX-License-Identifier: Apache-2.0
"""Events of the history, as operators read them."""

from __future__ import annotations

import dataclasses
import datetime


@dataclasses.dataclass(frozen=True, kw_only=True)
class EventFilter:
    """Conditions on events; what is None does not matter.

    :ivar device: UUID
    :ivar instance: UUID
    :ivar request: request ID, ``req-`` and a UUID
    :ivar since: no older ones, UTC without a zone
    :ivar until: only older ones, UTC without a zone
    """

    host: str | None = None
    device: str | None = None
    instance: str | None = None
    project: str | None = None
    kind: str | None = None
    request: str | None = None
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EventInfo:
    """An event.

    :ivar at: ISO 8601, UTC
    :ivar kind: a domain.event.Kind
    :ivar actor: who caused it
    :ivar request_id: of the user's request to Nova, or of the call
    :ivar reason: name of the reason of a refusal
    :ivar count: number of equal refusals that this is
    """

    id: int
    at: str
    kind: str
    actor: str
    host: str | None = None
    device_uuid: str | None = None
    assignment_uuid: str | None = None
    instance_uuid: str | None = None
    project_id: str | None = None
    request_id: str | None = None
    reason: str | None = None
    count: int = 1
    detail: str | None = None

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return str(self.id)
