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
"""Client side of the small RPC API that nova-compute serves per host."""

from __future__ import annotations

import typing

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.rpc import transport as rpc_transport

VERSION = '1.0'

# Seconds. Whoever does not answer meanwhile counts as not running, so it must
# be long for a busy nova-compute and short for whoever waits for a dead one.
PING_TIMEOUT = 5


class ComputeAPI:
    """Messages to one host's nova-compute."""

    def __init__(self, conf: cfg.ConfigOpts,
                 transport: typing.Any = None) -> None:
        self._conf = conf
        self._transport = transport or rpc_transport.get_transport(conf)
        self._client = rpc_transport.client(
            self._transport, rpc_transport.compute_topic(conf), VERSION)

    def refresh(self, ctxt: gpgpu_context.RequestContext, host: str) -> None:
        """Something of the host changed in the conductor: fetch, push to
        Placement, clean what is dirty. Nobody waits for it."""
        self._client.prepare(server=host).cast(ctxt, 'refresh')

    def ping(self, ctxt: gpgpu_context.RequestContext, host: str) -> bool:
        """Return whether a nova-compute of the host answers in time.

        :raises BrokerUnavailable: it could not be asked, or could not answer
        """
        rpc_transport.probe(self._conf, self._transport)
        try:
            self._client.prepare(server=host, timeout=PING_TIMEOUT).call(
                ctxt, 'ping')
        except (oslo_messaging.RemoteError,
                oslo_messaging.RPCDispatcherError):
            # An answer, if of another version; the in-process transport
            # keeps its class.
            return True
        except oslo_messaging.MessagingTimeout:
            # Silence counts only if the broker would have carried an answer.
            rpc_transport.probe(self._conf, self._transport)
            return False
        return True
