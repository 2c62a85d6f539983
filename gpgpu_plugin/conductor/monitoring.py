# SPDX-License-Identifier: Apache-2.0
"""The metrics of one conductor service, from counting to serving."""

from __future__ import annotations

import functools
from collections.abc import Callable

import prometheus_client
from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin.conductor import cached_reading
from gpgpu_plugin.conductor import http_server
from gpgpu_plugin.conductor import metrics
from gpgpu_plugin.conductor import metrics_server
from gpgpu_plugin.db import api
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import ping

LOG = logging.getLogger(__name__)

LIFETIME = 10.0
"""Seconds for which the gauges are not read again."""

PATIENCE = 8.0
"""Seconds for which a scrape waits for them. Prometheus waits for 10 s by
default, and would take a conductor whose database hangs for a dead one."""


class Monitoring:
    """Counters of a conductor and, if configured, its metrics endpoint.

    :ivar counters: count whether somebody reads them or not
    :raises ConfigInvalid: nothing can listen on ``[gpgpu] metrics_bind``
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        value = conf.gpgpu.metrics_bind
        self._address = http_server.parse(
            value, metrics_server.OPTION) if value else None
        if self._address is not None:
            http_server.check_local(
                self._address, metrics_server.OPTION)
        self._per_host: bool = conf.gpgpu.metrics_per_host
        self._silent_after: float = conf.gpgpu.session_timeout
        self._registry = prometheus_client.CollectorRegistry()
        self.counters = metrics.Counters(self._registry, {
            *contract.methods(conductor_contract.Conductor),
            *contract.methods(ping.Pinged)})
        self._reading: cached_reading.CachedReading[metrics.Reading] | None = (
            None)
        self._server: http_server.Listener | None = None

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
        self._server = metrics_server.listener(
            self._address, functools.partial(metrics.text, self._registry),
            unfit)
        LOG.info('Metrics are served at http://%(address)s%(path)s',
                 {'address': self._server.start(),
                  'path': metrics_server.PATH})

    def stop(self) -> None:
        """Serve no more; all its threads have ended then."""
        if self._server is not None:
            self._server.stop()
        if self._reading is not None:
            self._reading.stop()
