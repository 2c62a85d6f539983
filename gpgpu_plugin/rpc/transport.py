# SPDX-License-Identifier: Apache-2.0
"""Creation of all oslo.messaging transports, clients and servers."""

from __future__ import annotations

import copy
import functools
import typing
import uuid
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

import oslo_messaging
from oslo_config import cfg
from oslo_messaging import opts as oslo_messaging_opts
from oslo_messaging.notify import notifier
from stevedore import driver as stevedore_driver

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.rpc import server as server_mod

# Named in every target: [DEFAULT] control_exchange is "nova" in Nova's
# processes and "openstack" in ours, and a client on one exchange does not
# reach a server on the other.
EXCHANGE = 'gpgpu'

# oslo.messaging rebuilds exceptions of these modules on the caller's side.
_REMOTE_MODULES = [exception.__name__]

_EXAMPLE = 'rabbit://user:password@host:5672/'

_GLOBAL_ONLY = (('oslo_messaging_tracing', 'tracing_enabled'),
                ('oslo_messaging_metrics', 'metrics_enabled'))


class Transport(typing.Protocol):
    """oslo_messaging.RPCTransport, as far as it is used here."""

    conf: cfg.ConfigOpts

    def cleanup(self) -> None:
        """Close all connections."""


class RPCClient(typing.Protocol):
    """oslo_messaging.RPCClient, as far as it is used here."""

    def prepare(self, *, server: str | None = ..., fanout: bool = ...,
                timeout: float | None = ..., retry: int | None = ...,
                ) -> RPCClient:
        """Return a client with other properties for its calls."""

    def call(self, ctxt: context.RequestContext, method: str,
             **kwargs: object) -> object:
        """Call a method and return the primitive that it returns."""

    def cast(self, ctxt: context.RequestContext, method: str,
             **kwargs: object) -> None:
        """Call a method without waiting."""


class RPCServer(typing.Protocol):
    """oslo_messaging.RPCServer, as far as it is used here."""

    def start(self) -> None:
        """Begin to serve."""

    def stop(self) -> None:
        """Accept no new message."""

    def wait(self) -> None:
        """Wait until all accepted messages are handled."""


def get_transport(conf: cfg.ConfigOpts) -> Transport:
    """Return a transport to ``[gpgpu] transport_url``, else to Nova's.

    :raises ConfigInvalid: it is no URL, or no driver has its scheme
    """
    _register_global_only(conf)
    _parse(conf, conf.gpgpu.transport_url)
    try:
        transport: Transport = oslo_messaging.get_rpc_transport(
            conf, url=conf.gpgpu.transport_url,
            allowed_remote_exmods=_REMOTE_MODULES)
    except oslo_messaging.DriverLoadFailure as exc:
        raise _url_invalid(exc) from exc
    return transport


def _parse(conf: cfg.ConfigOpts,
           url: str | None) -> oslo_messaging.TransportURL:
    """Return a URL, or the one of ``[DEFAULT]``.

    :raises ConfigInvalid: it is no URL
    """
    try:
        return oslo_messaging.TransportURL.parse(conf, url)
    except (oslo_messaging.InvalidTransportURL, ValueError) as exc:
        raise _url_invalid(exc) from exc


def _url_invalid(exc: Exception) -> exception.ConfigInvalid:
    return exception.ConfigInvalid(
        option='[gpgpu] transport_url',
        reason=f'{exc}; expected a URL such as {_EXAMPLE}')


def _register_global_only(conf: cfg.ConfigOpts) -> None:
    # oslo.messaging 18 registers these with the global CONF alone, yet reads
    # them from the transport's.
    for group, option in _GLOBAL_ONLY:
        if group not in conf:
            conf.register_opt(cfg.BoolOpt(option, default=False), group=group)


def notification_transport(conf: cfg.ConfigOpts) -> Transport:
    """Return a transport for notifications.

    It leads to ``[oslo_messaging_notifications] transport_url``, else to where
    ``get_transport`` leads to.
    """
    _register_global_only(conf)
    transport: Transport = oslo_messaging.get_notification_transport(
        conf, url=_notification_url(conf))
    return transport


def _notification_url(conf: cfg.ConfigOpts) -> str | None:
    register_notification_opts(conf)
    url: str | None = conf.oslo_messaging_notifications.transport_url
    return url or typing.cast('str | None', conf.gpgpu.transport_url)


@functools.cache
def _messaging_opts() -> list[tuple[str, list[cfg.Opt]]]:
    # A copy each time, which takes 7 ms.
    options: list[tuple[str, list[cfg.Opt]]] = oslo_messaging_opts.list_opts()
    return options


def register_notification_opts(conf: cfg.ConfigOpts) -> None:
    """Register ``[oslo_messaging_notifications]``."""
    for group, options in _messaging_opts():
        if group == 'oslo_messaging_notifications':
            conf.register_opts(options, group=group)


def register_server_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of oslo.messaging that limit a server."""
    for group, options in _messaging_opts():
        for option in options:
            if option.dest in ('executor_thread_pool_size',
                               'heartbeat_timeout_threshold',
                               'rabbit_qos_prefetch_count',
                               'rpc_conn_pool_size'):
                conf.register_opt(option, group=group)


def conductor_topic(conf: cfg.ConfigOpts,
                    kind: context.CallerKind) -> str:
    """Return the topic on which every conductor serves a kind of caller."""
    return f'{conf.gpgpu.topic_prefix}-conductor-{kind}'


def compute_topic(conf: cfg.ConfigOpts) -> str:
    """Return the topic that nova-compute serves, one server per host."""
    return f'{conf.gpgpu.topic_prefix}-compute'


def pinged_topic(conf: cfg.ConfigOpts) -> str:
    """Return the topic on which every conductor is pinged."""
    return f'{conf.gpgpu.topic_prefix}-conductor-ping'


def ping_topic(conf: cfg.ConfigOpts) -> str:
    """Return the topic to which conductors cast their answers to pings."""
    return f'{conf.gpgpu.topic_prefix}-ping'


def probe(conf: cfg.ConfigOpts, transport: Transport) -> None:
    """Send one message that nobody reads, to check that the broker takes it.

    If the broker is down or refuses the password, a call or a server waits for
    ever, whatever its timeout, because its queue does. A message without retry
    fails at once.

    :raises BrokerUnavailable: the broker does not take the message
    """
    try:
        topic = f'{conf.gpgpu.topic_prefix}-probe-{uuid.uuid4()}'
        client(transport, topic, '1.0').prepare(
            retry=0).cast(context.admin(), 'probe')
    except Exception as exc:
        # Errors of kombu and oslo.messaging have no common base class.
        raise exception.BrokerUnavailable(
            hosts=hosts(conf), reason=exc) from exc


def hosts(conf: cfg.ConfigOpts) -> str:
    """Return the brokers of calls, for messages."""
    return _hosts(conf, conf.gpgpu.transport_url)


def notification_hosts(conf: cfg.ConfigOpts) -> str:
    """Return the brokers of notifications, for messages."""
    return _hosts(conf, _notification_url(conf))


def _hosts(conf: cfg.ConfigOpts, transport_url: str | None) -> str:
    # Not the URL, which contains a password.
    url = oslo_messaging.TransportURL.parse(conf, transport_url)
    return ', '.join(f'{host.hostname}:{host.port}' for host in url.hosts
                     ) or 'localhost (no transport_url is configured)'


def check_leaves_process(conf: cfg.ConfigOpts) -> None:
    """Refuse a transport that connects only threads of one process.

    :raises ConfigInvalid: the transport reaches no other process, or there is
        no such transport
    """
    url = _parse(conf, conf.gpgpu.transport_url)
    if str(url.transport) in ('fake', 'kombu+memory'):
        raise exception.ConfigInvalid(
            option='[gpgpu] transport_url',
            reason=f'transport "{url.transport}" reaches no other process; '
                   'set the URL that gpgpu-conductor, nova-compute and '
                   f'nova-scheduler share, such as {_EXAMPLE}')


def client(transport: Transport, topic: str, version: str) -> RPCClient:
    """Return an RPC client for a topic.

    It tries once to reconnect to a lost broker; oslo.messaging's default is
    to try for ever.
    """
    rpc_client: RPCClient = oslo_messaging.get_rpc_client(
        transport, oslo_messaging.Target(
            exchange=EXCHANGE, topic=topic, version=version),
        serializer=context.ContextSerializer(), retry=1)
    return rpc_client


def server(transport: Transport, topic: str, name: str,
           endpoints: Sequence[object],
           key: server_mod.Key = lambda method, arguments: None,
           guard: server_mod.CallGuard | None = None,
           threads: int | None = None,
           observer: server_mod.Observer = server_mod.ignore,
           repeated: Collection[str] = ()) -> RPCServer:
    """Return an RPC server that is not started yet.

    :param key: what a call may wait for; only a few calls wait for the same
        at once
    :param guard: what decides who may call; None: whoever can send a message
    :param threads: calls that it handles at once; None: those of
        ``[DEFAULT] executor_thread_pool_size``
    :param observer: called after each call
    :param repeated: methods whose callers repeat a call that takes long
    """
    dispatcher = server_mod.Dispatcher(
        list(endpoints), context.ContextSerializer(),
        oslo_messaging.DefaultRPCAccessPolicy, guard=guard,
        observer=observer)
    if threads is None:
        register_server_opts(transport.conf)
        threads = transport.conf.executor_thread_pool_size
    rpc_server: RPCServer = server_mod.CallServer(
        transport, oslo_messaging.Target(
            exchange=EXCHANGE, topic=topic, server=name),
        dispatcher, 'threading', key=key, threads=threads, repeated=repeated)
    return rpc_server


# -- Publisher of notifications, which knows whether the broker has them.
#
# oslo.messaging's Notifier does not: its driver logs an error of the broker
# and goes on, whatever the option ``retry``. Here the same messages are sent
# over the same transport, and an error is raised. RabbitMQ confirms each
# message, since oslo.messaging opens its channels that way.


NOOP = 'noop'

_FORMATS = {'messaging': 1.0, 'messagingv2': 2.0}
"""Version of the message format by the name of the driver."""

# Its decisions are in a file, and it hides errors as the Notifier does.
_REFUSED = 'routing'

_RETRIES = 1
"""Attempts to connect again, for a connection that was idle and is closed."""


class NotificationTransport(typing.Protocol):
    """oslo_messaging.NotificationTransport, as far as it is used here."""

    def cleanup(self) -> None:
        """Close all connections."""

    def _send_notification(self, target: oslo_messaging.Target,
                           ctxt: Mapping[str, object],
                           message: Mapping[str, object], version: float,
                           retry: int) -> None:
        """Send a message and wait until the broker has it."""


def notification_drivers(conf: cfg.ConfigOpts) -> list[str]:
    """Return the names of the drivers that notifications are sent with.

    None: notifications are off.

    :raises ConfigInvalid: one of them would hide errors
    """
    register_notification_opts(conf)
    names = [name for name in conf.oslo_messaging_notifications.driver
             if name != NOOP]
    if _REFUSED in names:
        raise exception.ConfigInvalid(
            option='[oslo_messaging_notifications] driver',
            reason=f'the driver "{_REFUSED}" does not say whether a '
                   f'notification was sent; use messagingv2')
    return names


class Publisher:
    """Publisher with the drivers of ``[oslo_messaging_notifications]``.

    :raises ConfigInvalid: there is no such driver
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        names = notification_drivers(conf)
        self._conf = conf
        self._transport = typing.cast(
            NotificationTransport, notification_transport(conf))
        self._topics: list[str] = conf.oslo_messaging_notifications.topics
        self._formats = [_FORMATS[name] for name in names if name in _FORMATS]
        self._others = [self._load(name) for name in names
                        if name not in _FORMATS]

    def _load(self, name: str) -> notifier.Driver:
        try:
            return stevedore_driver.DriverManager(
                'oslo.messaging.notify.drivers', name, invoke_on_load=True,
                invoke_args=(self._conf,), invoke_kwds={
                    'topics': self._topics, 'transport': self._transport},
                ).driver
        except RuntimeError as exc:
            self._transport.cleanup()
            raise exception.ConfigInvalid(
                option='[oslo_messaging_notifications] driver',
                reason=exc) from exc

    def publish(self, message: Mapping[str, object]) -> None:
        """Publish a message, and return when all drivers have it.

        :param message: with the fields that oslo.messaging's Notifier sends
        :raises BrokerUnavailable: it is not certain that the broker has it
        """
        priority = str(message['priority'])
        try:
            for version in self._formats:
                for topic in self._topics:
                    # The driver adds fields of its own.
                    self._transport._send_notification(
                        oslo_messaging.Target(
                            exchange=EXCHANGE,
                            topic=f'{topic}.{priority.lower()}'),
                        {}, copy.copy(message), version=version,
                        retry=_RETRIES)
            for driver in self._others:
                driver.notify({}, message, priority, _RETRIES)
        except Exception as exc:
            # Errors of kombu and oslo.messaging have no common base class.
            raise exception.BrokerUnavailable(
                hosts=notification_hosts(self._conf),
                reason=exc) from exc

    def close(self) -> None:
        """Close all connections."""
        self._transport.cleanup()
