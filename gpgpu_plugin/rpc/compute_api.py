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

from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.rpc import transport as rpc_transport

VERSION = '1.0'


class ComputeAPI:
    """Casts to one host's nova-compute; nobody waits for an answer."""

    def __init__(self, conf: cfg.ConfigOpts,
                 transport: typing.Any = None) -> None:
        self._client = rpc_transport.client(
            transport or rpc_transport.get_transport(conf),
            rpc_transport.compute_topic(conf),
            VERSION,
        )

    def refresh(self, ctxt: gpgpu_context.RequestContext, host: str) -> None:
        """Something of the host changed in the conductor: fetch, push to
        Placement, clean what is dirty."""
        self._client.prepare(server=host).cast(ctxt, 'refresh')
