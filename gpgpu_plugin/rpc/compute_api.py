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
"""RPC API that nova-compute serves for its host: contract and client.

``compute.manager`` implements the contract.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import transport as rpc_transport

VERSION = '1.0'

USAGE_TIMEOUT = 10
"""Seconds within which a nova-compute must say which assignments are used."""

# Seconds. A nova-compute that does not answer in this time counts as not
# running: long enough for a busy one, short for an operator who waits.
PING_TIMEOUT = 5

_Context = gpgpu_context.RequestContext


class Compute(typing.Protocol):
    """Methods that one host's nova-compute serves."""

    def refresh(self, ctxt: _Context) -> None:
        """Fetch the inventory, update Placement and clean dirty devices.

        The conductor casts it after a change that concerns the host.
        """

    def assignments_changed(self, ctxt: _Context) -> None:
        """Fetch the host's assignments, then do what ``refresh`` does.

        The conductor casts it after it changed assignments for another host,
        for example when the source of a migration confirms it.
        """

    def assignment_usage(
        self, ctxt: _Context, *, assignments: Sequence[claim_obj.Assignment],
    ) -> tuple[claim_obj.Usage, ...]:
        """Return whether the host's instances use their assignments.

        :param assignments: all that each of these instances has on the host
        """

    def ping(self, ctxt: _Context) -> None:
        """Answer, which shows that this host's nova-compute runs."""


class ComputeAPI:
    """Messages to the nova-compute of a host."""

    def __init__(self, conf: cfg.ConfigOpts,
                 transport: rpc_transport.Transport | None = None) -> None:
        self._conf = conf
        self._transport = transport or rpc_transport.get_transport(conf)
        self._client = rpc_transport.client(
            self._transport, rpc_transport.compute_topic(conf), VERSION)

    def refresh(self, ctxt: _Context, host: str) -> None:
        """Notify a host that its data in the conductor changed; do not wait.

        See Compute.refresh.
        """
        contract.Client(self._client.prepare(server=host)).cast(
            Compute.refresh, ctxt)

    def assignments_changed(self, ctxt: _Context, host: str) -> None:
        """Notify a host that its assignments changed; do not wait.

        See Compute.assignments_changed.
        """
        contract.Client(self._client.prepare(server=host)).cast(
            Compute.assignments_changed, ctxt)

    def assignment_usage(
        self, ctxt: _Context, host: str,
        assignments: Sequence[claim_obj.Assignment],
    ) -> tuple[claim_obj.Usage, ...]:
        """Ask a host which assignments are used; see Compute.

        :raises oslo_messaging.MessagingException: it does not answer
        """
        return contract.Client(
            self._client.prepare(server=host), USAGE_TIMEOUT).call(
                Compute.assignment_usage, ctxt, assignments=assignments)

    def ping(self, ctxt: _Context, host: str) -> bool:
        """Return whether a nova-compute of the host answers in time.

        :raises BrokerUnavailable: the broker cannot deliver the call or the
            answer
        """
        rpc_transport.probe(self._conf, self._transport)
        client = contract.Client(
            self._client.prepare(server=host), PING_TIMEOUT)
        try:
            client.call(Compute.ping, ctxt)
        except (oslo_messaging.RemoteError,
                oslo_messaging.RPCDispatcherError):
            # A nova-compute of another version answered. The in-process
            # transport does not turn its error into a RemoteError.
            return True
        except oslo_messaging.MessagingTimeout:
            # Silence means something only if the broker could have carried
            # an answer.
            rpc_transport.probe(self._conf, self._transport)
            return False
        return True
