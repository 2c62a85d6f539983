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
"""When a call arrived, for servers that must not act on an old one.

The broker drops a message that has waited there longer than its caller does.
What has been taken off the broker may still wait, for a thread or for a lock
of the database, and only the server's own clock can tell how long.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Iterable

import oslo_messaging
from oslo_messaging.rpc import server

from gpgpu_plugin import exception

_MARK = 'gpgpu_arrived_at'

_arrived_at: contextvars.ContextVar[float] = contextvars.ContextVar(
    'arrived_at')


def check_wanted(method: str, subject: str, wanted: float) -> None:
    """Refuse to go on with a call whose caller has given up.

    :param subject: what the call is about, for the message
    :param wanted: seconds that the caller waits
    :raises RequestExpired: they are over
    """
    now = time.monotonic()
    waited = now - _arrived_at.get(now)
    if waited > wanted:
        raise exception.RequestExpired(
            method=method, subject=subject, wanted=wanted,
            waited=round(waited, 1))


class Dispatcher(oslo_messaging.RPCDispatcher):
    """Dispatcher that lets check_wanted know when a message arrived."""

    def dispatch(self, incoming: object) -> object:
        """Call the method that a message names."""
        token = _arrived_at.set(
            getattr(incoming, _MARK, time.monotonic()))
        try:
            return super().dispatch(incoming)
        finally:
            _arrived_at.reset(token)


class Server(server.RPCServer):
    """Server that notes when a message is taken off the broker."""

    def _on_incoming(self, incoming: Iterable[object]) -> None:
        # Called by the thread that reads from the broker, before the message
        # waits for a thread that handles it.
        for message in incoming:
            setattr(message, _MARK, time.monotonic())
        super()._on_incoming(incoming)
