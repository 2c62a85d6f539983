# SPDX-License-Identifier: Apache-2.0
"""Publisher of notifications, which knows whether the broker has them.

oslo.messaging's Notifier does not: its driver logs an error of the broker and
goes on, whatever the option ``retry``. Here the same messages are sent over
the same transport, and an error is raised. RabbitMQ confirms each message,
since oslo.messaging opens its channels that way.
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Mapping

import oslo_messaging
from oslo_config import cfg
from oslo_messaging.notify import notifier
from stevedore import driver as stevedore_driver

from gpgpu_plugin import exception
from gpgpu_plugin.rpc import transport as rpc_transport

NOOP = 'noop'

_FORMATS = {'messaging': 1.0, 'messagingv2': 2.0}
"""Version of the message format by the name of the driver."""

# Its decisions are in a file, and it hides errors as the Notifier does.
_REFUSED = 'routing'

_RETRIES = 1
"""Attempts to connect again, for a connection that was idle and is closed."""


class Transport(typing.Protocol):
    """oslo_messaging.NotificationTransport, as far as it is used here."""

    def cleanup(self) -> None:
        """Close all connections."""

    def _send_notification(self, target: oslo_messaging.Target,
                           ctxt: Mapping[str, object],
                           message: Mapping[str, object], version: float,
                           retry: int) -> None:
        """Send a message and wait until the broker has it."""


def drivers(conf: cfg.ConfigOpts) -> list[str]:
    """Return the names of the drivers that notifications are sent with.

    None: notifications are off.

    :raises ConfigInvalid: one of them would hide errors
    """
    rpc_transport.register_notification_opts(conf)
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
        names = drivers(conf)
        self._conf = conf
        self._transport = typing.cast(
            Transport, rpc_transport.notification_transport(conf))
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
                            exchange=rpc_transport.EXCHANGE,
                            topic=f'{topic}.{priority.lower()}'),
                        {}, copy.copy(message), version=version,
                        retry=_RETRIES)
            for driver in self._others:
                driver.notify({}, message, priority, _RETRIES)
        except Exception as exc:
            # Errors of kombu and oslo.messaging have no common base class.
            raise exception.BrokerUnavailable(
                hosts=rpc_transport.notification_hosts(self._conf),
                reason=exc) from exc

    def close(self) -> None:
        """Close all connections."""
        self._transport.cleanup()
