# SPDX-License-Identifier: Apache-2.0
"""The metrics of one conductor service, from counting to serving.

The server of prometheus_client answers, each request in a thread of its own.
It asks for no password and has no TLS: that is left to a proxy.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import typing
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from wsgiref import simple_server

import prometheus_client
from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import cached_reading
from gpgpu_plugin.conductor import http_server
from gpgpu_plugin.conductor import metrics
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import ping

LOG = logging.getLogger(__name__)

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
        self._address = http_server.parse(value, OPTION) if value else None
        if self._address is not None:
            http_server.check_local(self._address, OPTION)
        self._per_host: bool = conf.gpgpu_conductor.metrics_per_host
        self._silent_after: float = conf_gpgpu.silent_after(conf)
        self._registry = prometheus_client.CollectorRegistry()
        self.counters = metrics.Counters(self._registry, {
            *contract.methods(conductor_contract.Conductor),
            *contract.methods(ping.Pinged)})
        self._reading: cached_reading.CachedReading[metrics.Reading] | None = (
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
        self._reading = cached_reading.CachedReading(
            'metrics', functools.partial(
                metrics.read, database, per_host=self._per_host,
                silent_after=self._silent_after),
            LIFETIME, PATIENCE)
        self._registry.register(metrics.Gauges(
            self._reading.get, per_host=self._per_host,
            silent_after=self._silent_after))
        try:
            self._server, self._thread = prometheus_client.start_http_server(
                self._address.port, self._address.host, self._registry)
        except OSError as exc:
            raise exception.ConfigInvalid(
                option=OPTION, reason=f'cannot listen on {self._address}: '
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
