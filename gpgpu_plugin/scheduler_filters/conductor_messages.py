# SPDX-License-Identifier: Apache-2.0
"""Messages of a scheduler to the conductors: choices, requests, refusals.

No decision waits for a message. Choices have messages of their own; requests
and refusals go with the calls that filters make anyway.
"""

from __future__ import annotations

import collections
import datetime
import itertools
import threading
import typing
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.domain import event
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.rpc import conductor_client

if typing.TYPE_CHECKING:
    from gpgpu_plugin.compute import nova_types


LOG = logging.getLogger(__name__)


# -- Choices of this scheduler on their way to the conductors.
#
# Other schedulers get them with the next call that they make anyway. Without
# them two schedulers choose the same GPUs: each knows its own choices only.


Start = Callable[[Callable[[], None]], object]
"""Function that starts another one and does not wait for it."""


def in_thread(work: Callable[[], None]) -> None:
    """Start a function in a thread of its own."""
    threading.Thread(target=work, name='gpgpu-choices', daemon=True).start()


class ChoiceSender:
    """Sender of choices, for which no decision waits. Thread-safe.

    While one message is under way, what is chosen waits for the next one. So
    a scheduler that decides quickly sends less than a message a decision.

    :param start: starts the sending
    """

    def __init__(self, api: conductor_client.ConductorAPI,
                 start: Start = in_thread) -> None:
        self._api = api
        self._start = start
        self._lock = threading.Lock()
        self._waiting: list[scheduling_obj.SchedulerChoice] = []
        self._is_sending = False

    def send(self, choice: scheduling_obj.SchedulerChoice) -> None:
        """Have a choice sent; never raises."""
        with self._lock:
            self._waiting.append(choice)
            if self._is_sending:
                return
            self._is_sending = True
        try:
            self._start(self._send_all)
        except Exception:
            # Such as a limit of threads: the next choice tries it again.
            LOG.exception('Cannot start to send choices to conductors')
            with self._lock:
                self._waiting.clear()
                self._is_sending = False

    def _send_all(self) -> None:
        while choices := self._next():
            try:
                self._api.chosen(gpgpu_context.current(), choices)
            except exception.ConductorUnavailable as exc:
                # Others may choose the same GPUs; the claim decides.
                LOG.debug('Cannot send choices to conductors: %s', exc)
            except Exception:
                # Else no later choice would ever be sent.
                LOG.exception('Cannot send choices to conductors')

    def _next(self) -> tuple[scheduling_obj.SchedulerChoice, ...]:
        """Return what waits; empty: the sending ends."""
        with self._lock:
            choices, self._waiting = tuple(self._waiting), []
            self._is_sending = bool(choices)
            return choices


# -- Requests at this scheduler, until a conductor has counted them.
#
# They are sent with the calls that read the view. Those without GPUs count,
# too: they take vCPUs and RAM of hosts with GPUs.


KNOWN_INSTANCES = 10_000
"""Instances of which a later request is not sent again."""

SENT_REQUESTS = 1000
"""Requests in one call."""

MAX_REQUESTS = 10_000
"""Requests that wait at most; further ones are not counted."""


def request_kind(flavor: nova_types.Flavor, request: request_mod.Request,
                 ) -> scheduling_obj.RequestKind:
    """Return the kind of a request for a flavor."""
    return scheduling_obj.RequestKind.of(
        flavor.vcpus, flavor.memory_mb, request)


class RequestCounter:
    """Requests by instance, each once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._quota = event.Quota()
        self._known: collections.OrderedDict[str, None] = (
            collections.OrderedDict())
        self._waiting: dict[str, scheduling_obj.RequestKind] = {}

    def add(self, instance_uuid: str, requested: scheduling_obj.RequestKind,
            refused_for: str | None = None) -> None:
        """Have the request of an instance counted, the first time only.

        Filters run again for alternates, and if Nova tries again. Conductors
        know what other schedulers have counted.

        :param refused_for: project of a request that no host can take, which
            has a quota of these; None: some host can
        """
        with self._lock:
            if instance_uuid in self._known or (
                    refused_for is not None
                    and not self._quota.take((refused_for, requested))):
                return
            self._known[instance_uuid] = None
            if len(self._known) > KNOWN_INSTANCES:
                self._known.popitem(last=False)
            if len(self._waiting) < MAX_REQUESTS:
                self._waiting[instance_uuid] = requested

    def arrived(self) -> tuple[scheduling_obj.ArrivedRequests, ...]:
        """Return what to send with the next call, the oldest requests."""
        found: dict[scheduling_obj.RequestKind, list[str]] = {}
        with self._lock:
            for instance, kind in itertools.islice(
                    self._waiting.items(), SENT_REQUESTS):
                found.setdefault(kind, []).append(instance)
        return tuple(scheduling_obj.ArrivedRequests(kind, tuple(instances))
                     for kind, instances in found.items())

    def recorded(self, sent: Iterable[scheduling_obj.ArrivedRequests],
                 ) -> None:
        """Forget requests that a conductor has."""
        with self._lock:
            for _, instances in sent:
                for instance in instances:
                    self._waiting.pop(instance, None)


# -- Decisions in which filters refused hosts, until a conductor has them.
#
# They are sent with the calls that the filters make anyway, or two seconds
# later. What was not sent is lost if nova-scheduler ends, and the oldest if no
# conductor answers for long.


SENT_REFUSALS = 50
"""Decisions in one call, which a conductor stores in one statement."""

MAX_REFUSALS = 1000
"""Decisions that wait at most."""


class RefusalBuffer:
    """Decisions in which a filter refused hosts. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: collections.deque[scheduling_obj.FilterRefusal] = (
            collections.deque(maxlen=MAX_REFUSALS))

    def add(self, refusal: scheduling_obj.FilterRefusal) -> None:
        """Keep a decision; the oldest one goes if there are too many."""
        with self._lock:
            self._waiting.append(refusal)

    def oldest(self) -> tuple[scheduling_obj.FilterRefusal, ...]:
        """Return what to send with the next call."""
        with self._lock:
            return tuple(self._waiting)[:SENT_REFUSALS]

    def recorded(self, sent: tuple[scheduling_obj.FilterRefusal, ...],
                 ) -> None:
        """Forget decisions that a conductor has."""
        with self._lock:
            # Some may have gone meanwhile.
            for refusal in sent:
                if self._waiting and self._waiting[0] is refusal:
                    self._waiting.popleft()


def refused_decision(filter_name: str, spec_obj: nova_types.RequestSpec,
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
