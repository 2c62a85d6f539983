# SPDX-License-Identifier: Apache-2.0
"""Refusals, and requests for which Placement had no candidate.

Neither a claim that is denied nor a scheduler waits for the database. Equal
denials within a minute are one event, which counts them. So are the refusals
of a project beyond its quota of each kind (domain.event). What is not stored
yet, for about two seconds or while the database does not answer, is lost if
the conductor dies.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import oslo_messaging
from oslo_config import cfg
from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.db import api
from gpgpu_plugin.db import clock as clock_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import transaction
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import event as event_rules
from gpgpu_plugin.domain.allocation import request as request_rules
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import scheduling

LOG = logging.getLogger(__name__)

STORE_INTERVAL = 2
"""Seconds between two transactions."""

STORE_PERIOD = 60.0
"""Seconds in which equal denials are one event."""

STORE_CHUNK = 500
"""Number of events that one transaction stores."""

STORE_FAILURES = 3
"""After so many events in a row that are refused one by one, the others wait:
the events may not be the cause."""

_LIMIT = 10000

K = typing.TypeVar('K')
V = typing.TypeVar('V')
_Key = tuple[str, str, str]
_Decision = tuple[object, ...]


@dataclasses.dataclass(kw_only=True, eq=False)
class _Refusal:
    """An event of a refusal.

    :ivar event: what is stored; without a time, as of ``at``
    :ivar at: when, by the clock of the process
    :ivar id: of the row; None: it is not stored yet
    :ivar more: refusals that it stands for since its count was written
    """

    event: event_db.Published
    at: float
    id: int | None = None
    more: int = 0


class RefusalRecorder:
    """The refusals of the last minute, and those that wait. Thread-safe.

    :param clock: seconds of a clock that never goes back
    :param observer: called with the kind of each event of a request that no
        host is left for
    """

    def __init__(self, db: api.Database,
                 clock: Callable[[], float] = time.monotonic,
                 observer: Callable[[str], None] = lambda kind: None,
                 ) -> None:
        self._db = db
        self._clock = clock
        self._observer = observer
        self._lock = threading.Lock()
        self._denials: collections.OrderedDict[_Key, _Refusal] = (
            collections.OrderedDict())
        self._waiting: collections.deque[_Refusal] = collections.deque()
        self._repeated: list[_Refusal] = []
        self._quota = event_rules.Quota(clock)
        # The last event of each kind and project, of the newest ones.
        self._last: collections.OrderedDict[
            tuple[object, object], _Refusal] = collections.OrderedDict()
        # Those dropped since the last line of the log.
        self._dropped = 0
        # Decisions of schedulers that were taken, the newest ones.
        self._filtered: collections.OrderedDict[_Decision, None] = (
            collections.OrderedDict())

    def denied(self, by: transaction.Author, request: claim_obj.ClaimRequest,
               denied: exception.ClaimDenied) -> None:
        """Have it recorded that a claim was denied."""
        self._repeatable(
            (request.instance_uuid, request.host, denied.reason),
            event_db.denied(by, request, denied.reason,
                            str(denied.kwargs.get('detail'))))

    def no_candidate(self, by: transaction.Author, instance_uuid: str,
                     project_id: str | None, detail: str) -> bool:
        """Have it recorded that Placement had no candidate for GPUs.

        :returns: whether it is an event of its own
        """
        self._observer(event_rules.NO_CANDIDATE)
        return self._repeatable(
            (instance_uuid, '', event_rules.NO_CANDIDATE),
            event_db.no_candidate(by, instance_uuid, project_id, detail))

    def _repeatable(self, key: _Key, event: event_db.Published) -> bool:
        """Have a refusal recorded; equal ones within a minute are counted.

        :param key: what equal refusals have in common
        :returns: whether it is an event of its own
        """
        with self._lock:
            now = self._clock()
            found = self._denials.get(key)
            if found is not None and now - found.at < STORE_PERIOD:
                self._repeat(found)
                return False
            if len(self._waiting) >= _LIMIT:
                self._dropped += 1
                return False
            found = self._add(event)
            _keep(self._denials, key, found)
            return found.event is event

    def _add(self, event: event_db.Published) -> _Refusal:
        """Have a refusal stored, or counted if its project has had many.

        :returns: the event that stands for it
        """
        row, _ = event
        key = row['kind'], row['project_id']
        last = self._last.get(key)
        if not self._quota.take(key) and last is not None:
            self._repeat(last)
            return last
        refusal = _Refusal(event=event, at=self._clock())
        _keep(self._last, key, refusal)
        self._waiting.append(refusal)
        return refusal

    def _repeat(self, refusal: _Refusal) -> None:
        refusal.more += 1
        if refusal.more == 1:
            self._repeated.append(refusal)

    def filtered(self, by: transaction.Author,
                 refusals: Sequence[scheduling.FilterRefusal]) -> bool:
        """Have decisions of schedulers recorded.

        A scheduler that got no answer sends them again. Those that this
        conductor has taken before are left out.

        :returns: False: too many wait, and the scheduler has to send them
            again
        """
        with self._lock:
            new = {key: refusal for refusal in refusals
                   if (key := _identity(by, refusal)) not in self._filtered}
            if len(self._waiting) + len(new) > _LIMIT:
                return False
            for key, refusal in new.items():
                if not refusal.passed:
                    self._observer('filter_refused')
                self._add(event_db.filtered(by, refusal))
                _keep(self._filtered, key, None)
            return True

    def run_once(self) -> None:
        """Store what waits, and the counts; never raises."""
        self._log_dropped()
        try:
            while self._store(self._next()):
                pass
            self._count()
        except exception.ConductorUnavailable as exc:
            LOG.warning('Cannot record what was refused, trying again in '
                        '%(seconds)s s: %(reason)s',
                        {'seconds': STORE_INTERVAL, 'reason': exc})
        except Exception:
            LOG.exception('Cannot record what was refused')

    def _log_dropped(self) -> None:
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            LOG.warning('Dropped %s refusals without event or notification: '
                        'too many waited for the database, or it refused '
                        'them', dropped)

    def _next(self) -> list[_Refusal]:
        with self._lock:
            return list(itertools.islice(self._waiting, STORE_CHUNK))

    def _store(self, chunk: list[_Refusal]) -> bool:
        """Store some events; return whether there were any.

        :raises ConductorUnavailable: the database is busy or away; they wait
        """
        if not chunk:
            return False
        try:
            self._store_together(chunk)
        except exception.ConductorUnavailable:
            raise
        except Exception:
            LOG.exception('Cannot record what was refused')
            return self._store_singly(chunk)
        return True

    def _store_together(self, chunk: Sequence[_Refusal]) -> None:
        """Store the first ones that wait, in one transaction."""
        ids = self._db.write(functools.partial(self._write, chunk))
        with self._lock:
            for refusal, event_id in zip(chunk, ids, strict=True):
                refusal.id = event_id
        self._remove(len(chunk))

    def _write(self, chunk: Sequence[_Refusal],
               session: orm.Session) -> list[int]:
        """Record refusals, and notify of them; return their events' ids."""
        now = self._clock()
        return event_db.store(session, [
            ({'at': clock_db.utc(session, now - refusal.at), **row}, published)
            for refusal in chunk for row, published in [refusal.event]])

    def _store_singly(self, chunk: Sequence[_Refusal]) -> bool:
        """Store the first ones that wait, and drop what is refused alone.

        :returns: False: too many were; those after them wait
        """
        failures = 0
        for refusal in chunk:
            if failures == STORE_FAILURES:
                return False
            try:
                self._store_together([refusal])
                failures = 0
            except exception.ConductorUnavailable:
                raise
            except Exception:
                LOG.exception(
                    'Cannot record %s; dropping it', refusal.event[0])
                failures += 1
                self._remove(1, dropped=1)
        return True

    def _remove(self, number: int, dropped: int = 0) -> None:
        """Remove the first ones that wait; only one thread does so."""
        with self._lock:
            for _ in range(number):
                self._waiting.popleft()
            self._dropped += dropped

    def _count(self) -> None:
        """Write how many refusals the events stand for."""
        with self._lock:
            # Some may have come after the last one was stored.
            waiting = set(self._waiting)
            repeated, self._repeated = self._repeated, [
                refusal for refusal in self._repeated if refusal in waiting]
            counts = {refusal: refusal.more for refusal in repeated
                      if refusal.id is not None}
        if not counts:
            return
        try:
            self._db.write(lambda session: event_db.count_more(session, {
                refusal.id: more for refusal, more in counts.items()
                if refusal.id is not None}))
        except exception.ConductorUnavailable:
            with self._lock:
                self._repeated.extend(counts)
            raise
        except Exception:
            LOG.exception('Cannot count refusals; dropping their counts')
        with self._lock:
            for refusal, more in counts.items():
                refusal.more -= more
                if refusal.more:
                    # Some came meanwhile.
                    self._repeated.append(refusal)


def _keep(known: collections.OrderedDict[K, V], key: K, value: V) -> None:
    """Keep a value as the newest one; the oldest one goes if they are many."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > _LIMIT:
        known.popitem(last=False)


def _identity(by: transaction.Author, refusal: scheduling.FilterRefusal,
              ) -> _Decision:
    """Return what no other decision has."""
    return (by.actor, refusal.at, refusal.request_id, refusal.instance_uuid,
            refusal.filter)


# -- Requests for GPUs for which Placement had no candidate.
#
# No filter and no host sees them. Nova's versioned notifications have them
# (``compute_task.build_instances.error`` and its like), which a conductor
# reads if ``[gpgpu_conductor] nova_notifications_topic`` names their topic.
# They become events. Those of builds for GPUs count in the mix of requests, as
# GpuFilter would count them.
#
# Only what Nova itself says about the request is recorded: whoever can send
# messages to that topic can add such events.


EXCHANGE = 'nova'
"""Nova's ``[DEFAULT] control_exchange``, to which it sends notifications."""

LISTENER_PAUSE = 2.0
"""Seconds after which a notification comes again, if the database is away."""

_EVENT_TYPES = r'^compute_task\.\w+\.error$'
# A move is of an instance that counted when it was built.
_BUILD = 'compute_task.build_instances.error'
_NO_HOST = 'NoValidHost'
# The first line of Nova's message, whose rest is empty only if Placement had
# no candidate: filters that refuse all hosts add a sentence.
_NO_CANDIDATE = 'No valid host was found.'


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoCandidate:
    """A request for which Placement had no candidate.

    :ivar request_id: of the user's request to Nova
    :ivar request: of the flavor
    :ivar flavor: its name
    :ivar vcpus: of the flavor, as is ``memory_mib``
    """

    instance_uuid: str
    project_id: str | None
    request_id: str | None
    request: request_rules.Request
    flavor: str
    vcpus: int
    memory_mib: int

    @property
    def kind(self) -> scheduling.RequestKind:
        """Kind of the request, as the mix of requests counts it."""
        return scheduling.RequestKind.of(
            self.vcpus, self.memory_mib, self.request)

    @property
    def detail(self) -> str:
        """Description of the request for operators."""
        return (f'flavor {self.flavor} requests '
                f'{request_rules.describe(self.request)}, and Placement had '
                f'no candidate')


def parse_no_candidate(ctxt: Mapping[str, object],
                       payload: object) -> NoCandidate | None:
    """Return what a notification of Nova says; None: it is something else."""
    task = _data(payload)
    reason, spec = _data(task.get('reason')), _data(task.get('request_spec'))
    flavor = _data(spec.get('flavor'))
    extra_specs = flavor.get('extra_specs')
    instance_uuid = task.get('instance_uuid')
    first_line = str(reason.get('exception_message')).partition('\n')[0]
    if (not str(reason.get('exception')).startswith(_NO_HOST)
            or first_line.strip() != _NO_CANDIDATE
            or not isinstance(instance_uuid, str)
            or not isinstance(extra_specs, dict)):
        return None
    vcpus, memory_mib = (_number(flavor.get(name))
                         for name in ('vcpus', 'memory_mb'))
    project, request_id = spec.get('project_id'), ctxt.get('request_id')
    return NoCandidate(
        instance_uuid=instance_uuid,
        project_id=project if isinstance(project, str) else None,
        request_id=typing.cast(str, request_id)
        if gpgpu_context.is_request_id(request_id) else None,
        request=request_rules.from_extra_specs({
            str(key): str(value) for key, value in extra_specs.items()}),
        flavor=str(flavor.get('name')), vcpus=vcpus, memory_mib=memory_mib)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _data(value: object) -> Mapping[str, object]:
    """Return the fields of a versioned object; empty if it is none."""
    found = value.get('nova_object.data') if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


class NoCandidateEndpoint:
    """Receiver of Nova's notifications; never raises.

    :param wait: waits for some seconds
    """

    filter_rule = oslo_messaging.NotificationFilter(event_type=_EVENT_TYPES)

    def __init__(self, database: api.Database,
                 refused: RefusalRecorder,
                 requests: scheduler_feed.CountedMix,
                 wait: Callable[[float], None] = time.sleep) -> None:
        self._database = database
        self._refused = refused
        self._requests = requests
        self._wait = wait

    def error(self, ctxt: Mapping[str, object], publisher_id: str,
              event_type: str, payload: object,
              metadata: Mapping[str, object]) -> str | None:
        """Have it recorded that Placement had no candidate.

        :returns: REQUEUE: the broker sends the notification again
        """
        try:
            found = parse_no_candidate(ctxt, payload)
            if found is not None:
                found = codec.printable(NoCandidate, found)
                if self._record(publisher_id, found) and event_type == _BUILD:
                    self._requests.add([scheduling.ArrivedRequests(
                        found.kind, (found.instance_uuid,))])
        except exception.ConductorUnavailable as exc:
            LOG.info('A notification of %(publisher)s waits for the database: '
                     '%(reason)s', {'publisher': publisher_id, 'reason': exc})
            self._wait(LISTENER_PAUSE)
            return typing.cast(
                str, oslo_messaging.NotificationResult.REQUEUE)
        except exception.Invalid as exc:
            LOG.debug('A notification of %(publisher)s is no request for '
                      'GPUs: %(reason)s',
                      {'publisher': publisher_id, 'reason': exc})
        except Exception:
            # The broker would send it again and again.
            LOG.exception('Cannot record what %s notified; dropping it',
                          publisher_id)
        return None

    def _record(self, publisher_id: str, found: NoCandidate) -> bool:
        """Return whether it is recorded as an event of its own."""
        return not self._is_known(found) and self._refused.no_candidate(
            transaction.Author(actor=f'Nova ({publisher_id})',
                               request_id=found.request_id),
            found.instance_uuid, found.project_id, found.detail)

    def _is_known(self, found: NoCandidate) -> bool:
        """Return whether it is no request for GPUs, or recorded already."""
        with self._database.reader() as session:
            if not found.request.own(variant_db.classes(session)):
                return True
            return event_db.has_refusal(
                session, found.instance_uuid, found.request_id)


class NoCandidateListener:
    """Listener for Nova's notifications, if a topic is configured."""

    def __init__(self, conf: cfg.ConfigOpts, database: api.Database,
                 refused: RefusalRecorder,
                 requests: scheduler_feed.CountedMix) -> None:
        self._listener: typing.Any = None
        self._started = threading.Event()
        self._topic: str | None = conf.gpgpu_conductor.nova_notifications_topic
        if self._topic is None:
            return
        self._transport = oslo_messaging.get_notification_transport(
            conf, url=conf.gpgpu_conductor.nova_notifications_url
            or conf.gpgpu.transport_url)
        self._listener = oslo_messaging.get_notification_listener(
            self._transport,
            [oslo_messaging.Target(topic=self._topic, exchange=EXCHANGE)],
            [NoCandidateEndpoint(database, refused, requests)],
            executor='threading', allow_requeue=True)

    def start(self) -> None:
        """Listen, as soon as the broker of the notifications answers."""
        if self._listener is not None:
            # It waits for a broker that is away, for which nobody else waits.
            threading.Thread(target=self._start, daemon=True,
                             name='gpgpu-notifications').start()

    def _start(self) -> None:
        try:
            self._listener.start()
        except Exception:
            # Errors of kombu and oslo.messaging have no common base class.
            LOG.exception('Cannot listen for notifications of Nova; check '
                          '[gpgpu_conductor] nova_notifications_url')
            return
        self._started.set()
        LOG.info('Listening for notifications of Nova on topic %s',
                 self._topic)

    def stop(self) -> None:
        """Listen no more, and wait until what arrived was handled."""
        if self._started.is_set():
            self._listener.stop()
            self._listener.wait()
            self._transport.cleanup()
