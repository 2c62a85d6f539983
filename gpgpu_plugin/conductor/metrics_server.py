# SPDX-License-Identifier: Apache-2.0
"""The HTTP endpoint from which Prometheus reads the metrics of a conductor.

A load balancer asks there whether it takes calls.
It asks for no password: that is left to a proxy.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable

from gpgpu_plugin.conductor import http_server

OPTION = '[gpgpu] metrics_bind'

PATH = '/metrics'

HEALTH_PATH = '/healthcheck'
"""The status is 503 if the conductor takes no calls, and the text says why."""

CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8'

CONNECTIONS = 8
"""Connections at once; more are closed without an answer."""


class _Handler(http_server.Handler):
    """Handler of one scrape; a subclass has the text.

    :cvar text: returns the answer
    :cvar unfit: returns why the conductor takes no calls
    """

    purpose = 'Metrics'
    text: Callable[[], bytes]
    unfit: Callable[[], str]

    def do_GET(self) -> None:
        """Answer with the metrics."""
        path = self.path.partition('?')[0]
        if path == HEALTH_PATH:
            unfit = type(self).unfit()
            if unfit:
                self.send_error(503, explain=unfit)
            else:
                self.send(b'OK\n', 'text/plain')
            return
        if path != PATH:
            self.send_error(404)
            return
        body = type(self).text()
        if 'gzip' in self.headers.get('Accept-Encoding', ''):
            self.send(gzip.compress(body, compresslevel=1), CONTENT_TYPE,
                      'gzip')
        else:
            self.send(body, CONTENT_TYPE)


def listener(address: http_server.Address,
             text: Callable[[], bytes],
             unfit: Callable[[], str] = lambda: '') -> http_server.Listener:
    """Return the server of the metrics.

    :param text: returns the answer; called in several threads
    :param unfit: returns why the conductor takes no calls; empty: it does
    """
    handler = type('Handler', (_Handler,), {
        'text': staticmethod(text), 'unfit': staticmethod(unfit)})
    return http_server.Listener(
        address, 'gpgpu-metrics-server', OPTION, handler, CONNECTIONS)
