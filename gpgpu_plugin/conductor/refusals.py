# SPDX-License-Identifier: Apache-2.0
"""Refusals of claims that are repeated without the lock of their host.

A refusal depends on the request and on its host, whose generation counts each
change. The same request is refused for the same reason until the generation
rises, and neither the host's lock nor its devices are needed to say so. So a
claim that the host cannot satisfy does not wait for claims that succeed.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import threading
import time
from collections.abc import Callable

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.objects import claim as objects
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import session as session_obj

LIFETIME = 30.0
"""Seconds for which a refusal is remembered."""

_LIMIT = 10000


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Refusal:
    """A refusal that holds for one generation of a host.

    :ivar at: when, by the clock of the process
    """

    generation: int
    at: float
    reason: str
    detail: str


class Refusals:
    """The last refusals of this process, by host and request.

    :param clock: seconds of a clock that never goes back
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: collections.OrderedDict[tuple[str, str], _Refusal] = (
            collections.OrderedDict())

    def remember(self, request: objects.ClaimRequest, generation: int,
                 denied: exception.ClaimDenied) -> None:
        """Keep a refusal that followed from the host's devices.

        :param generation: of the host, whose row was locked
        """
        refusal = _Refusal(
            generation=generation, at=self._clock(), reason=denied.reason,
            detail=str(denied.kwargs['detail']))
        with self._lock:
            self._found[_key(request)] = refusal
            self._found.move_to_end(_key(request))
            if len(self._found) > _LIMIT:
                self._found.popitem(last=False)

    def repeat(self, db: api.Database, request: objects.ClaimRequest,
               origin: session_obj.Origin | None) -> None:
        """Refuse a request that was refused before if its host is the same.

        :raises ClaimDenied: with the original reason
        :raises Fenced: another session speaks for the host
        :raises SessionLost: the database knows less than the host
        """
        refusal = self._of(request)
        if refusal is None:
            return
        with db.reader() as session:
            host = host_db.find(session, request.host)
            if host is None or host.generation != refusal.generation:
                return
            sessions.refuse(host, origin, reported=False)
            # It may be the one who got the last devices, and asks again.
            if assignment_db.is_on(session, host.id, request.instance_uuid):
                return
        raise exception.ClaimDenied(
            instance=request.instance_uuid, host=request.host,
            reason=refusal.reason, detail=refusal.detail)

    def _of(self, request: objects.ClaimRequest) -> _Refusal | None:
        with self._lock:
            refusal = self._found.get(_key(request))
            if refusal and self._clock() - refusal.at > LIFETIME:
                return None
            return refusal


def _key(request: objects.ClaimRequest) -> tuple[str, str]:
    """Return the host and all that its devices must satisfy."""
    return request.host, json.dumps([
        codec.to_primitive(request.request), request.allocated,
        request.numa_nodes, request.numa_choices, request.sockets,
        request.exact_devices], sort_keys=True)
