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
"""Who is alive: every conductor is asked at once and answers by itself.

No register is kept that could be out of date: who answers is alive.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import time
import typing
import uuid

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import version
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import conductor_api
from gpgpu_plugin.rpc import transport as rpc_transport


@dataclasses.dataclass(frozen=True, kw_only=True)
class PingAnswer:
    """One live conductor."""

    host: str
    pid: int
    version: str
    rpc_version: str
    started_at: float


def ping(conf: cfg.ConfigOpts, transport: typing.Any = None,
         wait: float = 2.0) -> tuple[PingAnswer, ...]:
    """Ask all conductors, and collect the answers that come in time.

    :param wait: seconds to listen
    """
    transport = transport or rpc_transport.get_transport(conf)
    topic = f'gpgpu-ping-{uuid.uuid4()}'
    endpoint = _Collector()
    server = rpc_transport.server(transport, topic, 'asker', [endpoint])
    server.start()
    try:
        conductors = rpc_transport.client(
            transport,
            rpc_transport.conductor_topic(conf),
            conductor_api.VERSION,
        )
        conductors.prepare(fanout=True).cast(
            gpgpu_context.admin(), 'ping', reply_to=topic)
        time.sleep(wait)
    finally:
        server.stop()
        server.wait()
    with endpoint.lock:
        return tuple(sorted(
            endpoint.answers, key=lambda each: (each.host, each.pid)))


class _Collector:
    target = oslo_messaging.Target(version='1.0')

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answers: list[PingAnswer] = []

    def pong(self, ctxt: gpgpu_context.RequestContext,
             answer: dict[str, object]) -> None:
        with self.lock:
            self.answers.append(codec.from_primitive(PingAnswer, answer))


class PingEndpoint:
    """The conductor's side."""

    target = oslo_messaging.Target(version=conductor_api.VERSION)

    def __init__(self, transport: typing.Any) -> None:
        self._transport = transport
        self._started_at = time.time()

    def ping(self, ctxt: gpgpu_context.RequestContext,
             reply_to: str) -> None:
        """Cast this conductor's answer to the asker."""
        rpc_transport.client(self._transport, reply_to, '1.0').cast(
            ctxt, 'pong', answer=codec.to_primitive(PingAnswer(
                host=socket.gethostname(), pid=os.getpid(),
                version=version.VERSION, rpc_version=conductor_api.VERSION,
                started_at=self._started_at)))
