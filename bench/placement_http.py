# SPDX-License-Identifier: Apache-2.0
"""Placement as Nova reaches it: API processes, and keystoneauth before them.

The server is that of the standard library, with one thread for each
connection, which stays open.
"""

from __future__ import annotations

import dataclasses
import functools
import http.server
import json
import logging
import multiprocessing
import multiprocessing.connection
import typing
from collections.abc import Sequence

import webob
from keystoneauth1 import session as ksa_session
from keystoneauth1 import token_endpoint

from bench import placement_peer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Response:
    """An answer, with the names of webob.Response."""

    status_int: int
    text: str

    @property
    def json(self) -> typing.Any:
        """Return the decoded body."""
        return json.loads(self.text)


class HTTPClient:
    """Client of one API process, for all threads of its process.

    :param port: on which the API process listens
    """

    def __init__(self, port: int) -> None:
        self._session = ksa_session.Session(
            auth=token_endpoint.Token(f'http://127.0.0.1:{port}', 'admin'))

    def call(self, method: str, path: str, body: object = None) -> Response:
        """Send one request, as admin, at the newest microversion."""
        answer = self._session.request(
            path, method, raise_exc=False, json=body,
            endpoint_filter={'service_type': 'placement'},
            headers={'OpenStack-API-Version': placement_peer.MICROVERSION})
        return Response(status_int=answer.status_code, text=answer.text)


class _Handler(http.server.BaseHTTPRequestHandler):

    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True
    client: typing.ClassVar[placement_peer.PlacementClient]

    def _answer(self) -> None:
        length = int(self.headers.get('Content-Length') or 0)
        response = self.client.send(webob.Request.blank(
            self.path, method=self.command, headers=dict(self.headers),
            body=self.rfile.read(length)))
        self.send_response(response.status_int)
        for name, value in response.headerlist:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(response.body)

    do_GET = do_PUT = _answer

    def log_message(self, *_arguments: object) -> None:
        """Write nothing."""


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


def serve(url: str, port: multiprocessing.connection.Connection, *,
          exact: bool) -> None:
    """Serve until the process is ended.

    :param port: the port is sent there
    :param exact: see placement_peer.PlacementClient
    """
    logging.disable(logging.CRITICAL)
    _Handler.client = placement_peer.PlacementClient(url, exact=exact)
    with _Server(('127.0.0.1', 0), _Handler) as server:
        port.send(server.server_port)
        server.serve_forever()


def connect(ports: Sequence[int], number: int) -> placement_peer.Client:
    """Return the client of a process, which has a number."""
    return HTTPClient(ports[number % len(ports)])


def run(url: str, *, hosts: int = 25, devices: int = 8, servers: int = 2,
        exact: bool = False) -> placement_peer.PeerResult:
    """Let all clients claim devices, over HTTP, until none is free.

    :param url: SQLAlchemy URL of an empty database
    :param exact: see placement_peer.PlacementClient
    """
    placement_peer.prepare(url, hosts, devices)
    context = multiprocessing.get_context('spawn')
    pipes = [context.Pipe() for _ in range(servers)]
    children = [context.Process(
        target=serve, args=(url, end), kwargs={'exact': exact}, daemon=True)
        for _, end in pipes]
    try:
        for child in children:
            child.start()
        ports = [ours.recv() for ours, _ in pipes]
        return placement_peer.compete(functools.partial(connect, ports))
    finally:
        for child in children:
            child.terminate()
            child.join()
