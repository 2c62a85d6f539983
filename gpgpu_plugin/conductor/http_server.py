# SPDX-License-Identifier: Apache-2.0
"""HTTP server of the conductor, and addresses that HTTP servers listen on.

It has threads of its own, so that it answers while all threads that serve RPC
hang. It has few of them, and ends each connection after some seconds, so that
strangers who connect cost the conductor nothing. It has no TLS: that is left
to a proxy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import socket
import socketserver
import threading
import time
import typing
from http import server as http_server

from oslo_log import log as logging

from gpgpu_plugin import exception

LOG = logging.getLogger(__name__)

_Request = typing.Any
"""The socket of a connection."""

_ClientAddress = typing.Any
"""Address and port, and what else its family has."""

MAX_SECONDS = 20.0
"""Seconds that a connection may take. Nova waits for 5."""

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


def parse(value: str, option: str) -> Address:
    """Return the address that an option names.

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
        option=option,
        reason=f'it is {value!a:.100}, but must be an IP address and a port, '
               f'such as 127.0.0.1:9464 or [::1]:9464')


def check_local(address: Address, option: str) -> None:
    """Refuse an address that this machine does not have.

    The port may be in use until the conductor before this one has stopped.

    :raises ConfigInvalid: nothing can listen there
    """
    try:
        with socket.socket(address.family) as probe:
            probe.bind((address.host, 0))
    except OSError as exc:
        raise exception.ConfigInvalid(
            option=option,
            reason=f'this machine cannot listen on {address.host}: '
                   f'{exc.strerror}') from exc


class Handler(http_server.BaseHTTPRequestHandler):
    """Handler of one connection, which is one request of HTTP/1.0."""

    timeout = SILENCE

    def version_string(self) -> str:
        """Return the name of the program, and not the version of Python."""
        return 'gpgpu-conductor'

    def send(self, body: bytes, content_type: str) -> None:
        """Send an answer with status 200."""
        self.send_response(200)
        self.send_header('Content-Type', content_type)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log at DEBUG, since somebody may call every few seconds."""
        LOG.debug('Request of %s: %s', self.client_address[0],
                  ascii(format % args))


class HTTPServer(socketserver.ThreadingMixIn, http_server.HTTPServer):
    """Server with a limited number of connections.

    Only the thread that accepts connections adds to them.
    """

    # So that the end of the server waits for its threads, and a second server
    # on the same port is refused.
    daemon_threads, allow_reuse_port = False, False
    # Connections that arrive while the thread is busy; five by default, and
    # the kernel lets a client whose connection it drops wait for a second.
    request_queue_size = 256

    def __init__(self, address: Address, handler: type[Handler],
                 connections: int) -> None:
        self.address_family = address.family
        self._connections = connections
        self._began_at: dict[_Request, float] = {}
        super().__init__((address.host, address.port), handler)

    def server_bind(self) -> None:
        """Bind without asking DNS for the name of this machine."""
        socketserver.TCPServer.server_bind(self)

    def verify_request(self, request: _Request,
                       client_address: _ClientAddress) -> bool:
        """Return whether one more connection is accepted."""
        return len(self._began_at) < self._connections

    def process_request(self, request: _Request,
                        client_address: _ClientAddress) -> None:
        """Handle a connection in a thread of its own."""
        self._began_at[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: _Request) -> None:
        """Close a connection."""
        self._began_at.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that take too long; called twice a second."""
        self.end_connections(MAX_SECONDS)

    def end_connections(self, age: float) -> None:
        """End connections that began so many seconds ago or earlier."""
        until = time.monotonic() - age
        for request, began_at in list(self._began_at.items()):
            if began_at <= until:
                _end(request)

    def handle_error(self, request: _Request,
                     client_address: _ClientAddress) -> None:
        """Log what went wrong with a connection."""
        LOG.debug('The HTTP connection of %s failed',
                  client_address[0], exc_info=True)


def _end(request: socket.socket) -> None:
    """Let reading and writing of a connection fail in its thread."""
    # It may have ended meanwhile.
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class HTTPListener:
    """An HTTP server in threads of its own.

    :param option: that has the address, for messages
    :param handler: answers requests, several at once
    :param connections: connections at once; more are closed without an answer
    """

    def __init__(self, address: Address, option: str,
                 handler: type[Handler], connections: int) -> None:
        self._address = address
        self._option = option
        self._handler = handler
        self._connections = connections
        self._server: HTTPServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Address:
        """Listen, and return the address with its port.

        :raises ConfigInvalid: nothing can listen there
        """
        try:
            self._server = HTTPServer(
                self._address, self._handler, self._connections)
        except OSError as exc:
            raise exception.ConfigInvalid(
                option=self._option,
                reason=f'cannot listen on {self._address}: {exc.strerror}',
                ) from exc
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_DELAY,),
            name='gpgpu-http-server', daemon=True)
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
