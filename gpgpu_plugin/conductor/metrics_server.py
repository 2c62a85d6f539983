#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""The HTTP server of a conductor's metrics: GET /metrics, and nothing else.

It has threads of its own, so that it answers while all threads that serve RPC
hang. It has few of them, and ends each connection after some seconds, so that
strangers who connect cost the conductor nothing. It has no TLS and asks for no
password: that is left to a proxy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import ipaddress
import socket
import socketserver
import threading
import time
import typing
from collections.abc import Callable
from http import server as http_server

from oslo_log import log as logging

from gpgpu_plugin import exception

LOG = logging.getLogger(__name__)

OPTION = '[gpgpu] metrics_bind'

PATH = '/metrics'

CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8'

CONNECTIONS = 8
"""Connections at once; more are closed without an answer."""

LONGEST = 20.0
"""Seconds that a connection may take. Prometheus waits for 10 by default."""

SILENCE = 5.0
"""Seconds for which a client may send and accept nothing."""

STOP_DELAY = 0.5
"""Seconds until the server notices that it is to stop."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Address:
    """An IP address and a TCP port; 0 for any."""

    host: str
    port: int

    def __str__(self) -> str:
        return (f'[{self.host}]:{self.port}' if ':' in self.host
                else f'{self.host}:{self.port}')

    @property
    def family(self) -> socket.AddressFamily:
        """Return the address family."""
        return socket.AF_INET6 if ':' in self.host else socket.AF_INET


def parse(value: str) -> Address:
    """Return the address that the option names.

    :raises ConfigInvalid: it is malformed
    """
    host, _, port = value.rpartition(':')
    is_bracketed = host.startswith('[') and host.endswith(']')
    try:
        found = ipaddress.ip_address(host[1:-1] if is_bracketed else host)
        # Not the other spellings of a number that int() takes.
        if (is_bracketed == (found.version == 6) and port.isascii()
                and port.isdigit() and 0 < int(port) < 65536):
            return Address(host=str(found), port=int(port))
    except ValueError:
        pass
    raise exception.ConfigInvalid(
        option=OPTION,
        reason=f'it is {value!a:.100}, but must be an IP address and a port, '
               f'such as 127.0.0.1:9464 or [::1]:9464')


def check_local(address: Address) -> None:
    """Refuse an address that this machine does not have.

    The port may be in use until the conductor before this one has stopped.

    :raises ConfigInvalid: nothing can listen there
    """
    try:
        with socket.socket(address.family) as probe:
            probe.bind((address.host, 0))
    except OSError as exc:
        raise exception.ConfigInvalid(
            option=OPTION,
            reason=f'this machine cannot listen on {address.host}: '
                   f'{exc.strerror}') from exc


class _Handler(http_server.BaseHTTPRequestHandler):
    """Handler of one connection, which is one request of HTTP/1.0."""

    timeout = SILENCE
    server: _Server

    def version_string(self) -> str:
        """Return the name of the program, and not the version of Python."""
        return 'gpgpu-conductor'

    def do_GET(self) -> None:
        """Answer with the metrics."""
        if self.path.partition('?')[0] != PATH:
            self.send_error(404)
            return
        body = self.server.text()
        self.send_response(200)
        self.send_header('Content-Type', CONTENT_TYPE)
        if 'gzip' in self.headers.get('Accept-Encoding', ''):
            body = gzip.compress(body, compresslevel=1)
            self.send_header('Content-Encoding', 'gzip')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log at DEBUG, since somebody calls every few seconds."""
        LOG.debug('Metrics for %s: %s', self.client_address[0],
                  ascii(format % args))


class _Server(socketserver.ThreadingMixIn, http_server.HTTPServer):
    """Server with a limited number of connections.

    Only the thread that accepts connections adds to them.
    """

    # So that the end of the server waits for its threads, and a second server
    # on the same port is refused.
    daemon_threads, allow_reuse_port = False, False

    def __init__(self, address: Address, text: Callable[[], bytes]) -> None:
        self.address_family = address.family
        self.text = text
        self._began_at: dict[typing.Any, float] = {}
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking DNS for the name of this machine."""
        socketserver.TCPServer.server_bind(self)

    def verify_request(self, request: typing.Any,
                       client_address: typing.Any) -> bool:
        """Return whether one more connection is accepted."""
        return len(self._began_at) < CONNECTIONS

    def process_request(self, request: typing.Any,
                        client_address: typing.Any) -> None:
        """Handle a connection in a thread of its own."""
        self._began_at[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: typing.Any) -> None:
        """Close a connection."""
        self._began_at.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that take too long; called twice a second."""
        self.end_connections(LONGEST)

    def end_connections(self, age: float) -> None:
        """End connections that began so many seconds ago or earlier."""
        until = time.monotonic() - age
        for request, began_at in list(self._began_at.items()):
            if began_at <= until:
                _end(request)

    def handle_error(self, request: typing.Any,
                     client_address: typing.Any) -> None:
        """Log what went wrong with a connection."""
        LOG.debug('The connection of %s for metrics failed',
                  client_address[0], exc_info=True)


def _end(request: socket.socket) -> None:
    """Let reading and writing of a connection fail in its thread."""
    # It may have ended meanwhile.
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class MetricsServer:
    """The HTTP server, in threads of its own.

    :param text: returns the answer; called in several threads
    """

    def __init__(self, address: Address, text: Callable[[], bytes]) -> None:
        self._address = address
        self._text = text
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Address:
        """Listen, and return the address with its port.

        :raises ConfigInvalid: nothing can listen there
        """
        try:
            self._server = _Server(self._address, self._text)
        except OSError as exc:
            raise exception.ConfigInvalid(
                option=OPTION,
                reason=f'cannot listen on {self._address}: {exc.strerror}',
                ) from exc
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_DELAY,),
            name='gpgpu-metrics-server', daemon=True)
        self._thread.start()
        return dataclasses.replace(
            self._address, port=self._server.server_address[1])

    def stop(self) -> None:
        """Listen no more, and end all connections."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.end_connections(0)
            self._server.server_close()
            self._server = self._thread = None
