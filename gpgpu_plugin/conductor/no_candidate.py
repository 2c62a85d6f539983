# SPDX-License-Identifier: Apache-2.0
"""Requests for GPUs for which Placement had no candidate.

No filter and no host sees them. Nova's versioned notifications have them
(``compute_task.build_instances.error`` and its like), which a conductor reads
if ``[gpgpu_conductor] nova_notifications_topic`` names their topic. They
become events. Those of builds for GPUs count in the mix of requests, as
GpuFilter would count them.

Only what Nova itself says about the request is recorded: whoever can send
messages to that topic can add such events.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Mapping

import oslo_messaging
from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import refusal_events
from gpgpu_plugin.conductor import request_mix
from gpgpu_plugin.db import api
from gpgpu_plugin.db import author
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import scheduling

LOG = logging.getLogger(__name__)

EXCHANGE = 'nova'
"""Nova's ``[DEFAULT] control_exchange``, to which it sends notifications."""

PAUSE = 2.0
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
    request: request.Request
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
                f'{request.describe(self.request)}, and Placement had no '
                f'candidate')


def parse(ctxt: Mapping[str, object], payload: object) -> NoCandidate | None:
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
        request=request.from_extra_specs({
            str(key): str(value) for key, value in extra_specs.items()}),
        flavor=str(flavor.get('name')), vcpus=vcpus, memory_mib=memory_mib)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _data(value: object) -> Mapping[str, object]:
    """Return the fields of a versioned object; empty if it is none."""
    found = value.get('nova_object.data') if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


class Endpoint:
    """Receiver of Nova's notifications; never raises.

    :param wait: waits for some seconds
    """

    filter_rule = oslo_messaging.NotificationFilter(event_type=_EVENT_TYPES)

    def __init__(self, database: api.Database,
                 refused: refusal_events.RefusalEvents,
                 requests: request_mix.Requests,
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
            found = parse(ctxt, payload)
            if found is not None:
                found = codec.printable(NoCandidate, found)
                if self._record(publisher_id, found) and event_type == _BUILD:
                    self._requests.add([scheduling.ArrivedRequests(
                        found.kind, (found.instance_uuid,))])
        except exception.ConductorUnavailable as exc:
            LOG.info('A notification of %(publisher)s waits for the database: '
                     '%(reason)s', {'publisher': publisher_id, 'reason': exc})
            self._wait(PAUSE)
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
            author.Author(actor=f'Nova ({publisher_id})',
                          request_id=found.request_id),
            found.instance_uuid, found.project_id, found.detail)

    def _is_known(self, found: NoCandidate) -> bool:
        """Return whether it is no request for GPUs, or recorded already."""
        with self._database.reader() as session:
            if not found.request.own(variant_db.classes(session)):
                return True
            return event_db.has_refusal(
                session, found.instance_uuid, found.request_id)


class Listener:
    """Listener for Nova's notifications, if a topic is configured."""

    def __init__(self, conf: cfg.ConfigOpts, database: api.Database,
                 refused: refusal_events.RefusalEvents,
                 requests: request_mix.Requests) -> None:
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
            [Endpoint(database, refused, requests)], executor='threading',
            allow_requeue=True)

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
