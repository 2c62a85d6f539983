# SPDX-License-Identifier: Apache-2.0
"""Metrics that a conductor shows to Prometheus.

There are two kinds of metrics. Counters belong to this process, and begin at
0 with it. Gauges are numbers of the whole cloud, which each conductor reads
from the database and which therefore are the same in all of them.

doc/source/admin/monitoring.rst lists all metrics. No label has a UUID, a
project or a text of a host other than its name.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from wsgiref import simple_server

import prometheus_client
from oslo_config import cfg
from oslo_log import log as logging
from prometheus_client import metrics_core

from gpgpu_plugin import exception
from gpgpu_plugin import version
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import http_server
from gpgpu_plugin.conductor import threads
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.db import gauges as gauges_db
from gpgpu_plugin.domain import ledger
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import ping
from gpgpu_plugin.rpc import server

LOG = logging.getLogger(__name__)

_Family = metrics_core.Metric
_Gauge = metrics_core.GaugeMetricFamily

OUTCOMES: Mapping[str, tuple[type[exception.GPUPluginException], ...]] = {
    'denied': (exception.ClaimDenied,),
    'expired': (exception.RequestExpired,),
    'refused': (exception.CallerRefused, exception.NotOwner),
    'fenced': (exception.Fenced, exception.SessionOutdated,
               exception.SessionLost),
    'database_busy': (exception.DatabaseBusy,),
    'database_unavailable': (exception.DatabaseUnavailable,),
    'rejected': (exception.GPUPluginException,)}
"""Outcomes of a call that raised one of our errors; the first one holds."""

OK, FAILED, POSTPONED, OTHER = 'ok', 'failed', 'postponed', 'other'

VERDICTS = (ledger.Verdict.PASSED, ledger.Verdict.FAILED,
            ledger.Verdict.OUTDATED, POSTPONED)
"""Ends of a cleaning; one that is postponed has no record in the ledger."""

CALL_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds; callers wait for 10 s by default, and schedulers for 3 s."""

CLEANING_BUCKETS = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200)
"""Seconds; a reset takes one, and to write all memory through a BAR hours."""


def outcome(error: BaseException | None) -> str:
    """Return how a call ended, one of the values of the label."""
    if error is None:
        return OK
    return next((name for name, kinds in OUTCOMES.items()
                 if isinstance(error, kinds)), FAILED)


class Counters:
    """Counters of this process. Thread-safe.

    :param methods: names of the RPC methods; a message may name others
    :ivar fit: whether the conductor takes calls
    """

    def __init__(self, registry: prometheus_client.CollectorRegistry,
                 methods: Collection[str]) -> None:
        # Series that nobody asked for: when each of the others began.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._methods = frozenset(methods)
        self._calls = prometheus_client.Counter(
            'gpgpu_rpc_calls', 'Calls that this conductor has handled.',
            ('method', 'outcome'), registry=registry)
        self._seconds = prometheus_client.Histogram(
            'gpgpu_rpc_seconds', 'Seconds from the arrival of a call until '
            'it was handled.', ('method',), registry=registry,
            buckets=CALL_BUCKETS)
        self._granted = prometheus_client.Counter(
            'gpgpu_claims_granted', 'Claims that this conductor has granted.',
            registry=registry)
        self._refused = prometheus_client.Counter(
            'gpgpu_claims_refused', 'Claims that this conductor has refused.',
            ('reason',), registry=registry)
        self._requests_refused = prometheus_client.Counter(
            'gpgpu_requests_refused', 'Requests for GPUs that no host was '
            'left for before a claim.', ('kind',), registry=registry)
        self._pages = prometheus_client.Counter(
            'gpgpu_feed_pages', 'Pages of hosts that this conductor has sent '
            'to schedulers.', ('page',), registry=registry)
        self._cleanings = prometheus_client.Counter(
            'gpgpu_cleanings', 'Cleanings whose end this conductor has '
            'recorded.', ('verdict',), registry=registry)
        self._cleaning_seconds = prometheus_client.Histogram(
            'gpgpu_cleaning_seconds', 'Seconds that these cleanings took.',
            registry=registry, buckets=CLEANING_BUCKETS)
        self._failures = prometheus_client.Counter(
            'gpgpu_database_errors', 'Transactions of this conductor that '
            'failed.', ('kind',), registry=registry)
        self._published = prometheus_client.Counter(
            'gpgpu_notifications_published', 'Notifications that this '
            'conductor has sent.', registry=registry)
        self._publish_failures = prometheus_client.Counter(
            'gpgpu_notification_failures', 'Attempts of this conductor to '
            'send a notification that failed.', registry=registry)
        self._dropped = prometheus_client.Counter(
            'gpgpu_notifications_dropped', 'Events of which this conductor '
            'never sends the notifications, because too many waited or one '
            'was too large.', registry=registry)
        self.fit = prometheus_client.Gauge(
            'gpgpu_conductor_fit', 'Whether this conductor takes calls.',
            registry=registry)
        prometheus_client.Info(
            'gpgpu_build', 'Version of this conductor.', registry=registry,
            ).info({'version': version.VERSION,
                    'rpc_version': conductor_contract.VERSION})

    def begin_with_0(self) -> None:
        """Show each series, so that the first event shows as an increase."""
        for method in (*self._methods, OTHER):
            for name in (OK, *OUTCOMES, FAILED):
                self._calls.labels(method, name)
        for counter, values in (
                (self._refused, request.Reason),
                (self._requests_refused, ('filter_refused', 'no_candidate')),
                (self._pages, ('first', 'next')),
                (self._cleanings, VERDICTS),
                (self._failures, api.Failure)):
            for value in values:
                counter.labels(str(value))

    def handled(self, call: server.Handled) -> None:
        """Count a call."""
        method = (call.method if isinstance(call.method, str)
                  and call.method in self._methods else OTHER)
        self._calls.labels(method, outcome(call.error)).inc()
        self._seconds.labels(method).observe(call.seconds)
        if method == 'claim' and isinstance(
                call.error, exception.ClaimDenied):
            self._refused.labels(call.error.reason).inc()
        elif call.error is None:
            self._answered(method, call)

    def _answered(self, method: str, call: server.Handled) -> None:
        if method == 'claim':
            self._granted.inc()
        elif method == 'changes_since' and isinstance(call.arguments, Mapping):
            self._pages.labels(
                'first' if call.arguments.get('marker') is None else 'next',
                ).inc()
        elif method == 'clean_postponed':
            self._cleanings.labels(POSTPONED).inc()

    def cleaned(self, ended: cleaning.EndedCleaning) -> None:
        """Count a cleaning that ended."""
        self._cleanings.labels(str(ended.verdict)).inc()
        if ended.seconds is not None:
            self._cleaning_seconds.observe(ended.seconds)

    def request_refused(self, kind: str) -> None:
        """Count a request that filters or Placement left no host for."""
        self._requests_refused.labels(kind).inc()

    def published(self, number: int) -> None:
        """Count notifications that the broker has."""
        self._published.inc(number)

    def publish_failed(self) -> None:
        """Count an attempt to send a notification that failed."""
        self._publish_failures.inc()

    def notifications_dropped(self, number: int) -> None:
        """Count events whose notifications are never sent."""
        self._dropped.inc(number)

    def failed(self, failure: api.Failure) -> None:
        """Count a transaction that failed."""
        self._failures.labels(str(failure)).inc()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricsReading:
    """Gauges as they were read.

    :ivar seconds: that reading them took
    """

    gauges: gauges_db.GaugeReading
    seconds: float


def read(db: api.Database, *, per_host: bool,
         silent_after: float) -> MetricsReading:
    """Read the gauges.

    :param silent_after: seconds without a call after which a host is silent,
        and nothing of it remains
    """
    began = time.monotonic()
    with db.reader() as session:
        gauges = gauges_db.read(
            session, per_host=per_host, silent_after=silent_after)
    return MetricsReading(gauges=gauges, seconds=time.monotonic() - began)


class CloudGauges:
    """Collector of the gauges, for a registry.

    :param get: returns them; None if the database does not answer
    :param per_host: whether they have the label ``host``
    :param silent_after: seconds without a call after which a host is silent
    """

    def __init__(self, get: Callable[[], MetricsReading | None], *,
                 per_host: bool, silent_after: float) -> None:
        self._get = get
        self._per_host = per_host
        self._silent_after = silent_after

    def collect(self) -> Iterator[_Family]:
        """Return the gauges; without the database, only that it is down."""
        reading = self._get()
        yield _Gauge('gpgpu_database_up', 'Whether the gauges could be read '
                     'from the database.', 0 if reading is None else 1)
        if reading is None:
            return
        yield _Gauge('gpgpu_database_read_seconds', 'Seconds that reading '
                     'the gauges took.', reading.seconds)
        yield self._devices(reading.gauges)
        yield self._health(reading.gauges)
        yield from self._capacities(reading.gauges)
        yield from self._hosts(reading.gauges.hosts)
        yield _Gauge('gpgpu_notifications_waiting', 'Events of which no '
                     'broker has confirmed the notifications yet.',
                     reading.gauges.notifications)

    def _family(self, name: str, documentation: str,
                *labels: str) -> metrics_core.GaugeMetricFamily:
        return _Gauge(name, documentation, labels=(
            *(('host',) if self._per_host else ()), *labels))

    def _host(self, name: str | None) -> tuple[str, ...]:
        return (name or '',) if self._per_host else ()

    def _devices(self, gauges: gauges_db.GaugeReading) -> _Family:
        family = self._family(
            'gpgpu_devices', 'Devices, without mdev rows.', 'variant',
            'state', 'enabled')
        counts: collections.Counter[tuple[str, ...]] = collections.Counter()
        for row in gauges.devices:
            counts[(*self._host(row.host), row.variant or '', row.state,
                    'true' if row.enabled else 'false')] += row.number
        for labels, number in counts.items():
            family.add_metric(labels, number)
        return family

    def _health(self, gauges: gauges_db.GaugeReading) -> _Family:
        family = self._family(
            'gpgpu_device_health', 'GPUs whose host reports their health.',
            'variant', 'health')
        counts: collections.Counter[tuple[str, ...]] = collections.Counter()
        for row in gauges.devices:
            if row.health is not None:
                counts[(*self._host(row.host), row.variant or '',
                        row.health)] += row.number
        for labels, number in counts.items():
            family.add_metric(labels, number)
        return family

    def _capacities(self, gauges: gauges_db.GaugeReading) -> Iterator[_Family]:
        labels = 'variant', 'vgpu_type'
        most = self._family(
            'gpgpu_max_capacity', 'Instances of an enabled type that fit on '
            'the GPUs when empty.', *labels)
        remaining = self._family(
            'gpgpu_remaining_capacity', 'Instances of an enabled type that '
            'still fit.', *labels)
        for row in gauges.capacities:
            values = *self._host(row.host), row.variant, row.vgpu_type
            most.add_metric(values, row.max_capacity)
            remaining.add_metric(values, row.remaining_capacity)
        yield most
        yield remaining

    def _hosts(self, hosts: Collection[gauges_db.HeardHost],
               ) -> Iterator[_Family]:
        yield _Gauge('gpgpu_hosts', 'Hosts that reported devices.',
                     len(hosts))
        yield _Gauge('gpgpu_silent_hosts', 'Hosts that have not called for '
                     f'{self._silent_after:.0f} s.',
                     sum(host.is_silent for host in hosts))
        if self._per_host:
            family = self._family(
                'gpgpu_host_heard_timestamp_seconds', 'When the host last '
                'called a conductor.')
            for host in hosts:
                family.add_metric((host.name,), host.heard_at)
            yield family


# -- The metrics of one conductor service, from counting to serving.
#
# The server of prometheus_client answers, each request in a thread of its own.
# It asks for no password and has no TLS: that is left to a proxy.


OPTION = '[gpgpu_conductor] metrics_bind'

HEALTH_PATH = '/healthcheck'
"""A load balancer asks there. The status is 503 if the conductor takes no
calls, and the text says why. All other paths show the metrics."""

SILENCE = 5.0
"""Seconds for which a client may send and accept nothing."""

LIFETIME = 10.0
"""Seconds for which the gauges are not read again."""

PATIENCE = 8.0
"""Seconds for which a scrape waits for them. Prometheus waits for 10 s by
default, and would take a conductor whose database hangs for a dead one."""


class Monitoring:
    """Counters of a conductor and, if configured, its metrics endpoint.

    :ivar counters: count whether somebody reads them or not
    :raises ConfigInvalid: nothing can listen on ``[gpgpu_conductor]
        metrics_bind``
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        value = conf.gpgpu_conductor.metrics_bind
        self._address = http_server.parse(value,
                                          OPTION) if value else None
        if self._address is not None:
            http_server.check_local(self._address, OPTION)
        self._per_host: bool = conf.gpgpu_conductor.metrics_per_host
        self._silent_after: float = conf_gpgpu.silent_after(conf)
        self._registry = prometheus_client.CollectorRegistry()
        self.counters = Counters(self._registry, {
            *contract.methods(conductor_contract.Conductor),
            *contract.methods(ping.Pinged)})
        self._reading: threads.SingleFlightCache[MetricsReading] | None = (
            None)
        self._server: simple_server.WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self, database: api.Database,
              unfit: Callable[[], str] = lambda: '') -> None:
        """Serve the counters, and the gauges of a database.

        :param unfit: returns why the conductor takes no calls; empty: it does
        :raises ConfigInvalid: another process listens on the port
        """
        if self._address is None:
            return
        self.counters.begin_with_0()
        self.counters.fit.set_function(lambda: not unfit())
        self._reading = threads.SingleFlightCache(
            'metrics', functools.partial(
                read, database, per_host=self._per_host,
                silent_after=self._silent_after),
            LIFETIME, PATIENCE)
        self._registry.register(CloudGauges(
            self._reading.get, per_host=self._per_host,
            silent_after=self._silent_after))
        try:
            self._server, self._thread = prometheus_client.start_http_server(
                self._address.port, self._address.host, self._registry)
        except OSError as exc:
            raise exception.ConfigInvalid(
                option=OPTION,
                reason=f'cannot listen on {self._address}: '
                                      f'{exc.strerror}') from exc
        self._server.set_app(functools.partial(
            _answer, prometheus_client.make_wsgi_app(self._registry), unfit))
        self._server.RequestHandlerClass = _Handler
        LOG.info('Metrics are served at http://%s/metrics', self._address)

    def stop(self) -> None:
        """Serve no more: the port is free, and no reading is under way."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = self._thread = None
        if self._reading is not None:
            self._reading.stop()


class _Handler(simple_server.WSGIRequestHandler):
    """Handler of one connection that a silent client does not keep."""

    timeout = SILENCE

    def handle(self) -> None:
        """Answer a request, if one comes in time."""
        with contextlib.suppress(TimeoutError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, since somebody calls every few seconds."""


def _answer(show: Callable[..., Iterable[bytes]], unfit: Callable[[], str],
            environ: Mapping[str, typing.Any],
            start_response: Callable[..., object]) -> Iterable[bytes]:
    """Answer a request, as an application of WSGI.

    :param show: application that shows the metrics
    """
    if environ['PATH_INFO'] != HEALTH_PATH:
        return show(environ, start_response)
    reason = unfit()
    start_response('503 Service Unavailable' if reason else '200 OK',
                   [('Content-Type', 'text/plain; charset=utf-8')])
    return [f'{reason or "OK"}\n'.encode()]
