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
"""How a short-lived program finds the broker, or learns that it cannot."""

from __future__ import annotations

import typing

from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin.rpc import transport as rpc_transport


def transport(conf: cfg.ConfigOpts) -> typing.Any:
    """A transport on which a broker answered.

    :raises ConfigInvalid: the transport reaches nobody, or not now
    """
    rpc_transport.check_leaves_process(conf)
    found = rpc_transport.get_transport(conf)
    try:
        rpc_transport.probe(conf, found)
    except exception.BrokerUnavailable as exc:
        raise exception.ConfigInvalid(
            option='[gpgpu] transport_url', reason=str(exc)) from exc
    return found
