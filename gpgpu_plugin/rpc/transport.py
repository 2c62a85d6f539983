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
"""The one place that makes oslo.messaging transports, clients and servers."""

from __future__ import annotations

import typing
import uuid
from collections.abc import Sequence

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import context
from gpgpu_plugin import exception

# Named in every target: [DEFAULT] control_exchange is "nova" in Nova's
# processes and "openstack" in ours, and a client of the one does not reach a
# server of the other.
EXCHANGE = 'gpgpu'

# Exceptions of these modules are rebuilt on the caller's side.
_REMOTE_MODULES = [exception.__name__]

_GLOBAL_ONLY = (('oslo_messaging_tracing', 'tracing_enabled'),
                ('oslo_messaging_metrics', 'metrics_enabled'))


def get_transport(conf: cfg.ConfigOpts) -> typing.Any:
    """The plugin's transport: ``[gpgpu] transport_url`` or Nova's own."""
    # oslo.messaging 18 registers these with the global CONF alone, yet reads
    # them from the transport's.
    for group, option in _GLOBAL_ONLY:
        if group not in conf:
            conf.register_opt(cfg.BoolOpt(option, default=False), group=group)
    return oslo_messaging.get_rpc_transport(
        conf, url=conf.gpgpu.transport_url,
        allowed_remote_exmods=_REMOTE_MODULES)


def conductor_topic(conf: cfg.ConfigOpts) -> str:
    """Where any conductor answers."""
    return f'{conf.gpgpu.topic_prefix}-conductor'


def compute_topic(conf: cfg.ConfigOpts) -> str:
    """Where nova-compute answers, one server a host."""
    return f'{conf.gpgpu.topic_prefix}-compute'


def probe(conf: cfg.ConfigOpts, rpc_transport: typing.Any) -> None:
    """Send one message that nobody reads.

    A call or a server waits for ever for a broker that is down or refuses
    the password, whatever its timeout, since its queue does; a message
    without retry does not.

    :raises BrokerUnavailable: the broker does not take it
    """
    try:
        client(rpc_transport, f'gpgpu-probe-{uuid.uuid4()}', '1.0').prepare(
            retry=0).cast(context.admin(), 'probe')
    except Exception as exc:
        # kombu's and oslo.messaging's classes have no common base.
        raise exception.BrokerUnavailable(
            hosts=_hosts(conf), reason=exc) from exc


def _hosts(conf: cfg.ConfigOpts) -> str:
    # Not the URL: a password is in it.
    url = oslo_messaging.TransportURL.parse(conf, conf.gpgpu.transport_url)
    return ', '.join(f'{host.hostname}:{host.port}' for host in url.hosts
                     ) or 'localhost (no transport_url is configured)'


def check_leaves_process(conf: cfg.ConfigOpts) -> None:
    """For programs that talk to other processes.

    :raises ConfigInvalid: the transport reaches nobody outside this one
    """
    url = oslo_messaging.TransportURL.parse(conf, conf.gpgpu.transport_url)
    if str(url.transport) in ('fake', 'kombu+memory'):
        raise exception.ConfigInvalid(
            option='[gpgpu] transport_url',
            reason='this transport reaches nobody outside a process; give '
                   'the one that gpgpu-conductor, nova-compute and '
                   'nova-scheduler share, such as '
                   'rabbit://user:password@host:5672/')


def client(rpc_transport: typing.Any, topic: str, version: str,
           timeout: float | None = None) -> typing.Any:
    """An RPC client for a topic.

    A broker that went away is looked for once more, not for ever, which is
    oslo.messaging's default.
    """
    return oslo_messaging.get_rpc_client(
        rpc_transport, oslo_messaging.Target(
            exchange=EXCHANGE, topic=topic, version=version),
        serializer=context.ContextSerializer(), timeout=timeout, retry=1)


def server(rpc_transport: typing.Any, topic: str, name: str,
           endpoints: Sequence[object]) -> typing.Any:
    """An RPC server, not yet started."""
    return oslo_messaging.get_rpc_server(
        rpc_transport, oslo_messaging.Target(
            exchange=EXCHANGE, topic=topic, server=name),
        list(endpoints), executor='threading',
        serializer=context.ContextSerializer(),
        access_policy=oslo_messaging.DefaultRPCAccessPolicy)
