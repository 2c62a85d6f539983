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
import uuid

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin import rpc

_OPTION = '[gpgpu] transport_url'


def transport(conf: cfg.ConfigOpts) -> typing.Any:
    """A transport on which a broker answered.

    A call waits for ever for a broker that is down or refuses the password,
    whatever its timeout, since its reply queue does. So one message that
    nobody reads is sent first: that takes no retry.

    :raises ConfigInvalid: the transport reaches nobody, or not now
    """
    if rpc.is_in_process(conf):
        raise exception.ConfigInvalid(
            option=_OPTION,
            reason='this transport reaches nobody outside a process; give '
                   'that of gpgpu-conductor, such as '
                   'rabbit://user:password@host:5672/, by --config-file')
    found = rpc.transport(conf)
    try:
        rpc.client(found, f'gpgpu-probe-{uuid.uuid4()}', '1.0').prepare(
            retry=0).cast(gpgpu_context.admin(), 'probe')
    except Exception as exc:
        raise exception.ConfigInvalid(
            option=_OPTION, reason=f'the broker at {_hosts(conf)} cannot be '
                                   f'reached: {exc}') from exc
    return found


def _hosts(conf: cfg.ConfigOpts) -> str:
    # Not the URL: a password is in it.
    url = oslo_messaging.TransportURL.parse(conf, conf.gpgpu.transport_url)
    return ', '.join(f'{host.hostname}:{host.port}' for host in url.hosts
                     ) or 'localhost (no transport_url is configured)'
